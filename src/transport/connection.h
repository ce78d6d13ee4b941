// connection.h - one peer of the request port: its socket, what was received and not yet run, what
// waits to be sent, and its time limits.
//
// The state of the wire loop's bookkeeping, with the system calls and the rules about time; what
// happens with messages is the loop's. Wire thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "base/clock.h"
#include "transport/descriptor.h"
#include "transport/dispatcher.h"
#include "transport/poller.h"
#include "transport/send_queue.h"
#include "transport/unsent_bytes.h"
#include "zmtp/decoder.h"

namespace larder::transport {

class Connection;

// When which connection is to be looked at; not earlier, possibly in vain.
using Alarms = std::multimap<TimePoint, Connection*>;

struct TimeLimits {
  Duration handshake;
  Duration message;  // from a message's first byte to its last, while it is being read
  Duration unread;   // without the peer taking a byte of what waits for it
};

class Connection final : public Watched {
 public:
  enum class Stage : std::uint8_t {
    kServing,
    kFlushing,  // closed for the dispatcher; what waits is sent, then kLeaving
    kLeaving,  // our half is shut down; the peer's end is awaited, so that the kernel delivers what
               // it has accepted instead of resetting the connection
    kGone,
  };

  enum class ReadOutcome : std::uint8_t { kSome, kFilled, kNothing, kEnd, kBroken };

  struct Limits {
    zmtp::DecoderLimits decoder;
    std::size_t unsent_bytes_max;
  };

  struct Due {
    TimePoint time;
    zmtp::CloseReason reason;
  };

  // What all connections of a loop share.
  struct Shared {
    const Limits& limits;
    zmtp::ReceiveMemory& memory;
    const std::shared_ptr<UnsentHeap>& unsent_heap;
    Dispatcher& dispatcher;
  };

  Connection(Descriptor socket, PeerName peer, const Shared& shared, TimePoint now);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() = default;

  int descriptor() const { return socket_.get(); }

  // Our greeting and READY; false when the kernel does not take them.
  bool send_hello();

  // One call to the kernel, into the decoder. REQUIRES: it needs input. Throws std::bad_alloc.
  ReadOutcome receive(std::size_t bytes_max);

  std::size_t received_bytes() const { return received_bytes_; }

  // Throws away what is there, as far as it fits.
  ReadOutcome discard(std::span<std::byte> to);

  // Sends what waits, as far as the kernel and the budget go.
  SendQueue::Outcome send(std::size_t budget, TimePoint now);

  void shut_down_sending();

  void close() { socket_.close(); }

  // Notes what a turn's reading did to the message and to the peer's time to live.
  void note_reading(bool had_message, TimePoint now);
  void note_ping(TimePoint now);  // after the decoder said kPing

  // What was not read for a while starts its times anew.
  void restart_reading_times(TimePoint now);

  // The next limit that applies; none while there is nothing to wait for.
  std::optional<Due> next_due(const TimeLimits& limits) const;

  // The loop's bookkeeping.
  const PeerName peer;

 private:
  // Asks the dispatcher on behalf of this connection.
  class Sinks final : public zmtp::FrameSinks {
   public:
    Sinks(const Connection& connection, Dispatcher& dispatcher)
        : connection_(connection), dispatcher_(dispatcher) {}

    std::unique_ptr<FrameSink> find(std::span<const Frame> begun,
                                    std::uint64_t body_bytes) override;

   private:
    const Connection& connection_;
    Dispatcher& dispatcher_;
  };

  Sinks sinks_;

 public:
  zmtp::Decoder decoder;
  SendQueue queue;
  Stage stage = Stage::kServing;
  ConnectionId id{};                          // 0: it has not sent a message yet
  const std::shared_ptr<UnsentBytes> unsent;  // shared with requests and replies under way

  std::size_t requests_in_flight = 0;
  std::size_t request_bytes_in_flight = 0;
  std::size_t counted_bytes = 0;  // of its unfinished message, in the loop's total
  std::size_t held_bytes = 0;     // of its requests that wait until it reads, in the loop's total

  bool is_reading = true;   // input is wanted
  bool is_blocked = false;  // the kernel takes no more output now
  bool is_polled = true;    // false: the poller would only repeat that the peer hung up
  std::uint32_t polled_events = EPOLLIN;
  bool has_backlog = false;       // the decoder may have more without further input
  bool is_ready = false;          // in the loop's list of connections to serve again
  bool waits_for_memory = false;  // in the loop's list of those
  bool is_send_broken = false;

  TimePoint leave_by{};  // kFlushing and kLeaving
  std::size_t waste_bytes = 0;
  std::optional<Alarms::iterator> alarm;

 private:
  Descriptor socket_;
  std::size_t received_bytes_ = 0;
  const TimePoint accepted_at_;
  std::optional<TimePoint> message_since_;
  std::optional<TimePoint> stalled_since_;
  Duration time_to_live_{};  // zero: none
  TimePoint alive_at_{};
  std::uint64_t frames_at_ping_ = 0;
};

}  // namespace larder::transport
