#include "transport/reply_encoder.h"

#include <memory>
#include <utility>

#include "transport/received_message.h"
#include "zmtp/frame_header.h"

namespace larder::transport {
namespace {

using zmtp::FrameKind;
using zmtp::kLongHeaderBytes;

// A longer value is lent to the socket instead of copied.
constexpr std::size_t kCopiedBytesMax = 4096;

constexpr std::size_t kFramesOfReply = 3;

std::size_t total_bytes(const std::vector<Frame>& spans) {
  std::size_t total = 0;
  for (const Frame& span : spans) {
    total += span.size();
  }
  return total;
}

// Whether the value goes into the head with everything else.
bool is_short(const Reply& reply) {
  return reply.spans.empty() && reply.large.empty() && reply.small.size() <= kCopiedBytesMax;
}

// The pieces of a value that is not short, all under `owner`.
std::vector<Frame> lend_value(Reply& reply) {
  if (!reply.spans.empty()) {
    return std::move(reply.spans);
  }
  if (!reply.large.empty()) {
    return {reply.large};
  }
  auto owner = std::make_shared<std::vector<std::byte>>(std::move(reply.small));
  const Frame bytes = *owner;
  reply.owner = std::move(owner);
  return {bytes};
}

void append(std::vector<std::byte>& to, Frame bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

void append_frame_start(std::vector<std::byte>& to, FrameKind kind, std::size_t body_bytes) {
  append(to, zmtp::write_frame_header(kind, body_bytes).span());
}

}  // namespace

OutgoingMessage encode_reply(const Request& request, Reply reply) {
  const Frame uid = request.frames[0];
  const Frame operation = request.frames[1];
  const bool is_lent = reply.has_value && !is_short(reply);
  const bool is_made_here = reply.spans.empty();  // spans are objects where they lie
  OutgoingMessage message;
  if (is_lent) {
    message.spans = lend_value(reply);
    message.owner = std::move(reply.owner);
  }
  const std::size_t lent_bytes = total_bytes(message.spans);
  message.head.reserve(uid.size() + operation.size() + kFramesOfReply * kLongHeaderBytes +
                       reply.small.size());
  append_frame_start(message.head, FrameKind::kMore, uid.size());
  append(message.head, uid);
  append_frame_start(
      message.head, reply.has_value ? FrameKind::kMore : FrameKind::kLast, operation.size());
  append(message.head, operation);
  if (is_lent) {
    append_frame_start(message.head, FrameKind::kLast, lent_bytes);
  } else if (reply.has_value) {
    append_frame_start(message.head, FrameKind::kLast, reply.small.size());
    append(message.head, reply.small);
  }
  message.charge =
      Charge(unsent_of(request), message.head.size() + lent_bytes, is_made_here ? 0 : lent_bytes);
  return message;
}

}  // namespace larder::transport
