// The wire loop's turns: what one connection has received is decoded, routed, run or queued, and
// what waits for it is sent.
#include <exception>
#include <new>
#include <utility>

#include "base/check.h"
#include "transport/received_message.h"
#include "transport/reply_encoder.h"
#include "transport/wire_loop.h"

namespace larder::transport {
namespace {

using zmtp::CloseReason;

// What one connection may do before the others have their turn: about 0.1 ms each.
constexpr std::size_t kBytesPerTurn = 512U << 10;
constexpr std::size_t kMessagesPerTurn = 64;

// How long receive buffers are kept for the next large message.
constexpr std::chrono::seconds kTrimAfter{10};

// Of the bytes that all connections may have buffered: from where on something is done about it,
// and how much of it has to be running for waiting to be of use.
constexpr std::size_t mark_of(std::size_t bytes_max) {
  return bytes_max / 4 * 3;
}

constexpr std::size_t worth_waiting_for(std::size_t bytes_max) {
  return bytes_max / 16;
}

}  // namespace

void WireLoop::take_turn(Connection& connection) {
  switch (connection.stage) {
    case Connection::Stage::kServing:
      try {
        read_some(connection);
      } catch (const std::bad_alloc&) {
        close(connection, CloseReason::kNoMemory);
      } catch (const std::exception& failure) {
        // Only place() can throw here, in the middle of a frame.
        count_failure(failure.what());
        close(connection, CloseReason::kNoMemory);
      }
      finish_turn(connection);
      break;
    case Connection::Stage::kFlushing:
    case Connection::Stage::kLeaving:
      see_off(connection, connection.stage, connection.leave_by);
      break;
    case Connection::Stage::kGone:
      break;
  }
}

void WireLoop::read_some(Connection& connection) {
  std::size_t bytes_left = kBytesPerTurn;
  std::size_t messages_left = kMessagesPerTurn;
  bool had_message = false;
  connection.has_backlog = true;
  while (connection.stage == Connection::Stage::kServing && messages_left > 0 && is_receiving_ &&
         !reason_to_pause(connection)) {
    const zmtp::Event event = connection.decoder.next();
    if (event == zmtp::Event::kNeedsInput) {
      connection.has_backlog = false;
      if (!receive_more(connection, bytes_left)) {
        break;
      }
      connection.has_backlog = true;
      continue;
    }
    had_message = had_message || event == zmtp::Event::kMessage;
    --messages_left;
    act_on(connection, event);
  }
  if (connection.stage == Connection::Stage::kServing) {
    connection.note_reading(had_message, now_);
  }
}

// False when there is nothing more to decode in this turn.
bool WireLoop::receive_more(Connection& connection, std::size_t& bytes_left) {
  if (bytes_left == 0) {
    return false;
  }
  const std::size_t before = connection.received_bytes();
  const Connection::ReadOutcome outcome = connection.receive(bytes_left);
  const std::size_t received = connection.received_bytes() - before;
  switch (outcome) {
    case Connection::ReadOutcome::kFilled:
      bytes_left -= received;
      return true;
    case Connection::ReadOutcome::kSome:
      bytes_left = 0;  // the kernel has no more
      return true;
    case Connection::ReadOutcome::kNothing:
      return false;
    case Connection::ReadOutcome::kEnd:
      close(connection, CloseReason::kLeft);
      return false;
    case Connection::ReadOutcome::kBroken:
      close(connection, CloseReason::kReset);
      return false;
  }
  LARDER_UNREACHABLE();
}

void WireLoop::act_on(Connection& connection, zmtp::Event event) {
  switch (event) {
    case zmtp::Event::kMessage:
      accept_message(connection);
      break;
    case zmtp::Event::kPing:
      if (!connection.is_send_broken) {
        connection.queue.push_pong(connection.decoder.ping().context, connection.unsent);
      }
      connection.note_ping(now_);
      break;
    case zmtp::Event::kIgnored:
      parts_.counters.commands_ignored.add();
      break;
    case zmtp::Event::kRefused:
      close(connection, connection.decoder.reason());
      break;
    case zmtp::Event::kHandshaken:
    case zmtp::Event::kNeedsInput:
      break;
  }
}

void WireLoop::finish_turn(Connection& connection) {
  if (connection.stage != Connection::Stage::kServing) {
    return;
  }
  try {
    connection.decoder.rest();
  } catch (const std::bad_alloc&) {
    close(connection, CloseReason::kNoMemory);
    return;
  }
  send_some(connection);
  table_.count_unfinished(connection);
  table_.count_held(connection);
  if (connection.counted_bytes > zmtp::kBlockBytes) {
    trim_at_ = now_ + kTrimAfter;
  }
  watch(connection);
  table_.set_alarm(connection, connection.next_due(time_limits_));
  limit_memory();
  limit_replies();
}

void WireLoop::send_some(Connection& connection) {
  if (connection.queue.is_empty()) {
    return;
  }
  const SendQueue::Outcome outcome = connection.send(kBytesPerTurn, now_);
  connection.is_blocked = outcome == SendQueue::Outcome::kBlocked;
  if (outcome == SendQueue::Outcome::kMore) {
    table_.make_ready(connection);
  } else if (outcome == SendQueue::Outcome::kBroken) {
    // Not the end of reading: what the peer sent before may still be there.
    connection.is_send_broken = true;
    connection.queue.clear();
  }
}

// Large messages wait while requests that run hold much of the memory: those end by themselves. For
// what peers hold by not reading, or not sending the rest, nobody waits.
bool WireLoop::is_memory_short() const {
  return table_.buffered_bytes() > mark_of(buffered_bytes_max_) &&
         table_.running_bytes() > worth_waiting_for(buffered_bytes_max_);
}

std::optional<Pause> WireLoop::reason_to_pause(const Connection& connection) const {
  const bool has_to_wait = connection.counted_bytes > zmtp::kBlockBytes && is_memory_short();
  return connection.requests_in_flight >= requests_in_flight_max_ ? std::optional(Pause::kRequests)
         : connection.request_bytes_in_flight >= request_bytes_in_flight_max_
             ? std::optional(Pause::kRequestBytes)
         : connection.unsent->is_full() ? std::optional(Pause::kUnread)
         : has_to_wait                  ? std::optional(Pause::kMemory)
                                        : std::nullopt;
}

// Tells the poller what the connection waits for now.
void WireLoop::watch(Connection& connection) {
  const std::optional<Pause> pause = reason_to_pause(connection);
  const bool is_reading = is_receiving_ && !pause;
  if (pause && connection.is_reading) {
    parts_.counters.paused(*pause).add();
  }
  if (pause == Pause::kMemory) {
    table_.wait_for_memory(connection);
  }
  if (is_reading && !connection.is_reading) {
    connection.restart_reading_times(now_);
  }
  if (is_reading && connection.has_backlog) {
    table_.make_ready(connection);
  }
  connection.is_reading = is_reading;
  const std::uint32_t events = (is_reading ? std::uint32_t{EPOLLIN} : 0) |
                               (connection.is_blocked ? std::uint32_t{EPOLLOUT} : 0);
  if (!connection.is_polled) {
    if (!is_reading) {
      return;
    }
    LARDER_CHECK(parts_.poller.add(connection.descriptor(), events, connection));
    connection.is_polled = true;
  } else if (events != connection.polled_events) {
    parts_.poller.change(connection.descriptor(), events, connection);
  }
  connection.polled_events = events;
}

// Closes the peers that hold most, until all together hold what is allowed. Whose requests wait
// because it does not read is not let go up to there: the rest would be too little for the others.
void WireLoop::limit_memory() {
  while (table_.stuck_bytes() > mark_of(buffered_bytes_max_)) {
    Connection* const largest = table_.largest_stuck();
    if (largest == nullptr || largest->held_bytes == 0) {
      break;
    }
    close(*largest, CloseReason::kUnreadBytes);
  }
  while (table_.buffered_bytes() > buffered_bytes_max_) {
    Connection* const largest = table_.largest_unfinished();
    if (largest == nullptr) {
      break;
    }
    close(*largest, CloseReason::kBufferedBytes);
  }
  if (!is_memory_short()) {
    for (Connection* const waiter : table_.take_memory_waiters()) {
      table_.make_ready(*waiter);
    }
  }
}

// The same for replies that nobody reads, of which few bytes of requests can make many.
void WireLoop::limit_replies() {
  if (unsent_heap_->value() <= unsent_heap_bytes_max_) {
    return;
  }
  while (Connection* const largest = table_.largest_unread(unsent_heap_bytes_max_)) {
    if (largest->stage == Connection::Stage::kServing) {
      close(*largest, CloseReason::kUnreadBytes);
    } else {
      bury(*largest);  // it was closed for something else and is not worth the wait
    }
  }
}

void WireLoop::accept_message(Connection& connection) {
  parts_.counters.messages.add();
  try {
    if (connection.id == ConnectionId{}) {
      open(connection);
    }
    serve(connection,
          make_request(connection.id, connection.decoder.take_message(), connection.unsent));
  } catch (const std::bad_alloc&) {
    parts_.counters.messages_no_memory.add();
  } catch (const std::exception& failure) {
    parts_.counters.messages_failed.add();
    count_failure(failure.what());
  }
}

void WireLoop::open(Connection& connection) {
  table_.assign_id(connection);
  connection.unsent->set_on_room(
      [&strands = parts_.strands, id = connection.id] { strands.resume(id); });
  peers_.add(connection.id, connection.peer);
  connection_count_.store(peers_.size(), std::memory_order_relaxed);
  log::debug("connection {} opened by {} ({})",
             static_cast<std::uint64_t>(connection.id),
             connection.peer.text,
             connection.decoder.peer().socket_type);
  parts_.dispatcher.connection_opened(connection.id, connection.peer);
}

void WireLoop::serve(Connection& connection, Request request) {
  if (request.frames.size() >= 2 &&
      request.frames[0].size() + request.frames[1].size() > kEchoedBytesMax) {
    parts_.counters.messages_echo_too_long.add();
    return;
  }
  const std::optional<Route> route = parts_.dispatcher.route(request);
  if (!route) {
    return;
  }
  if (request.frames.size() < 2) {
    // There is nothing to echo; the dispatcher should have dropped it.
    parts_.counters.messages_failed.add();
    return;
  }
  request.route = *route;
  if (route->lane == Lane::kWire) {
    answer(connection, request, parts_.dispatcher.run(request));
    return;
  }
  const std::size_t bytes = request.byte_count();
  if (!queue_request(request)) {
    parts_.counters.requests_refused.add();
    answer(connection, request, parts_.dispatcher.refuse(request));
    return;
  }
  ++connection.requests_in_flight;
  connection.request_bytes_in_flight += bytes;
  table_.add_in_flight(bytes);
  table_.count_held(connection);
}

bool WireLoop::queue_request(Request& request) {
  try {
    leave_blocks(request);
    return parts_.strands.push(request);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void WireLoop::answer(Connection& connection, const Request& request, Reply reply) {
  if (!reply.send) {
    return;
  }
  if (connection.is_send_broken) {
    parts_.counters.replies_peer_gone.add();
    return;
  }
  connection.queue.push(encode_reply(request, std::move(reply)));
  parts_.counters.replies.add();
}

}  // namespace larder::transport
