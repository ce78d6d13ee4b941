// How the wire loop's connections end.
#include <algorithm>
#include <exception>
#include <utility>

#include "transport/wire_loop.h"

namespace larder::transport {
namespace {

using zmtp::CloseReason;

// How long a peer that we close may take to notice, and how much of what it still sends is read.
constexpr std::chrono::milliseconds kFarewell{300};
constexpr std::size_t kFarewellBytesMax = 4U << 20;

}  // namespace

void WireLoop::close(Connection& connection, CloseReason reason) {
  parts_.counters.closed(reason).add();
  report(connection.peer, reason);
  const bool was_client = connection.decoder.is_handshaken() || connection.id != ConnectionId{};
  const bool has_left = reason == CloseReason::kLeft || reason == CloseReason::kReset;
  send_some(connection);
  end(connection, has_left ? ConnectionEnd::kPeerLeft : ConnectionEnd::kClosedByUs);
  if (reason == CloseReason::kReset || reason == CloseReason::kUnreadTime ||
      reason == CloseReason::kUnreadBytes) {
    connection.queue.clear();
  }
  if (!connection.queue.is_empty()) {
    see_off(connection, Connection::Stage::kFlushing, now_ + kFarewell);
  } else if (was_client && !has_left) {
    see_off(connection, Connection::Stage::kLeaving, now_ + kFarewell);
  } else {
    bury(connection);
  }
}

// For the dispatcher it is over; requests of it may still run.
void WireLoop::end(Connection& connection, ConnectionEnd how) {
  connection.decoder.drop_all();
  table_.count_unfinished(connection);
  if (connection.id == ConnectionId{}) {
    return;
  }
  table_.forget_id(connection);
  peers_.remove(connection.id);
  connection_count_.store(peers_.size(), std::memory_order_relaxed);
  log::debug("connection {} closed", static_cast<std::uint64_t>(connection.id));
  try {
    parts_.dispatcher.connection_closed(connection.id, how);
  } catch (const std::exception& failure) {
    count_failure(failure.what());
  }
}

// What waits is sent, our half is shut down, and the peer's end is awaited: a plain close would
// reset the connection where input is unread, and take replies away that the kernel has accepted.
void WireLoop::see_off(Connection& connection, Connection::Stage stage, TimePoint leave_by) {
  const bool is_new = connection.stage != stage;
  connection.stage = stage;
  connection.leave_by = leave_by;
  if (stage == Connection::Stage::kFlushing) {
    send_some(connection);
    if (!connection.queue.is_empty()) {
      keep_seeing_off(connection, connection.is_blocked ? std::uint32_t{EPOLLOUT} : 0);
      return;
    }
    see_off(connection, Connection::Stage::kLeaving, std::min(leave_by, now_ + kFarewell));
    return;
  }
  if (is_new) {
    connection.shut_down_sending();
  }
  const Connection::ReadOutcome outcome = connection.discard(waste_);
  if (outcome == Connection::ReadOutcome::kEnd || outcome == Connection::ReadOutcome::kBroken ||
      connection.waste_bytes > kFarewellBytesMax) {
    bury(connection);
    return;
  }
  keep_seeing_off(connection, EPOLLIN);
}

void WireLoop::keep_seeing_off(Connection& connection, std::uint32_t events) {
  if (!connection.is_polled) {
    bury(connection);  // it has hung up already
    return;
  }
  if (events != connection.polled_events) {
    parts_.poller.change(connection.descriptor(), events, connection);
    connection.polled_events = events;
  }
  table_.set_alarm(connection, connection.next_due(time_limits_));
}

void WireLoop::bury(Connection& connection) {
  table_.bury(connection);
  if (accept_again_at_ && is_receiving_) {
    resume_accepting();
  }
}

void WireLoop::report(const PeerName& peer, CloseReason reason) {
  if (zmtp::is_foreign(reason)) {
    if (!std::exchange(told_of_foreign_peer_, true)) {
      log::info("closed a connection of {}: it does not speak ZMTP 3 ({}); others are only counted",
                peer.text,
                zmtp::to_string(reason));
    }
    return;
  }
  if (reason == CloseReason::kLeft || reason == CloseReason::kReset) {
    return;
  }
  if (const auto turn = close_lines_.take_turn(now_)) {
    log::warning("closed a connection of {}: {} ({} more lines held back)",
                 peer.text,
                 zmtp::to_string(reason),
                 turn.held_back);
  }
}

void WireLoop::count_failure(const char* what) {
  if (const auto turn = failure_lines_.take_turn(now_)) {
    log::error("the dispatcher threw: {} ({} more held back)", what, turn.held_back);
  }
}

}  // namespace larder::transport
