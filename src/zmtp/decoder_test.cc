// Goal: the decoder's promises that no recorded conversation shows: limits are exact and tested on
// the header alone, memory grows with what was received, messages outlive their neighbours, and
// nothing of a refused connection is handed out afterwards.
// Method: bytes by hand into one decoder.
#include "zmtp/decoder.h"

#include <gtest/gtest.h>

#include "base/test_random.h"
#include "zmtp/test_conversations.h"

namespace larder::zmtp {
namespace {

constexpr std::size_t kMebibyte = 1U << 20;

class DecoderTest : public testing::Test {
 protected:
  Reading read(const std::string& bytes, const DecoderLimits& limits) {
    Feeder feeder(memory_, limits);
    feeder.feed(dealer_hello() + bytes);
    return feeder.reading();
  }

  ReceiveMemory memory_;
};

TEST_F(DecoderTest, TheLimitOfAMessageIsTheSumOfItsFrames) {
  const DecoderLimits limits{.message_bytes_max = 10, .frames_max = 16};
  const std::string fits = message_bytes({"12345", "", "67890"});
  EXPECT_EQ(read(fits + fits, limits).messages.size(), 2U);
  EXPECT_EQ(read(fits + message_bytes({"12345", "678901"}), limits).refused, "message_bytes");
  EXPECT_EQ(read(message_bytes({"12345678901"}), limits).refused, "message_bytes");
}

TEST_F(DecoderTest, TheLimitOfFramesCountsEachMessageByItself) {
  const DecoderLimits limits{.message_bytes_max = 1000, .frames_max = 3};
  const std::string fits = message_bytes({"", "", ""});
  const Reading reading = read(fits + fits + message_bytes({"", "", "", ""}), limits);
  EXPECT_EQ(reading.messages.size(), 2U);
  EXPECT_EQ(reading.refused, "message_frames");
}

TEST_F(DecoderTest, AFrameIsRefusedOnItsHeaderAlone) {
  const DecoderLimits limits{.message_bytes_max = kMebibyte, .frames_max = 16};
  EXPECT_EQ(read(from_hex("020000000000100001"), limits).refused, "message_bytes");
  EXPECT_EQ(read(from_hex("02ffffffffffffffff"), limits).refused, "message_bytes");
  EXPECT_EQ(read(from_hex("06ffffffffffffffff"), limits).refused, "command_bytes");
  EXPECT_EQ(read(from_hex("060000000000001001"), limits).refused, "command_bytes");
  EXPECT_EQ(read(from_hex("020000000000100000"), limits).refused, "");
}

TEST_F(DecoderTest, NothingIsReadAfterARefusal) {
  Feeder feeder(memory_);
  EXPECT_FALSE(feeder.feed(dealer_hello() + "\x04\x05\x04PING" + message_bytes({"late"})));
  EXPECT_EQ(feeder.reading().refused, "bad_ping");
  EXPECT_EQ(feeder.decoder().next(), Event::kRefused);
  EXPECT_TRUE(feeder.reading().messages.empty());
}

TEST_F(DecoderTest, AnAnnouncedFrameTakesNoMemoryBeforeItArrives) {
  Feeder feeder(memory_, {.message_bytes_max = std::size_t{1} << 40, .frames_max = 16});
  ASSERT_TRUE(feeder.feed(dealer_hello() + from_hex("020000000100000000") + "begin"));  // 4 GiB
  std::size_t fed = 5;
  for (int i = 0; i < 100; ++i) {
    const std::span<std::byte> room = feeder.decoder().writable(8 * kMebibyte);
    // Room for at most as much again as there is already, or a first buffer.
    ASSERT_LE(room.size(), std::max<std::size_t>(fed, 256U << 10));
    const std::size_t count = std::min<std::size_t>(room.size(), 100'000);
    std::fill_n(room.begin(), count, std::byte{'x'});
    feeder.decoder().received(count);
    fed += count;
    ASSERT_EQ(feeder.decoder().next(), Event::kNeedsInput);
    ASSERT_EQ(feeder.decoder().unfinished_bytes(), fed);
  }
}

TEST_F(DecoderTest, ThereIsRoomForNoMoreThanTheFrame) {
  constexpr std::size_t kFrameBytes = 0x80001;
  Feeder feeder(memory_);
  ASSERT_TRUE(feeder.feed(dealer_hello() + from_hex("020000000000080001")));
  std::size_t left = kFrameBytes;
  while (left > 0) {
    const std::span<std::byte> room = feeder.decoder().writable(8 * kMebibyte);
    ASSERT_LE(room.size(), left);
    feeder.decoder().received(room.size());
    left -= room.size();
    ASSERT_EQ(feeder.decoder().next(), left > 0 ? Event::kNeedsInput : Event::kMessage);
  }
  EXPECT_EQ(feeder.decoder().take_message().byte_count(), kFrameBytes);
}

TEST_F(DecoderTest, FramesOfAllSizesAroundTheThresholdsComeWhole) {
  std::string bytes = dealer_hello();
  std::vector<TextFrames> sent;
  for (const std::size_t size : {kShortBodyMax,
                                 kShortBodyMax + 1,
                                 kLargeFrameBytes - 1,
                                 kLargeFrameBytes,
                                 kLargeFrameBytes + 1,
                                 kBlockBytes - kLongHeaderBytes,
                                 kBlockBytes,
                                 kBlockBytes + 1,
                                 std::size_t{256U << 10},
                                 3 * kMebibyte + 1}) {
    const auto letter = static_cast<char>('a' + sent.size());
    sent.push_back({"u", std::string(size, letter), "", std::string(size / 2, letter)});
    bytes += message_bytes(sent.back());
  }
  for (const std::size_t piece : {std::size_t{1000}, std::size_t{65536}, bytes.size()}) {
    Feeder feeder(memory_);
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_TRUE(feeder.feed(std::string_view(bytes).substr(at, piece)));
      feeder.decoder().rest();
    }
    EXPECT_EQ(feeder.reading().messages, sent) << piece;
  }
}

TEST_F(DecoderTest, AKeptMessageIsNotOverwrittenByLaterOnes) {
  Feeder feeder(memory_);
  feeder.feed(dealer_hello());
  for (int i = 0; i < 3000; ++i) {
    feeder.feed(message_bytes({std::to_string(i), std::string(100, 'v')}));
    feeder.decoder().rest();
  }
  ASSERT_EQ(feeder.kept().size(), 3000U);
  for (int i = 0; i < 3000; ++i) {
    EXPECT_EQ(text_of(feeder.kept()[static_cast<std::size_t>(i)].frames[0]), std::to_string(i));
  }
}

TEST_F(DecoderTest, AMessageThatLeftItsBlocksKeepsItsBytes) {
  Feeder feeder(memory_);
  const std::string large(200'000, 'L');
  feeder.feed(dealer_hello() + message_bytes({"uid", "", "operation", large, "tail"}));
  Message& message = feeder.kept().at(0);
  message.leave_blocks();
  EXPECT_TRUE(std::none_of(message.owners.begin(), message.owners.end(), [](const auto& owner) {
    return owner->kind() == Buffer::Kind::kBlock;
  }));
  TextFrames frames;
  for (const Frame& frame : message.frames) {
    frames.push_back(text_of(frame));
  }
  EXPECT_EQ(frames, feeder.reading().messages.at(0));
}

TEST_F(DecoderTest, IdleConnectionsShareOneBlock) {
  std::vector<std::unique_ptr<Feeder>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<Feeder>(memory_));
    idle.back()->feed(dealer_hello() + message_bytes({"u", "op"}));
    idle.back()->kept().clear();
    idle.back()->decoder().rest();
  }
  const Block block = memory_.take_block();
  EXPECT_EQ(block.used, 0U);  // nobody else holds it
  EXPECT_EQ(memory_.cached_bytes(), 0U);
}

TEST_F(DecoderTest, ItTellsWhetherAMessageHasBegun) {
  Feeder feeder(memory_);
  feeder.feed(dealer_hello());
  EXPECT_FALSE(feeder.decoder().is_in_message());
  feeder.feed(from_hex("01"));
  EXPECT_TRUE(feeder.decoder().is_in_message());
  feeder.feed(from_hex("00"));  // an empty first frame
  EXPECT_TRUE(feeder.decoder().is_in_message());
  EXPECT_EQ(feeder.decoder().unfinished_bytes(), 0U);
  feeder.feed(from_hex("0000"));
  EXPECT_FALSE(feeder.decoder().is_in_message());
  EXPECT_EQ(feeder.reading().messages, (std::vector<TextFrames>{{"", ""}}));
}

TEST_F(DecoderTest, EveryWholeFrameIsASignOfLife) {
  Feeder feeder(memory_);
  feeder.feed(dealer_hello());
  const std::uint64_t before = feeder.decoder().frame_count();
  feeder.feed(frame_bytes("a", FrameKind::kMore));
  EXPECT_EQ(feeder.decoder().frame_count(), before + 1);
  feeder.feed(from_hex("0005") + "part");
  EXPECT_EQ(feeder.decoder().frame_count(), before + 1);
  feeder.feed("s");
  EXPECT_EQ(feeder.decoder().frame_count(), before + 2);
}

// Of every large frame that follows a frame "place", what a pattern says: so many bytes stay in the
// frame, so many are a piece, and again.
struct Stretch {
  std::size_t kept;
  std::size_t piece;
};

using Pattern = std::vector<Stretch>;

class PieceSink final : public FrameSink {
 public:
  PieceSink(const Pattern& pattern, int& alive) : pattern_(pattern), alive_(alive) {
    ++alive_;
    begin_stretch();
  }

  PieceSink(const PieceSink&) = delete;
  PieceSink& operator=(const PieceSink&) = delete;

  ~PieceSink() override { --alive_; }

  std::span<std::byte> room() override {
    if (kept_left_ > 0 || pieces_.empty()) {
      return {};
    }
    return std::as_writable_bytes(std::span(pieces_.back())).subspan(used_);
  }

  void arrived(std::size_t bytes) override {
    used_ += bytes;
    if (used_ == pieces_.back().size()) {
      begin_stretch();
    }
  }

  std::size_t keep(std::span<const std::byte> bytes) override {
    if (pieces_.empty()) {
      return bytes.size();
    }
    const std::size_t kept = std::min(bytes.size(), kept_left_);
    kept_left_ -= kept;
    return kept;
  }

  std::size_t kept_ahead() const override { return kept_left_ / 2; }

  void finish(std::span<std::byte> kept) override {
    is_finished = true;
    std::reverse(kept.begin(), kept.end());
  }

  // The frame as it was sent. REQUIRES: finished.
  std::string whole(std::string kept) {
    std::reverse(kept.begin(), kept.end());
    std::string whole;
    pieces_.back().resize(used_);
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const std::size_t in_front = std::min(pattern_[i % pattern_.size()].kept, kept.size());
      whole += kept.substr(0, in_front) + pieces_[i];
      kept.erase(0, in_front);
    }
    return whole + kept;
  }

  bool is_finished = false;

 private:
  void begin_stretch() {
    const Stretch& stretch = pattern_[pieces_.size() % pattern_.size()];
    kept_left_ = stretch.kept;
    pieces_.emplace_back(stretch.piece, '\0');
    used_ = 0;
  }

  const Pattern& pattern_;
  int& alive_;
  std::vector<std::string> pieces_;
  std::size_t kept_left_ = 0;
  std::size_t used_ = 0;
};

class PieceSinks final : public FrameSinks {
 public:
  std::unique_ptr<FrameSink> find(std::span<const Frame> begun, std::uint64_t body_bytes) override {
    if (begun.empty() || text_of(begun.back()) != "place") {
      return nullptr;
    }
    asked_for = body_bytes;
    return std::make_unique<PieceSink>(pattern, alive);
  }

  Pattern pattern{{0, 50'000}};
  std::uint64_t asked_for = 0;
  int alive = 0;
};

std::string varied_bytes(std::size_t size) {
  std::string body(size, '\0');
  for (std::size_t i = 0; i < body.size(); ++i) {
    body[i] = static_cast<char>(i * 7 + i / 251);
  }
  return body;
}

TEST_F(DecoderTest, PiecesOfALargeFrameAreReceivedWhereItsSinkWantsThem) {
  const std::string body = varied_bytes(300'000);
  const std::string stream =
      dealer_hello() + message_bytes({"uid", "place", body, "tail"}) + message_bytes({"next"});
  const std::vector<Pattern> patterns{{{0, 1}, {0, 99'000}},
                                      {{700, 40'000}},
                                      {{5, 3}, {0, 9000}, {90'000, 1}},
                                      {{1, 1}},
                                      {{1'000'000, 1}},
                                      {{0, 1'000'000}}};
  for (const Pattern& pattern : patterns) {
    for (const std::size_t piece : {std::size_t{977}, std::size_t{70'001}, stream.size()}) {
      PieceSinks sinks;
      sinks.pattern = pattern;
      Feeder feeder(memory_, {.message_bytes_max = 1U << 20, .frames_max = 16}, &sinks);
      for (std::size_t at = 0; at < stream.size(); at += piece) {
        ASSERT_TRUE(feeder.feed(std::string_view(stream).substr(at, piece)));
        feeder.decoder().rest();
      }
      ASSERT_EQ(feeder.kept().size(), 2U);
      Message& message = feeder.kept()[0];
      ASSERT_EQ(message.placed.size(), 1U);
      EXPECT_EQ(message.placed[0].index, 2U);
      EXPECT_EQ(sinks.asked_for, body.size());
      EXPECT_EQ(message.frames[2].size() + message.placed[0].bytes, body.size());
      auto& sink = static_cast<PieceSink&>(*message.placed[0].sink);
      EXPECT_TRUE(sink.is_finished);
      EXPECT_TRUE(sink.whole(text_of(message.frames[2])) == body);
      message = Message();
      EXPECT_EQ(sinks.alive, 0);
    }
  }
}

TEST_F(DecoderTest, HowPiecesComeMakesNoDifference) {
  std::mt19937_64 random(test_seed());
  const auto below = [&random](std::size_t bound) { return random() % bound; };
  for (int round = 0; round < 100; ++round) {
    const std::string body = varied_bytes(kBlockBytes + 1 + below(200'000));
    const std::string stream = dealer_hello() + message_bytes({"place", body});
    PieceSinks sinks;
    sinks.pattern.resize(1 + below(4));
    for (Stretch& stretch : sinks.pattern) {
      stretch = {below(3) == 0 ? below(50'000) : below(600), 1 + below(below(2) == 0 ? 9 : 60'000)};
    }
    Feeder feeder(memory_, {.message_bytes_max = 1U << 20, .frames_max = 16}, &sinks);
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t size = 1 + (below(3) == 0 ? below(10) : below(90'000));
      ASSERT_TRUE(feeder.feed(std::string_view(stream).substr(at, size)));
      at += size;
    }
    ASSERT_EQ(feeder.kept().size(), 1U);
    const Message& message = feeder.kept()[0];
    ASSERT_EQ(message.placed.size(), 1U);
    auto& sink = static_cast<PieceSink&>(*message.placed[0].sink);
    ASSERT_TRUE(sink.whole(text_of(message.frames[1])) == body) << "round " << round;
  }
}

TEST_F(DecoderTest, WhatASinkTookIsPartOfWhatIsUnfinished) {
  PieceSinks sinks;
  Feeder feeder(memory_, {.message_bytes_max = 1U << 20, .frames_max = 16}, &sinks);
  const std::string stream = dealer_hello() + message_bytes({"place", varied_bytes(200'000)});
  feeder.feed(std::string_view(stream).substr(0, stream.size() - 1));
  EXPECT_EQ(feeder.decoder().unfinished_bytes(), 5U + 200'000U - 1U);
  feeder.feed(std::string_view(stream).substr(stream.size() - 1));
  EXPECT_EQ(feeder.decoder().unfinished_bytes(), 0U);
}

TEST_F(DecoderTest, ASinksBytesCountForTheMessagesLimit) {
  PieceSinks sinks;
  Feeder feeder(memory_, {.message_bytes_max = 100'000, .frames_max = 16}, &sinks);
  EXPECT_FALSE(feeder.feed(
      dealer_hello() + message_bytes({"place", std::string(99'000, 'x'), "place", "123456"}) +
      message_bytes({"place", std::string(99'000, 'x'), std::string(996, 'y')})));
  EXPECT_EQ(feeder.reading().messages.size(), 1U);
  EXPECT_EQ(feeder.reading().refused, "message_bytes");
}

TEST_F(DecoderTest, AnUnfinishedFramesSinkGoesWithTheConnection) {
  PieceSinks sinks;
  {
    Feeder feeder(memory_, {.message_bytes_max = 1U << 20, .frames_max = 16}, &sinks);
    const std::string stream = dealer_hello() + message_bytes({"place", std::string(99'000, 'x')});
    feeder.feed(std::string_view(stream).substr(0, 50'000));
    EXPECT_EQ(sinks.alive, 1);
    feeder.decoder().drop_all();
    EXPECT_EQ(sinks.alive, 0);
  }
  Feeder feeder(memory_, {.message_bytes_max = 1U << 20, .frames_max = 16}, &sinks);
  EXPECT_TRUE(feeder.feed(dealer_hello() + message_bytes({"other", std::string(99'000, 'x')})));
  EXPECT_TRUE(feeder.kept()[0].placed.empty());
}

TEST_F(DecoderTest, ThePeersTypeAndIdentityAreKept) {
  for (const Conversation& one : recorded_conversations()) {
    if (one.name == "dealer_explicit_identity") {
      Feeder feeder(memory_);
      feeder.feed(one.client);
      EXPECT_EQ(feeder.decoder().peer().socket_type, "DEALER");
      EXPECT_EQ(feeder.decoder().peer().identity, "worker-7");
    }
  }
}

TEST_F(DecoderTest, APingTellsItsTimeToLive) {
  Feeder feeder(memory_);
  feeder.feed(dealer_hello());
  const std::string ping = from_hex("0407") + "\x04PING" + from_hex("0290");
  const std::span<std::byte> room = feeder.decoder().writable(ping.size());
  std::copy_n(std::as_bytes(std::span(ping)).begin(), ping.size(), room.begin());
  feeder.decoder().received(ping.size());
  ASSERT_EQ(feeder.decoder().next(), Event::kPing);
  EXPECT_EQ(feeder.decoder().ping().ttl_tenths, 656);
}

}  // namespace
}  // namespace larder::zmtp
