#include "transport/router_loop.h"

#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace larder::transport {
namespace {

// About 80 requests: replies that workers finish meanwhile wait well under a millisecond.
constexpr std::size_t kFramesPerRound = 256;

// While connections depart the socket must be found empty twice (connections.h), so the loop comes
// back by itself.
constexpr long kDepartingPollMs = 5;
constexpr long kNoTimer = -1;

constexpr std::size_t kEventBytes = 6;  // 16 bits event, 32 bits value, in host order

std::string_view text_of(const ZmqMessage& message) {
  const Frame bytes = message.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The next event and its descriptor; false when there is none.
bool read_event(void* monitor, std::uint16_t& event, int& descriptor) {
  ZmqMessage numbers;
  while (!numbers.receive(monitor)) {
    if (errno != EINTR) {
      return false;
    }
  }
  LARDER_CHECK(numbers.bytes().size() == kEventBytes);
  std::memcpy(&event, numbers.bytes().data(), sizeof event);
  std::memcpy(&descriptor, numbers.bytes().data() + sizeof event, sizeof descriptor);
  ZmqMessage address;
  while (!address.receive(monitor) && errno == EINTR) {
  }
  return true;
}

}  // namespace

RouterLoop::RouterLoop(const ServerConfig& config, LoopParts parts)
    : parts_(std::move(parts)),
      reader_(parts_.socket.router(), config.frames_max),
      sender_(parts_.socket.router(), parts_.counters),
      connections_(
          config.reply_bytes_max,
          [outbox = parts_.outbox](ConnectionId connection) { outbox->push_room(connection); },
          [this](ConnectionId connection) { close_peer(connection); }) {}

void RouterLoop::run() {
  for (Phase phase = Phase::kServe; phase != Phase::kLeave;) {
    wait_for_work(phase == Phase::kServe);
    read_monitor();
    Outbox::Batch batch = parts_.outbox->take();
    act_on(batch);
    phase = batch.phase;
    if (phase == Phase::kLeave) {
      connections_.close_all();
    }
    if (batch.is_awaited) {
      parts_.outbox->acknowledge(batch);
    }
    if (phase == Phase::kServe) {
      receive_some();
    }
  }
}

void RouterLoop::wait_for_work(bool receiving) {
  std::array<zmq_pollitem_t, 3> items{};
  items[0].fd = parts_.outbox->descriptor();
  items[0].events = ZMQ_POLLIN;
  items[1].socket = parts_.socket.monitor();
  items[1].events = ZMQ_POLLIN;
  items[2].socket = parts_.socket.router();
  items[2].events = ZMQ_POLLIN;
  const int count = receiving ? 3 : 2;
  const bool come_back = receiving && connections_.has_departing();
  // A signal or an error ends the wait early; the round that follows finds out what there is to do.
  static_cast<void>(zmq_poll(items.data(), count, come_back ? kDepartingPollMs : kNoTimer));
}

void RouterLoop::read_monitor() {
  std::uint16_t event = 0;
  int descriptor = -1;
  while (read_event(parts_.socket.monitor(), event, descriptor)) {
    if (event == ZMQ_EVENT_ACCEPTED) {
      connections_.accepted(descriptor);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
      connections_.disconnected(descriptor);
    }
  }
}

void RouterLoop::act_on(Outbox::Batch& batch) {
  for (const ConnectionId connection : batch.with_room) {
    parts_.strands.resume(connection);
  }
  for (Answer& answer : batch.answers) {
    const Peer* peer = connections_.find(answer.connection);
    if (peer == nullptr) {
      parts_.counters.replies_peer_gone.add();
      continue;
    }
    sender_.send(peer->identity, std::move(answer));
  }
}

void RouterLoop::receive_some() {
  bool is_empty = false;
  for (std::size_t budget = kFramesPerRound; budget > 0 && !is_empty;) {
    switch (reader_.read(budget)) {
      case ReadOutcome::kMessage:
        parts_.counters.messages.add();
        accept_message(reader_.take());
        break;
      case ReadOutcome::kTooManyFrames:
        parts_.counters.messages.add();
        parts_.counters.messages_too_long.add();
        break;
      case ReadOutcome::kNoMemory:
        parts_.counters.messages.add();
        parts_.counters.messages_no_memory.add();
        break;
      case ReadOutcome::kEmpty:
        is_empty = true;
        break;
      case ReadOutcome::kClosed:
        // Only the server's owner ends the context, after this thread has left.
        LARDER_UNREACHABLE();
      case ReadOutcome::kBudgetSpent:
        break;
    }
  }
  connections_.round_ended(is_empty);
}

void RouterLoop::accept_message(ReceivedMessage message) {
  const int descriptor = message.descriptor;
  if (descriptor < 0) {
    // ZMTP 1 and 2: no client of ours since libzmq 4.0, but what stray bytes look like to libzmq.
    // Its end would not be noticed, so it must not become a connection.
    parts_.counters.messages_old_protocol.add();
    return;
  }
  try {
    const std::string_view identity = text_of(message.identity);
    Peer* peer = connections_.find(identity, descriptor);
    if (peer == nullptr) {
      read_monitor();
      peer = &open_peer(identity, descriptor);
    }
    serve(*peer, make_request(peer->id, std::move(message.frames), peer->unsent));
  } catch (const std::bad_alloc&) {
    parts_.counters.messages_no_memory.add();
  } catch (const std::exception& failure) {
    parts_.counters.messages_failed.add();
    count_failure(failure.what());
  }
}

Peer& RouterLoop::open_peer(std::string_view identity, int descriptor) {
  Peer& peer = connections_.open(identity, descriptor);
  connection_count_.store(connections_.size(), std::memory_order_relaxed);
  log::debug("connection {} opened", static_cast<std::uint64_t>(peer.id));
  parts_.dispatcher.connection_opened(peer.id);
  return peer;
}

void RouterLoop::close_peer(ConnectionId connection) {
  connection_count_.store(connections_.size(), std::memory_order_relaxed);
  log::debug("connection {} closed", static_cast<std::uint64_t>(connection));
  try {
    parts_.dispatcher.connection_closed(connection);
  } catch (const std::exception& failure) {
    count_failure(failure.what());
  }
}

void RouterLoop::serve(const Peer& peer, Request request) {
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
    answer(peer, request, parts_.dispatcher.run(request));
  } else if (!parts_.strands.push(request)) {
    parts_.counters.requests_refused.add();
    answer(peer, request, parts_.dispatcher.refuse(request));
  }
}

void RouterLoop::answer(const Peer& peer, const Request& request, Reply reply) {
  if (!reply.send) {
    return;
  }
  if (charged_bytes(reply) > 0 && peer.unsent->is_full()) {
    // Requests on the wire thread cannot be held back until the peer has read, as strands are.
    parts_.counters.replies_peer_slow.add();
    return;
  }
  sender_.send(peer.identity, frames_of(request).make_answer(peer.id, std::move(reply)));
}

void RouterLoop::count_failure(const char* what) {
  const SteadyClock clock;
  if (const auto turn = failure_lines_.take_turn(clock.now())) {
    log::error("the dispatcher threw: {} ({} more held back)", what, turn.held_back);
  }
}

}  // namespace larder::transport
