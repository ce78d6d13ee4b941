#include "transport/connection.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace larder::transport {
namespace {

using ReadOutcome = Connection::ReadOutcome;

ReadOutcome outcome_of(ssize_t received, std::size_t room) {
  if (received > 0) {
    return static_cast<std::size_t>(received) == room ? ReadOutcome::kFilled : ReadOutcome::kSome;
  }
  if (received == 0) {
    return ReadOutcome::kEnd;
  }
  return errno == EAGAIN ? ReadOutcome::kNothing : ReadOutcome::kBroken;
}

ssize_t receive_into(int socket, std::span<std::byte> room) {
  ssize_t received = -1;
  do {
    received = recv(socket, room.data(), room.size(), MSG_DONTWAIT);
  } while (received < 0 && errno == EINTR);
  return received;
}

}  // namespace

Connection::Connection(Descriptor socket, PeerName name, const Shared& shared, TimePoint now)
    : Watched(Kind::kConnection),
      peer(std::move(name)),
      sinks_(*this, shared.dispatcher),
      decoder(shared.limits.decoder, shared.memory, &sinks_),
      unsent(std::make_shared<UnsentBytes>(shared.limits.unsent_bytes_max, shared.unsent_heap)),
      socket_(std::move(socket)),
      accepted_at_(now) {}

std::unique_ptr<FrameSink> Connection::Sinks::find(std::span<const Frame> begun,
                                                   std::uint64_t body_bytes) {
  if (connection_.id == ConnectionId{}) {
    return nullptr;
  }
  return dispatcher_.place(connection_.id, begun, body_bytes);
}

bool Connection::send_hello() {
  const std::span<const std::byte> hello = zmtp::server_hello();
  const ssize_t sent = ::send(descriptor(), hello.data(), hello.size(), MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(hello.size());
}

ReadOutcome Connection::receive(std::size_t bytes_max) {
  const std::span<std::byte> room = decoder.writable(bytes_max);
  const ssize_t received = receive_into(descriptor(), room);
  if (received > 0) {
    decoder.received(static_cast<std::size_t>(received));
    received_bytes_ += static_cast<std::size_t>(received);
  }
  return outcome_of(received, room.size());
}

ReadOutcome Connection::discard(std::span<std::byte> to) {
  const ssize_t received = receive_into(descriptor(), to);
  waste_bytes += received > 0 ? static_cast<std::size_t>(received) : 0;
  return outcome_of(received, to.size());
}

SendQueue::Outcome Connection::send(std::size_t budget, TimePoint now) {
  const std::uint64_t before = queue.written_bytes();
  const SendQueue::Outcome outcome = queue.write_to(descriptor(), budget);
  if (outcome != SendQueue::Outcome::kBlocked) {
    stalled_since_.reset();
  } else if (!stalled_since_ || queue.written_bytes() != before) {
    stalled_since_ = now;
  }
  return outcome;
}

void Connection::shut_down_sending() {
  shutdown(descriptor(), SHUT_WR);
}

void Connection::note_reading(bool had_message, TimePoint now) {
  if (!decoder.is_handshaken() || !decoder.is_in_message()) {
    message_since_.reset();
  } else if (!message_since_ || had_message) {
    message_since_ = now;
  }
  if (decoder.frame_count() != frames_at_ping_) {
    time_to_live_ = Duration::zero();
  }
}

void Connection::note_ping(TimePoint now) {
  constexpr std::chrono::milliseconds kTenth{100};
  time_to_live_ = kTenth * decoder.ping().ttl_tenths;
  alive_at_ = now;
  frames_at_ping_ = decoder.frame_count();
}

void Connection::restart_reading_times(TimePoint now) {
  if (message_since_) {
    message_since_ = now;
  }
  alive_at_ = now;
}

std::optional<Connection::Due> Connection::next_due(const TimeLimits& limits) const {
  std::optional<Due> next;
  const auto consider = [&next](TimePoint time, zmtp::CloseReason reason) {
    if (!next || time < next->time) {
      next = Due{time, reason};
    }
  };
  if (stage != Stage::kServing) {
    return Due{leave_by, zmtp::CloseReason::kShutdown};
  }
  if (!decoder.is_handshaken()) {
    consider(accepted_at_ + limits.handshake, zmtp::CloseReason::kHandshakeTime);
  }
  if (message_since_ && is_reading) {
    consider(*message_since_ + limits.message, zmtp::CloseReason::kMessageTime);
  }
  if (time_to_live_ > Duration::zero() && is_reading) {
    consider(alive_at_ + time_to_live_, zmtp::CloseReason::kTimeToLive);
  }
  if (stalled_since_) {
    consider(*stalled_since_ + limits.unread, zmtp::CloseReason::kUnreadTime);
  }
  return next;
}

}  // namespace larder::transport
