// router_loop.h - the wire thread's loop: receives, routes, runs what is quick, sends.
//
// It waits in zmq_poll for messages, for the outbox and for the monitor, without a timer: an idle
// server sleeps. Each round sends what the workers finished and then receives a bounded number of
// frames, so that replies and probes get their turn under any load. Everything here belongs to the
// wire thread, connection_count() excepted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/log.h"
#include "transport/connections.h"
#include "transport/dispatcher.h"
#include "transport/message_reader.h"
#include "transport/outbox.h"
#include "transport/received_frames.h"
#include "transport/reply_sender.h"
#include "transport/router_socket.h"
#include "transport/server.h"
#include "transport/strands.h"
#include "transport/transport_counters.h"

namespace larder::transport {

// What the loop works with; all of it outlives the loop.
struct LoopParts {
  RouterSocket& socket;
  Dispatcher& dispatcher;
  Strands& strands;
  std::shared_ptr<Outbox> outbox;  // shared with replies under way
  TransportCounters& counters;
};

class RouterLoop {
 public:
  RouterLoop(const ServerConfig& config, LoopParts parts);
  RouterLoop(const RouterLoop&) = delete;
  RouterLoop& operator=(const RouterLoop&) = delete;
  ~RouterLoop() = default;

  // Returns when the outbox says leave, with every connection closed.
  void run();

  std::uint64_t connection_count() const {
    return connection_count_.load(std::memory_order_relaxed);
  }

 private:
  void wait_for_work(bool receiving);
  void read_monitor();
  void act_on(Outbox::Batch& batch);
  void receive_some();
  void accept_message(ReceivedMessage message);
  Peer& open_peer(std::string_view identity, int descriptor);
  void serve(const Peer& peer, Request request);
  void answer(const Peer& peer, const Request& request, Reply reply);
  void send(const Peer& peer, Answer answer);
  void close_peer(ConnectionId connection);
  void count_failure(const char* what);

  const LoopParts parts_;
  MessageReader reader_;
  ReplySender sender_;
  Connections connections_;
  std::atomic<std::uint64_t> connection_count_{0};
  log::LogLimiter failure_lines_;
};

}  // namespace larder::transport
