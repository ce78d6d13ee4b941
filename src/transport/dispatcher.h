// dispatcher.h - what the transport calls for each request; implemented above it
// (handlers/dispatch.h).
//
// The transport knows connections, frames, lanes and order. It knows no operation: it asks route()
// which lane a request takes, runs it there, and sends the reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zmtp/message.h"

namespace larder::transport {

// Counts up from 1, never reused in the life of the server: a reconnecting client is a new
// connection.
enum class ConnectionId : std::uint64_t {};

// Where a connection comes from, for log lines and /status: "10.0.0.7:51234", "[::1]:4711", or
// "pid 812, uid 1000" of a local one. Never part of a decision.
struct PeerName {
  std::string text;
};

// A peer that left is gone: its process has ended or given the connection up. One that we closed
// (it broke a limit, or did not read) may be alive, merely slow, and come back.
enum class ConnectionEnd : std::uint8_t { kPeerLeft, kClosedByUs };

using Frame = std::span<const std::byte>;

// Where a request runs. kWire is the thread that owns the socket: only what takes microseconds and
// no contended lock.
enum class Lane : std::uint8_t { kWire, kLookup, kTransfer };

inline constexpr std::size_t kLaneCount = 3;

// What the dispatcher decided about a request when it came in; opaque to the transport.
struct Route {
  static constexpr std::uint16_t kItself = 0xFFFF;

  Lane lane = Lane::kWire;
  std::uint16_t operation = 0;
  std::uint8_t release = 0;
  std::uint8_t treatment = 0;
  bool is_reconnect = false;
  std::uint16_t answers_as = kItself;  // the operation whose refusal is sent as the reply
};

// Keeps the memory behind a request's frames.
class FrameStorage {
 public:
  FrameStorage() = default;
  FrameStorage(const FrameStorage&) = delete;
  FrameStorage& operator=(const FrameStorage&) = delete;
  virtual ~FrameStorage() = default;
};

using zmtp::FrameSink;
using zmtp::PlacedFrame;

struct Request {
  ConnectionId connection{};
  std::vector<Frame>
      frames;  // uid, operation, payloads; without the identity. May be of any number, also 0
  std::vector<PlacedFrame> placed;  // payloads of which pieces went to a sink of place()
  Route route;
  std::unique_ptr<FrameStorage> storage;

  std::size_t byte_count() const {
    std::size_t total = 0;
    for (const Frame& frame : frames) {
      total += frame.size();
    }
    for (const PlacedFrame& one : placed) {
      total += one.bytes;
    }
    return total;
  }
};

// The reply's value. uid and operation frames are the transport's: it echoes the request's bytes.
// Short values come in `small`, which is copied. Others are sent from where they lie: in one piece
// (`large`) or in several (`spans`, in this order; headers and object memory under a pin, say).
// Both are the owner's memory; it is destroyed when the bytes have left or the connection is gone.
struct Reply {
  bool send = true;        // false: this request stays unanswered
  bool has_value = false;  // false: a two-frame reply
  std::vector<std::byte> small;
  std::shared_ptr<void> owner;
  std::span<const std::byte> large;  // wins over `small`
  std::vector<Frame> spans;          // wins over both
};

class Dispatcher {
 public:
  Dispatcher() = default;
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;
  virtual ~Dispatcher() = default;

  // Wire thread only, for each message in order of arrival. nullopt: dropped, and the dispatcher
  // has counted why.
  virtual std::optional<Route> route(const Request& request) = 0;

  // Wire thread, when a payload of many kilobytes begins to arrive and the frames before it are
  // known: who says which pieces of it are received where (zmtp/frame_sink.h), instead of all of it
  // into a buffer that run() copies out of. nullptr: nobody. Only what takes microseconds.
  // The sink is used on the wire thread and then belongs to the request; one that is destroyed
  // without having been run gives back what it had reserved. Not called for a connection's first
  // message.
  virtual std::unique_ptr<FrameSink> place(ConnectionId /*connection*/,
                                           std::span<const Frame> /*begun*/,
                                           std::uint64_t /*frame_bytes*/) {
    return nullptr;
  }

  // On a thread of the request's lane. Requests of one connection run one at a time in order of
  // arrival, those on kWire excepted, which run at once.
  virtual Reply run(const Request& request) noexcept = 0;

  // The safe negative, without running anything: there is no memory to queue the request. Wire
  // thread.
  virtual Reply refuse(const Request& request) noexcept = 0;

  // Wire thread. A connection is opened by its first message and closed when the peer is gone or
  // was closed, after all that was received before was routed; requests of it may still be running
  // or waiting then (they run, their replies go nowhere).
  virtual void connection_opened(ConnectionId connection, const PeerName& peer) = 0;
  virtual void connection_closed(ConnectionId connection, ConnectionEnd how) = 0;
};

}  // namespace larder::transport
