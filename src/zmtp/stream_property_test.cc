// Goal: any valid stream of messages and commands comes out as it went in, and any stream at all
// comes out the same however it is cut.
// Method: random streams (LARDER_TEST_SEED) of frames of many sizes in both header forms with
// commands in between, cut at random places, against the list of what was put in; then the same
// streams with random damage, fed whole and in pieces, results compared.
#include <gtest/gtest.h>

#include "base/test_random.h"
#include "zmtp/test_conversations.h"

namespace larder::zmtp {
namespace {

class StreamProperty : public testing::Test {
 protected:
  std::size_t below(std::size_t bound) { return random_() % bound; }

  std::string random_text(std::size_t size) {
    std::string text(size, '\0');
    for (char& letter : text) {
      letter = static_cast<char>(random_());
    }
    return text;
  }

  // Mostly small, sometimes around a threshold, sometimes large.
  std::size_t random_size() {
    constexpr auto kEdges = std::to_array<std::size_t>(
        {255, 256, kLargeFrameBytes, kLargeFrameBytes + 1, kBlockBytes, 70'000});
    switch (below(12)) {
      case 0:
        return kEdges[below(kEdges.size())];
      case 1:
        return below(100'000);
      default:
        return below(40);
    }
  }

  std::string frame(const std::string& body, bool has_more) {
    if (below(4) == 0) {  // the long form is right for any length
      std::string header = has_more ? "\x03" : "\x02";
      for (int shift = 56; shift >= 0; shift -= 8) {
        header.push_back(static_cast<char>(body.size() >> shift));
      }
      return header + body;
    }
    return frame_bytes(body, has_more ? FrameKind::kMore : FrameKind::kLast);
  }

  // Appends a command now and then, and its answer to `pongs`.
  void maybe_command(std::string& stream, std::string& pongs) {
    if (below(5) != 0) {
      return;
    }
    const std::string context = random_text(below(30));
    if (below(2) == 0) {
      const std::string body = "\x04PING" + std::string(2, '\0') + context;
      stream += frame_bytes(body, FrameKind::kCommand);
      const std::string echoed = context.substr(0, 16);
      pongs += "\x04" + std::string(1, static_cast<char>(5 + echoed.size())) + "\x04PONG" + echoed;
    } else {
      stream += frame_bytes("\x03" + std::string("FOO") + context, FrameKind::kCommand);
    }
  }

  std::string random_stream(Reading& expected) {
    std::string stream = dealer_hello();
    for (std::size_t messages = 1 + below(30); messages > 0; --messages) {
      TextFrames frames(1 + below(16));
      for (std::size_t i = 0; i < frames.size(); ++i) {
        maybe_command(stream, expected.pongs);
        frames[i] = random_text(random_size());
        stream += frame(frames[i], i + 1 < frames.size());
      }
      expected.messages.push_back(std::move(frames));
    }
    return stream;
  }

  Reading read_cut(const std::string& stream) {
    ReceiveMemory& memory = memory_;
    Feeder feeder(memory);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t piece = 1 + (below(3) == 0 ? below(10) : below(90'000));
      if (!feeder.feed(std::string_view(stream).substr(at, piece))) {
        break;
      }
      at += piece;
      if (below(2) == 0) {
        feeder.decoder().rest();
      }
      if (below(2) == 0) {
        feeder.kept().clear();
      }
    }
    return feeder.reading();
  }

  std::mt19937_64 random_{test_seed()};
  ReceiveMemory memory_;
};

TEST_F(StreamProperty, WhatIsPutInComesOut) {
  for (int round = 0; round < 60; ++round) {
    Reading expected;
    const std::string stream = random_stream(expected);
    ASSERT_EQ(read_cut(stream), expected) << "round " << round;
  }
}

TEST_F(StreamProperty, CutsMakeNoDifference) {
  for (int round = 0; round < 150; ++round) {
    Reading unused;
    std::string stream = random_stream(unused);
    for (std::size_t damage = 1 + below(4); damage > 0; --damage) {
      // Near the beginning, where the handshake is, or anywhere.
      stream[below(below(2) == 0 ? 120 : stream.size())] = static_cast<char>(random_());
    }
    Feeder whole(memory_);
    whole.feed(stream);
    ASSERT_EQ(read_cut(stream), whole.reading()) << "round " << round;
  }
}

}  // namespace
}  // namespace larder::zmtp
