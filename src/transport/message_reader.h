// message_reader.h - multipart messages from the ROUTER socket, without waiting and with bounded
// work per call.
//
// A message with more frames than allowed is read to its end, keeping nothing, and reported. Wire
// thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/zmq_message.h"

namespace larder::transport {

struct ReceivedMessage {
  ZmqMessage identity;
  int descriptor = -1;  // of its connection; -1: a peer older than ZMTP 3.0
  std::vector<ZmqMessage> frames;
};

enum class ReadOutcome : std::uint8_t {
  kMessage,        // take() it
  kTooManyFrames,  // one message was dropped
  kNoMemory,       // likewise
  kEmpty,          // nothing to receive now
  kBudgetSpent,    // call again, after others had their turn
  kClosed,         // the socket is no more
};

class MessageReader {
 public:
  // frames_max counts without the identity.
  MessageReader(void* socket, std::size_t frames_max) : socket_(socket), frames_max_(frames_max) {}

  // Reads up to the end of one message, at most `budget` frames, which it counts down. Continues
  // where the last call ended.
  ReadOutcome read(std::size_t& budget);

  // REQUIRES: read() has just returned kMessage.
  ReceivedMessage take();

 private:
  void keep(ZmqMessage frame);
  void drop(ReadOutcome why);
  ReadOutcome finish();

  void* const socket_;
  const std::size_t frames_max_;
  ReceivedMessage message_;
  std::size_t position_ = 0;                     // of the next frame; 0: the identity
  ReadOutcome outcome_ = ReadOutcome::kMessage;  // of the message being read
};

}  // namespace larder::transport
