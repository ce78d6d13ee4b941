// server.h - the request port: one wire thread that owns the sockets, and worker threads for the
// two slow lanes.
//
//   peer -> [wire thread: receive, Dispatcher::route] -> kWire: run and send at once
//                                                     -> kLookup / kTransfer: strand of the
//                                                     connection -> lane's workers
//   worker: Dispatcher::run -> outbox -> [wire thread: send]
//
// A strand keeps one connection's requests in order of arrival across both lanes and runs one of
// them at a time; different connections run in parallel. The lanes have threads of their own, so
// that lookups never wait behind copies. The wire thread never blocks.
//
// A peer that sends faster than it is served, or does not read its replies, is not read until there
// is room again: its own queue fills, and nobody else's. A peer that breaks the protocol, exceeds a
// limit of size or takes too long is closed, plainly, and may come back. No reply is ever dropped
// while its peer is there.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "metrics/metrics.h"
#include "transport/dispatcher.h"
#include "transport/peer_list.h"

namespace larder::transport {

struct ServerConfig {
  std::string host;        // see listener.h
  std::uint16_t port = 0;  // 0: any free one
  std::size_t lookup_workers = 2;
  std::size_t transfer_workers = 2;

  // Of all connections together.
  std::size_t connections_max = 8192;
  std::size_t buffered_bytes_max = std::size_t{1} << 30;  // messages that are received or run
  std::size_t unsent_heap_bytes_max = 512U << 20;  // replies not taken by the kernel, but for spans

  // Of one connection.
  std::size_t message_bytes_max = 64U << 20;
  std::size_t frames_max = 256;  // of one message
  std::size_t requests_in_flight_max = 16384;
  std::size_t request_bytes_in_flight_max = 256U << 20;
  std::size_t unsent_bytes_max = 256U << 20;  // replies that the kernel has not taken
  std::chrono::milliseconds handshake_time{10'000};
  std::chrono::milliseconds message_time{300'000};
  std::chrono::milliseconds unread_time{60'000};
};

struct ServerCounts {
  std::uint64_t connections;       // open now, of peers that have sent a message
  std::uint64_t requests_waiting;  // in strands now
  std::uint64_t buffered_bytes;    // of requests being received, waiting or running
};

class Server {
 public:
  // Binds; kBusy when the port is taken (the message names who has it). Nothing runs before
  // start(). The dispatcher outlives the server.
  static Result<std::unique_ptr<Server>> create(const ServerConfig& config,
                                                Dispatcher& dispatcher,
                                                metrics::Registry& metrics);

  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();  // stop()

  void start();

  // Stops receiving, runs what is waiting (up to `drain`), sends the replies, joins all threads.
  // Idempotent; not from a thread of the server.
  void stop(std::chrono::milliseconds drain = std::chrono::seconds(3));

  std::uint16_t port() const;  // 0: a local socket

  // Where clients find it: "tcp://localhost:5555".
  std::string endpoint() const;

  ServerCounts counts() const;  // lock-free

  // Who is connected, the longest connected first, at most so many. Any thread.
  std::vector<ConnectedPeer> peers(std::size_t count_max) const;

  // True when the wire thread answered within the time: it takes part in the loop like a request.
  // Any thread.
  bool probe(std::chrono::milliseconds timeout);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace larder::transport
