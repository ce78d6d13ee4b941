#include "transport/message_reader.h"

#include <cerrno>
#include <new>
#include <utility>

namespace larder::transport {

ReadOutcome MessageReader::read(std::size_t& budget) {
  while (budget > 0) {
    ZmqMessage frame;
    if (!frame.receive(socket_)) {
      if (errno == EINTR) {
        continue;
      }
      return errno == EAGAIN ? ReadOutcome::kEmpty : ReadOutcome::kClosed;
    }
    --budget;
    const bool has_more = frame.has_more();
    keep(std::move(frame));
    if (!has_more) {
      return finish();
    }
  }
  return ReadOutcome::kBudgetSpent;
}

ReceivedMessage MessageReader::take() {
  return std::exchange(message_, ReceivedMessage{});
}

void MessageReader::keep(ZmqMessage frame) {
  if (position_++ == 0) {
    message_.identity = std::move(frame);
    return;
  }
  if (position_ == 2) {
    // Not from the identity frame: libzmq 4.3.4 leaves it without when zmq_poll has looked at the
    // socket before.
    message_.descriptor = frame.descriptor();
  }
  if (outcome_ != ReadOutcome::kMessage) {
    return;
  }
  if (message_.frames.size() == frames_max_) {
    drop(ReadOutcome::kTooManyFrames);
    return;
  }
  try {
    message_.frames.push_back(std::move(frame));
  } catch (const std::bad_alloc&) {
    drop(ReadOutcome::kNoMemory);
  }
}

void MessageReader::drop(ReadOutcome why) {
  outcome_ = why;
  message_.frames.clear();
}

ReadOutcome MessageReader::finish() {
  position_ = 0;
  return std::exchange(outcome_, ReadOutcome::kMessage);
}

}  // namespace larder::transport
