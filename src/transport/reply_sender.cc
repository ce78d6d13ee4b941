#include "transport/reply_sender.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "base/check.h"

namespace larder::transport {
namespace {

std::span<const std::byte> value_of(const Reply& reply) {
  return reply.large.empty() ? std::span<const std::byte>(reply.small) : reply.large;
}

// What must live until libzmq is done with the bytes of a reply.
struct Lent {
  Reply reply;
  Charge charge;
  // libzmq's own synchronisation is invisible to the thread sanitizer; this makes the hand-over
  // visible.
  std::atomic<bool> is_lent{false};
};

extern "C" void take_back(void* /*bytes*/, void* hint) noexcept {
  const std::unique_ptr<Lent> lent(static_cast<Lent*>(hint));
  LARDER_CHECK(lent->is_lent.load(std::memory_order_acquire));
}

ZmqMessage make_value(Reply reply, Charge charge) {
  if (value_of(reply).size() <= kCopiedBytesMax) {
    return ZmqMessage(value_of(reply));
  }
  auto lent = std::make_unique<Lent>();
  lent->reply = std::move(reply);
  lent->charge = std::move(charge);
  lent->is_lent.store(true, std::memory_order_release);
  ZmqMessage message(value_of(lent->reply), &take_back, lent.get());
  // From here on libzmq owns it: take_back() makes it a unique_ptr again.
  static_cast<void>(lent.release());
  return message;
}

bool send_frame(void* router, ZmqMessage& frame, bool more) {
  while (!frame.send(router, more)) {
    if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

// After the identity frame was taken the rest is: libzmq counts a message against the high-water
// mark at its last frame, and discards by itself what is for a peer that has just gone. Anything
// else would leave the socket in the middle of a message and the next reply would be read as its
// tail.
void send_rest(void* router, ZmqMessage& frame, bool more) {
  LARDER_CHECK(send_frame(router, frame, more) || errno == ETERM);
}

}  // namespace

std::size_t charged_bytes(const Reply& reply) {
  const std::size_t bytes = reply.has_value ? value_of(reply).size() : 0;
  return bytes <= kCopiedBytesMax ? 0 : bytes;
}

void ReplySender::send(std::string_view identity, Answer answer) {
  const bool has_value = answer.reply.has_value;
  ZmqMessage to;
  ZmqMessage value;
  try {
    to = ZmqMessage(std::as_bytes(std::span(identity)));
    if (has_value) {
      value = make_value(std::move(answer.reply), std::move(answer.charge));
    }
  } catch (const std::bad_alloc&) {
    counters_.replies_no_memory.add();
    return;
  }
  if (!send_frame(router_, to, true)) {
    (errno == EAGAIN ? counters_.replies_peer_slow : counters_.replies_peer_gone).add();
    return;
  }
  send_rest(router_, answer.uid, true);
  send_rest(router_, answer.operation, has_value);
  if (has_value) {
    send_rest(router_, value, false);
  }
  counters_.replies.add();
}

}  // namespace larder::transport
