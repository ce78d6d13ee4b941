// decoder.h - one connection's bytes in, messages out: ZMTP 3 as a libzmq ROUTER reads it.
//
// No sockets, no clock. The owner receives into writable(), says how much came with received(), and
// calls next() until it needs input:
//
//   GREETING -> READY -> FLAGS -> LENGTH -> BODY -> FLAGS ...      commands at any frame's
//   beginning
//
// Every limit is tested on a frame's header, before memory is taken for its body. After kRefused
// the connection is to be closed, plainly: libzmq clients take an ERROR command for final and would
// never come back. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "zmtp/close_reason.h"
#include "zmtp/command.h"
#include "zmtp/frame_header.h"
#include "zmtp/handshake.h"
#include "zmtp/message.h"
#include "zmtp/receive_memory.h"

namespace larder::zmtp {

struct DecoderLimits {
  std::size_t message_bytes_max;
  std::size_t frames_max;  // of one message
};

enum class Event : std::uint8_t {
  kNeedsInput,
  kHandshaken,  // the peer's READY is in order: from now on it may be sent to
  kMessage,     // take_message()
  kPing,        // ping()
  kIgnored,     // a command that means nothing to us
  kRefused,     // reason(); nothing follows
};

class Decoder {
 public:
  // The memory outlives the decoder, and so do the sinks (nullptr: there are none).
  Decoder(const DecoderLimits& limits, ReceiveMemory& memory, FrameSinks* sinks = nullptr)
      : limits_(limits), memory_(memory), sinks_(sinks) {}

  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() = default;

  // Where the next bytes go, at least one and at most `bytes_max`. REQUIRES: the last next() said
  // kNeedsInput. Throws std::bad_alloc.
  std::span<std::byte> writable(std::size_t bytes_max);
  void received(std::size_t bytes);

  Event next();  // throws std::bad_alloc

  Message take_message();  // after kMessage

  const Ping& ping() const { return ping_; }  // after kPing, until the next call

  CloseReason reason() const { return reason_; }

  const PeerReady& peer() const { return peer_; }

  bool is_handshaken() const { return state_ == State::kTraffic || state_ == State::kLargeBody; }

  // Something has come of a message that is not whole yet, or that next() was not asked for.
  bool is_in_message() const {
    return state_ == State::kLargeBody || unfinished_bytes() > 0 || !message_.frames.empty();
  }

  // How much of it, wherever it lies.
  std::size_t unfinished_bytes() const {
    return message_bytes_ + large_received_ + unread().size();
  }

  // Whole frames so far, commands included: signs of life.
  std::uint64_t frame_count() const { return frame_count_; }

  // Call when the connection has to wait: lets go of the memory that it does not need meanwhile.
  // Throws std::bad_alloc.
  void rest();

  // Lets go of everything. Nothing can be read any more.
  void drop_all();

 private:
  enum class State : std::uint8_t { kGreeting, kReady, kTraffic, kLargeBody, kRefused };

  std::span<const std::byte> unread() const;

  void consume(std::size_t bytes) { begin_ += bytes; }

  Event need(std::size_t bytes);
  Event refuse(CloseReason reason);
  std::optional<Event> read_greeting();
  std::optional<Event> read_frame();
  std::optional<Event> read_command_frame(const FrameHeader& header);
  std::optional<Event> read_message_frame(const FrameHeader& header);
  std::optional<Event> read_large_body();
  void begin_large(const FrameHeader& header);
  std::span<std::byte> large_room(std::size_t bytes_max);
  void sort_in(std::span<std::byte> bytes);
  std::optional<Event> add_frame(Frame frame, const BufferRef& owner, bool has_more);
  Event act_on(const Command& command);
  void make_room();

  const DecoderLimits limits_;
  ReceiveMemory& memory_;
  FrameSinks* const sinks_;
  State state_ = State::kGreeting;
  CloseReason reason_ = CloseReason::kForeign;
  PeerReady peer_;
  Ping ping_;

  BufferRef block_;  // its unread bytes are [begin_, end_)
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::size_t needed_ = 1;  // unread bytes that let next() go on

  BufferRef large_;                  // of the frame being received
  std::unique_ptr<FrameSink> sink_;  // what takes pieces of it, if there is one
  std::size_t large_bytes_ = 0;
  std::size_t large_received_ = 0;
  std::size_t large_kept_ = 0;  // of them, in the buffer
  bool large_has_more_ = false;

  std::uint64_t frame_count_ = 0;
  Message message_;
  std::size_t message_bytes_ = 0;  // of its whole frames
};

}  // namespace larder::zmtp
