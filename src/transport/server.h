// server.h - the request port: one wire thread that owns the socket, and worker threads for the two
// slow lanes.
//
//   peer -> [wire thread: receive, Dispatcher::route] -> kWire: run and send at once
//                                                     -> kLookup / kTransfer: strand of the
//                                                     connection -> lane's workers
//   worker: Dispatcher::run -> outbox -> [wire thread: send]
//
// A strand keeps one connection's requests in order of arrival across both lanes and runs one of
// them at a time; different connections run in parallel. The lanes have threads of their own, so
// that lookups never wait behind copies. The wire thread never blocks: it sends without waiting.
// A connection whose unsent replies reach reply_bytes_max gets no further request of its strand run
// until its peer has read; a reply that still finds no room (messages, or bytes of a kWire request)
// is dropped and counted. Too many waiting requests of one connection are refused
// (Dispatcher::refuse). libzmq's types stay inside this room's .cc files and private headers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "metrics/metrics.h"
#include "transport/dispatcher.h"

namespace larder::transport {

struct ServerConfig {
  std::string host;        // "localhost" binds IPv4 and, where there is one, IPv6 loopback
  std::uint16_t port = 0;  // 0: any free one
  std::size_t lookup_workers = 2;
  std::size_t transfer_workers = 2;
  std::size_t frame_bytes_max = 64U << 20;
  std::size_t frames_max = 16;
  std::size_t requests_waiting_max = 16384;  // of one connection
  std::size_t request_bytes_waiting_max = 256U << 20;
  std::size_t reply_bytes_max = 256U
                                << 20;  // of one connection, handed to the socket and not yet sent
};

struct ServerCounts {
  std::uint64_t connections;       // open now
  std::uint64_t requests_waiting;  // in strands now
};

class Server {
 public:
  // Binds; kBusy when the port is taken (the message names it). Nothing runs before start(). The
  // dispatcher outlives the server.
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

  std::uint16_t port() const;

  ServerCounts counts() const;  // lock-free

  // True when the wire thread answered within the time: it takes part in the loop like a request.
  // Any thread.
  bool probe(std::chrono::milliseconds timeout);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace larder::transport
