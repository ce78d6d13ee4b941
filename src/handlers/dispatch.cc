#include "handlers/dispatch.h"

#include <exception>
#include <memory>

#include "codec/msgpack_reader.h"
#include "handlers/operations.h"

namespace larder::handlers {
namespace {

constexpr std::size_t kOperationFrame = 1;
constexpr std::size_t kFirstPayload = 2;

// A longer value is handed over instead of copied.
constexpr std::size_t kSmallReplyMax = 256;

constexpr protocol::Release kSpoken = protocol::Release::k050;

constexpr std::string_view kClear = "CLEAR";

protocol::Frames payloads_of(const transport::Request& request) {
  return protocol::Frames(request.frames).subspan(kFirstPayload);
}

transport::Reply to_reply(protocol::EncodedReply encoded) {
  transport::Reply reply;
  reply.send = encoded.send;
  reply.has_value = encoded.has_value;
  if (encoded.value.size() <= kSmallReplyMax) {
    reply.small.assign(encoded.value.begin(), encoded.value.end());
    return reply;
  }
  auto value = std::make_shared<codec::Bytes>(std::move(encoded.value));
  reply.large = *value;
  reply.owner = std::move(value);
  return reply;
}

const Operation& row_of(const transport::Request& request) {
  return operations()[request.route.operation];
}

protocol::Release release_of(const transport::Request& request) {
  return static_cast<protocol::Release>(request.route.release);
}

}  // namespace

Dispatch::Dispatch(Services& services) : services_(services) {
  for (const Operation& operation : operations()) {
    requests_.push_back(&services.metrics.requests_of(operation.name));
  }
}

std::optional<transport::Route> Dispatch::route(const transport::Request& request) {
  if (request.frames.size() < kFirstPayload) {
    services_.metrics.unreadable("too few frames");
    return std::nullopt;
  }
  codec::MsgpackReader reader(request.frames[kOperationFrame]);
  const Result<std::int64_t> wire_id = reader.read_int64();
  if (!wire_id || !reader.at_end()) {
    services_.metrics.unreadable("operation is not a number");
    return std::nullopt;
  }
  const Operation* const operation = find_operation(*wire_id, kSpoken);
  if (operation == nullptr) {
    services_.metrics.unreadable("unknown operation");
    return std::nullopt;
  }
  const auto row = static_cast<std::uint16_t>(operation - operations().data());
  requests_[row]->add();
  const bool refused = is_first_message(request.connection) && operation->name == kClear;
  return transport::Route{operation->lane, row, static_cast<std::uint8_t>(kSpoken), refused};
}

transport::Reply Dispatch::run(const transport::Request& request) noexcept {
  const Operation& operation = row_of(request);
  RunResult result =
      request.route.refused
          ? RunResult{operation.refusal(payloads_of(request), release_of(request)),
                      Error{Code::kInvalid, "the first message of a connection clears nothing"}}
          : run_guarded(operation, request);
  if (!result.outcome) {
    services_.metrics.refused(operation.name, result.outcome.error());
  }
  if (!result.reply.send) {
    services_.metrics.unanswered(operation.name);
  }
  return to_reply(std::move(result.reply));
}

transport::Reply Dispatch::refuse(const transport::Request& request) noexcept {
  const Operation& operation = row_of(request);
  services_.metrics.refused(
      operation.name, Error{Code::kTooLarge, "too many requests of one connection are waiting"});
  return to_reply(operation.refusal(payloads_of(request), release_of(request)));
}

void Dispatch::connection_opened(transport::ConnectionId) {}

void Dispatch::connection_closed(transport::ConnectionId connection) {
  const sessions::ConnectionId closed{static_cast<std::uint64_t>(connection)};
  heard_.erase(static_cast<std::uint64_t>(connection));
  services_.sessions.connection_closed(closed);
  services_.instances.connection_closed(closed);
}

bool Dispatch::is_first_message(transport::ConnectionId connection) {
  return heard_.insert(static_cast<std::uint64_t>(connection)).second;
}

RunResult Dispatch::run_guarded(const Operation& operation,
                                const transport::Request& request) noexcept {
  const Caller caller{sessions::ConnectionId{static_cast<std::uint64_t>(request.connection)}};
  const protocol::Frames payloads = payloads_of(request);
  RunResult result;
  try {
    result = operation.run(services_, caller, payloads, release_of(request));
  } catch (const std::bad_alloc&) {
    // A peer may ask for more memory than there is; its request fails, the others go on.
    result = {operation.refusal(payloads, release_of(request)),
              Error{Code::kNoSpace, "out of memory"}};
  }
  if (!result.outcome && operation.after_refusal != nullptr) {
    operation.after_refusal(services_, caller, payloads);
  }
  return result;
}

}  // namespace larder::handlers
