// wire_loop.h - the wire thread's loop: accepts, receives, routes, runs what is quick, sends.
//
// One loop owns its connections and shares only strands, outbox and counters, so that there can be
// several. Each round serves what the poller reports and then, once each, the connections that have
// more to do. A turn is bounded in bytes and messages, whatever its peer sends, so that every other
// one waits a few turns at most. It never blocks; an idle loop sleeps. Everything here belongs to
// the wire thread but peers().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "transport/connection_table.h"
#include "transport/dispatcher.h"
#include "transport/listener.h"
#include "transport/outbox.h"
#include "transport/peer_list.h"
#include "transport/poller.h"
#include "transport/server.h"
#include "transport/strands.h"
#include "transport/transport_counters.h"
#include "zmtp/receive_memory.h"

namespace larder::transport {

// What the loop works with; all of it outlives the loop.
struct LoopParts {
  Poller& poller;
  std::vector<std::unique_ptr<Listener>>& listeners;  // closed when the server winds down
  Dispatcher& dispatcher;
  Strands& strands;
  Outbox& outbox;
  TransportCounters& counters;
};

class WireLoop {
 public:
  WireLoop(const ServerConfig& config, LoopParts parts);
  WireLoop(const WireLoop&) = delete;
  WireLoop& operator=(const WireLoop&) = delete;
  ~WireLoop() = default;

  // Returns when the outbox says leave, with every connection closed.
  void run();

  const PeerList& peers() const { return peers_; }

  std::uint64_t connection_count() const {
    return connection_count_.load(std::memory_order_relaxed);
  }

  std::uint64_t buffered_bytes() const { return buffered_bytes_.load(std::memory_order_relaxed); }

 private:
  // The round.
  void serve_round();
  void serve_event(const epoll_event& event);
  void ring(Connection& connection);
  std::optional<Duration> wait_limit() const;
  void act_on(Outbox::Batch& batch);
  void settle(Answer& answer);
  void stop_receiving();
  void close_all();

  // New peers.
  void accept_some(Listener& listener);
  void admit(Accepted accepted);
  void pause_accepting();
  void resume_accepting();

  // A connection's turn.
  void take_turn(Connection& connection);
  void read_some(Connection& connection);
  bool receive_more(Connection& connection, std::size_t& bytes_left);
  void act_on(Connection& connection, zmtp::Event event);
  void finish_turn(Connection& connection);
  void send_some(Connection& connection);
  bool is_memory_short() const;
  std::optional<Pause> reason_to_pause(const Connection& connection) const;
  void watch(Connection& connection);
  void limit_memory();
  void limit_replies();

  // Messages.
  void accept_message(Connection& connection);
  void open(Connection& connection);
  void serve(Connection& connection, Request request);
  bool queue_request(Request& request);
  void answer(Connection& connection, const Request& request, Reply reply);

  // The end.
  void close(Connection& connection, zmtp::CloseReason reason);
  void end(Connection& connection, ConnectionEnd how);
  void see_off(Connection& connection, Connection::Stage stage, TimePoint leave_by);
  void keep_seeing_off(Connection& connection, std::uint32_t events);
  void bury(Connection& connection);
  void report(const PeerName& peer, zmtp::CloseReason reason);
  void count_failure(const char* what);

  const LoopParts parts_;
  const Connection::Limits connection_limits_;
  const TimeLimits time_limits_;
  const std::size_t connections_max_;
  const std::size_t buffered_bytes_max_;
  const std::size_t unsent_heap_bytes_max_;
  const std::size_t requests_in_flight_max_;
  const std::size_t request_bytes_in_flight_max_;

  SteadyClock clock_;
  TimePoint now_;  // when this round began
  Watched outbox_watch_{Watched::Kind::kOutbox};
  zmtp::ReceiveMemory memory_;
  const std::shared_ptr<UnsentHeap> unsent_heap_ = std::make_shared<UnsentHeap>();  // all charges'
  ConnectionTable table_;
  PeerList peers_;
  bool is_receiving_ = true;
  bool has_memory_to_release_ = false;
  std::optional<TimePoint> accept_again_at_;  // accepting is paused until then
  std::optional<TimePoint> trim_at_;          // receive memory that is kept goes back then
  std::atomic<std::uint64_t> connection_count_{0};
  std::atomic<std::uint64_t> buffered_bytes_{0};

  std::array<std::byte, 64U << 10> waste_{};  // what closed peers still send
  bool told_of_foreign_peer_ = false;
  log::LogLimiter descriptor_lines_;
  log::LogLimiter close_lines_;
  log::LogLimiter failure_lines_;
};

}  // namespace larder::transport
