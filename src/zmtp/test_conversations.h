// test_conversations.h - for tests of this room: the recorded conversations, and a reader that
// feeds a decoder and writes down what comes out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "zmtp/decoder.h"

namespace larder::zmtp {

using TextFrames = std::vector<std::string>;

struct Conversation {
  std::string name;
  std::size_t message_bytes_max = 64U << 20;
  std::string client;
  std::vector<TextFrames> messages;
  std::string pongs;
  std::string refused;
};

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// "0a0b*3": the bytes, so many times. "-": nothing.
inline std::string from_notation(const std::string& word) {
  if (word == "-") {
    return "";
  }
  const std::size_t star = word.find('*');
  const std::string once = from_hex(std::string_view(word).substr(0, star));
  std::string bytes;
  for (int left = star == std::string::npos ? 1 : std::stoi(word.substr(star + 1)); left > 0;
       --left) {
    bytes += once;
  }
  return bytes;
}

inline std::vector<Conversation> recorded_conversations() {
  std::ifstream file(std::string(LARDER_FIXTURES) + "/zmtp_conversations.txt");
  std::vector<Conversation> all;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    std::vector<std::string> values;
    for (std::string word; words >> word;) {
      values.push_back(word);
    }
    if (key == "case") {
      all.emplace_back().name = values.at(0);
    } else if (key == "limit") {
      all.back().message_bytes_max = std::stoul(values.at(0));
    } else if (key == "client") {
      for (const std::string& word : values) {
        all.back().client += from_notation(word);
      }
    } else if (key == "message") {
      TextFrames frames;
      for (const std::string& word : values) {
        frames.push_back(from_notation(word));
      }
      all.back().messages.push_back(std::move(frames));
    } else if (key == "pongs") {
      all.back().pongs = from_hex(values.at(0));
    } else if (key == "refused") {
      all.back().refused = values.at(0);
    }
  }
  return all;
}

inline std::string text_of(Frame frame) {
  return {reinterpret_cast<const char*>(frame.data()), frame.size()};
}

// What a decoder made of some bytes.
struct Reading {
  std::vector<TextFrames> messages;
  std::string pongs;
  std::string refused;

  bool operator==(const Reading&) const = default;
};

// Feeds one decoder, as a connection does.
class Feeder {
 public:
  explicit Feeder(ReceiveMemory& memory,
                  const DecoderLimits& limits = {.message_bytes_max = 64U << 20, .frames_max = 16},
                  FrameSinks* sinks = nullptr)
      : decoder_(limits, memory, sinks) {}

  // As if these bytes came in one segment. False once the connection is refused.
  bool feed(std::string_view bytes) {
    drain();
    while (!bytes.empty() && reading_.refused.empty()) {
      const std::span<std::byte> room = decoder_.writable(bytes.size());
      const std::span<const std::byte> front =
          std::as_bytes(std::span(bytes)).first(std::min(room.size(), bytes.size()));
      std::copy(front.begin(), front.end(), room.begin());
      decoder_.received(front.size());
      bytes.remove_prefix(front.size());
      drain();
    }
    return reading_.refused.empty();
  }

  Decoder& decoder() { return decoder_; }

  const Reading& reading() const { return reading_; }

  // Messages stay here, so that their memory is in use while others are received.
  std::vector<Message>& kept() { return kept_; }

 private:
  void drain() {
    for (;;) {
      switch (decoder_.next()) {
        case Event::kNeedsInput:
          return;
        case Event::kMessage:
          keep(decoder_.take_message());
          break;
        case Event::kPing: {
          std::vector<std::byte> pong;
          append_pong(decoder_.ping().context, pong);
          reading_.pongs += text_of(pong);
          break;
        }
        case Event::kRefused:
          reading_.refused = to_string(decoder_.reason());
          return;
        case Event::kHandshaken:
        case Event::kIgnored:
          break;
      }
    }
  }

  void keep(Message message) {
    TextFrames frames;
    for (const Frame& frame : message.frames) {
      frames.push_back(text_of(frame));
    }
    reading_.messages.push_back(std::move(frames));
    kept_.push_back(std::move(message));
  }

  Decoder decoder_;
  Reading reading_;
  std::vector<Message> kept_;
};

// Greeting and READY of a libzmq DEALER.
inline std::string dealer_hello() {
  std::string bytes = from_hex("ff00000000000000017f03014e554c4c");
  bytes.resize(kGreetingBytes, '\0');
  return bytes + from_hex("0429") + "\x05READY\x0bSocket-Type" + from_hex("00000006") + "DEALER" +
         "\x08Identity" + from_hex("00000000");
}

inline std::string frame_bytes(std::string_view body, FrameKind kind) {
  return text_of(write_frame_header(kind, body.size()).span()) + std::string(body);
}

inline std::string message_bytes(const TextFrames& frames) {
  std::string bytes;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    bytes += frame_bytes(frames[i], i + 1 < frames.size() ? FrameKind::kMore : FrameKind::kLast);
  }
  return bytes;
}

}  // namespace larder::zmtp
