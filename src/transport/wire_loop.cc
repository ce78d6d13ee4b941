#include "transport/wire_loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace larder::transport {
namespace {

using zmtp::CloseReason;

constexpr int kAcceptsPerRound = 64;

// Where there was no descriptor for a waiting peer, it is tried again when a connection of ours
// ends, or after this: others of this process may have given theirs back.
constexpr std::chrono::seconds kAcceptAgain{1};

// How long replies may take to leave when the server stops.
constexpr std::chrono::milliseconds kLinger{1000};

constexpr std::chrono::minutes kDescriptorLines{10};

Connection::Limits connection_limits(const ServerConfig& config) {
  return {{config.message_bytes_max, config.frames_max},
          std::max<std::size_t>(config.unsent_bytes_max, 1)};
}

}  // namespace

WireLoop::WireLoop(const ServerConfig& config, LoopParts parts)
    : parts_(parts),
      connection_limits_(connection_limits(config)),
      time_limits_{config.handshake_time, config.message_time, config.unread_time},
      connections_max_(config.connections_max),
      buffered_bytes_max_(config.buffered_bytes_max),
      unsent_heap_bytes_max_(config.unsent_heap_bytes_max),
      requests_in_flight_max_(config.requests_in_flight_max),
      request_bytes_in_flight_max_(config.request_bytes_in_flight_max),
      now_(clock_.now()),
      descriptor_lines_(kDescriptorLines) {}

// The round.

void WireLoop::run() {
  LARDER_CHECK(parts_.poller.add(parts_.outbox.descriptor(), EPOLLIN | EPOLLET, outbox_watch_));
  for (const auto& listener : parts_.listeners) {
    LARDER_CHECK(parts_.poller.add(listener->descriptor(), EPOLLIN, *listener));
  }
  for (Phase phase = Phase::kServe; phase != Phase::kLeave;) {
    serve_round();
    Outbox::Batch batch = parts_.outbox.take();
    act_on(batch);
    phase = batch.phase;
    if (phase != Phase::kServe) {
      stop_receiving();
    }
    if (phase == Phase::kLeave) {
      close_all();
    }
    buffered_bytes_.store(table_.buffered_bytes(), std::memory_order_relaxed);
    if (batch.is_awaited) {
      parts_.outbox.acknowledge(batch);
    }
    table_.empty_graveyard();
  }
  while (table_.size() > 0) {
    serve_round();
    table_.empty_graveyard();
  }
}

std::optional<Duration> WireLoop::wait_limit() const {
  if (table_.has_ready() || has_memory_to_release_) {
    return Duration::zero();
  }
  std::optional<TimePoint> next = table_.next_alarm();
  for (const std::optional<TimePoint>& other : {accept_again_at_, trim_at_}) {
    if (other && (!next || *other < *next)) {
      next = other;
    }
  }
  return next ? std::optional(*next - now_) : std::nullopt;
}

void WireLoop::serve_round() {
  const std::span<const epoll_event> events = parts_.poller.wait(wait_limit());
  now_ = clock_.now();
  for (const epoll_event& event : events) {
    serve_event(event);
  }
  for (Connection* const connection : table_.take_ready()) {
    take_turn(*connection);
  }
  for (Connection* const connection : table_.take_due(now_)) {
    ring(*connection);
  }
  if (accept_again_at_ && *accept_again_at_ <= now_) {
    resume_accepting();
  }
  if (trim_at_ && *trim_at_ <= now_) {
    trim_at_.reset();
    memory_.trim();
  }
  has_memory_to_release_ = memory_.release_some();
}

void WireLoop::serve_event(const epoll_event& event) {
  auto& watched = *static_cast<Watched*>(event.data.ptr);
  if (watched.kind == Watched::Kind::kListener) {
    accept_some(static_cast<Listener&>(watched));
  } else if (watched.kind == Watched::Kind::kConnection) {
    auto& connection = static_cast<Connection&>(watched);
    const bool has_hung_up = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
    if (has_hung_up && !connection.is_reading && connection.stage == Connection::Stage::kServing) {
      // The poller would say so for ever. What it sent before is read when it is its turn.
      parts_.poller.remove(connection.descriptor());
      connection.is_polled = false;
    }
    take_turn(connection);
  }
}

void WireLoop::ring(Connection& connection) {
  const std::optional<Connection::Due> due = connection.next_due(time_limits_);
  if (connection.stage == Connection::Stage::kGone || !due) {
    return;
  }
  if (due->time > now_) {
    table_.set_alarm(connection, due);
  } else if (connection.stage == Connection::Stage::kServing) {
    close(connection, due->reason);
  } else {
    bury(connection);
  }
}

void WireLoop::act_on(Outbox::Batch& batch) {
  for (Answer& answer : batch.answers) {
    settle(answer);
  }
  for (const Answer& answer : batch.answers) {
    if (Connection* const connection = table_.find(answer.connection)) {
      finish_turn(*connection);
    }
  }
  if (!batch.answers.empty()) {
    for (Connection* const connection : table_.take_memory_waiters()) {
      finish_turn(*connection);
    }
  }
}

void WireLoop::settle(Answer& answer) {
  table_.subtract_in_flight(answer.request_bytes);
  Connection* const connection = table_.find(answer.connection);
  if (connection != nullptr) {
    --connection->requests_in_flight;
    connection->request_bytes_in_flight -= answer.request_bytes;
    table_.count_held(*connection);
  }
  if (!answer.message) {
    return;
  }
  if (connection == nullptr || connection->is_send_broken) {
    parts_.counters.replies_peer_gone.add();
    return;
  }
  connection->queue.push(std::move(*answer.message));
  parts_.counters.replies.add();
}

void WireLoop::stop_receiving() {
  if (!is_receiving_) {
    return;
  }
  is_receiving_ = false;
  accept_again_at_.reset();
  parts_.listeners.clear();
  for (Connection* const connection : table_.all()) {
    if (connection->stage == Connection::Stage::kServing) {
      watch(*connection);
    }
  }
}

void WireLoop::close_all() {
  for (Connection* const connection : table_.all()) {
    if (connection->stage == Connection::Stage::kServing) {
      parts_.counters.closed(CloseReason::kShutdown).add();
      end(*connection, ConnectionEnd::kClosedByUs);
      see_off(*connection, Connection::Stage::kFlushing, now_ + kLinger);
    }
  }
}

// New peers.

void WireLoop::accept_some(Listener& listener) {
  for (int left = kAcceptsPerRound; left > 0; --left) {
    Accepted accepted = listener.accept();
    switch (accepted.outcome) {
      case Accepted::Outcome::kPeer:
        parts_.counters.accepted.add();
        admit(std::move(accepted));
        break;
      case Accepted::Outcome::kNobody:
        return;
      case Accepted::Outcome::kFailed:
        break;
      case Accepted::Outcome::kNoMemory:
        pause_accepting();
        return;
    }
  }
}

void WireLoop::admit(Accepted accepted) {
  if (table_.size() >= connections_max_) {
    parts_.counters.closed(CloseReason::kConnections).add();
    report(accepted.name, CloseReason::kConnections);
    return;
  }
  const int descriptor = accepted.socket.get();
  auto connection = std::make_unique<Connection>(
      std::move(accepted.socket),
      std::move(accepted.name),
      Connection::Shared{connection_limits_, memory_, unsent_heap_, parts_.dispatcher},
      now_);
  if (!connection->send_hello() ||
      !parts_.poller.add(descriptor, connection->polled_events, *connection)) {
    parts_.counters.closed(CloseReason::kReset).add();
    return;
  }
  Connection& added = table_.add(std::move(connection));
  table_.set_alarm(added, added.next_due(time_limits_));
}

// Those who wait go on waiting in the kernel's queue.
void WireLoop::pause_accepting() {
  parts_.counters.accept_failures.add();
  if (const auto turn = descriptor_lines_.take_turn(now_)) {
    log::error("no descriptor or memory for another connection ({} are open); new peers wait",
               table_.size());
  }
  for (const auto& listener : parts_.listeners) {
    parts_.poller.change(listener->descriptor(), 0, *listener);
  }
  accept_again_at_ = now_ + kAcceptAgain;
}

void WireLoop::resume_accepting() {
  accept_again_at_.reset();
  for (const auto& listener : parts_.listeners) {
    parts_.poller.change(listener->descriptor(), EPOLLIN, *listener);
  }
}

}  // namespace larder::transport
