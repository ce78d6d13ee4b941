#include "handlers/dispatch.h"

#include <fmt/format.h>

#include <exception>
#include <memory>

#include "handlers/operations.h"

namespace larder::handlers {
namespace {

constexpr std::size_t kFirstPayload = 2;

// COMMIT_STORE: the frames in front of its data.
constexpr std::string_view kCommitStore = "COMMIT_STORE";
constexpr std::size_t kOperationFrame = 1;
constexpr std::size_t kInstanceFrame = 3;
constexpr std::size_t kDataFrame = 4;

// A longer value is handed over instead of copied.
constexpr std::size_t kSmallReplyMax = 256;

protocol::Frames payloads_of(const transport::Request& request) {
  return protocol::Frames(request.frames).subspan(kFirstPayload);
}

// The value's own bytes, and what keeps the lent ones.
struct LentValue {
  codec::Bytes value;
  std::shared_ptr<void> lent_owner;  // of the reply that this was
};

void lend(protocol::EncodedReply encoded, transport::Reply& reply) {
  auto owner = std::make_shared<LentValue>();
  owner->value = std::move(encoded.value);
  owner->lent_owner = std::move(encoded.lent_owner);
  const transport::Frame value(owner->value);
  reply.spans.reserve(encoded.lent.size() + 2);
  reply.spans.push_back(value.first(encoded.lent_at));
  reply.spans.insert(reply.spans.end(), encoded.lent.begin(), encoded.lent.end());
  reply.spans.push_back(value.subspan(encoded.lent_at));
  reply.owner = std::move(owner);
}

transport::Reply to_reply(protocol::EncodedReply encoded) {
  transport::Reply reply;
  reply.send = encoded.send;
  reply.has_value = encoded.has_value;
  if (!encoded.lent.empty()) {
    lend(std::move(encoded), reply);
    return reply;
  }
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

Treatment treatment_of(const transport::Request& request) {
  return static_cast<Treatment>(request.route.treatment);
}

sessions::ConnectionId connection_of(const transport::Request& request) {
  return sessions::ConnectionId{static_cast<std::uint64_t>(request.connection)};
}

protocol::EncodedReply refusal_of(const transport::Request& request) {
  const bool is_own = request.route.answers_as == transport::Route::kItself;
  const Operation& operation = is_own ? row_of(request) : operations()[request.route.answers_as];
  return operation.refusal(payloads_of(request), release_of(request));
}

// All that place() gives out.
Landing* landing_of(const transport::Request& request) {
  return request.placed.empty() ? nullptr
                                : static_cast<Landing*>(request.placed.front().sink.get());
}

}  // namespace

RunResult run_guarded(const Operation& operation,
                      Services& services,
                      const Caller& caller,
                      protocol::Frames payloads,
                      protocol::Release release) noexcept {
  RunResult result;
  try {
    result = operation.run(services, caller, payloads, release);
  } catch (const std::bad_alloc&) {
    // A peer may ask for more memory than there is; its request fails, the others go on.
    result = {operation.refusal(payloads, release), Error{Code::kNoSpace, "out of memory"}};
  } catch (const std::exception& thrown) {
    result = {operation.refusal(payloads, release),
              Error{Code::kSystem, fmt::format("a bug: {}", thrown.what())}};
  }
  if (!result.outcome && operation.after_refusal != nullptr) {
    operation.after_refusal(services, caller, payloads, release);
  }
  return result;
}

Dispatch::Dispatch(Services& services, Dialects& dialects)
    : services_(services), dialects_(dialects), landings_(services.pool) {
  for (const Operation& operation : operations()) {
    requests_.push_back(&services.metrics.requests_of(operation.name));
  }
}

std::optional<transport::Route> Dispatch::route(const transport::Request& request) {
  const Reading reading = dialects_.read(connection_of(request), request.frames);
  if (reading.treatment == Treatment::kDrop) {
    if (reading.why == kStreamControl) {
      services_.metrics.stream_control();
    } else {
      services_.metrics.unreadable(reading.why);
    }
    return std::nullopt;
  }
  const auto row = static_cast<std::uint16_t>(reading.operation - operations().data());
  requests_[row]->add();
  if (reading.treatment != Treatment::kRun) {
    services_.metrics.refused(reading.operation->name,
                              Error{Code::kInvalid, std::string(reading.why)});
  }
  // What is not run costs nothing, so it need not wait for a worker either.
  const transport::Lane lane =
      reading.treatment == Treatment::kRun ? reading.operation->lane : transport::Lane::kWire;
  const std::uint16_t answers_as =
      reading.answers_as == nullptr
          ? transport::Route::kItself
          : static_cast<std::uint16_t>(reading.answers_as - operations().data());
  return transport::Route{lane,
                          row,
                          static_cast<std::uint8_t>(reading.release),
                          static_cast<std::uint8_t>(reading.treatment),
                          reading.is_reconnect,
                          answers_as};
}

// A guess about a message that is not there yet, from what its connection speaks; when the message
// proves to be something else it is refused (run()).
std::unique_ptr<transport::FrameSink> Dispatch::place(transport::ConnectionId connection,
                                                      std::span<const transport::Frame> begun,
                                                      std::uint64_t frame_bytes) {
  const sessions::ConnectionId caller{static_cast<std::uint64_t>(connection)};
  const std::optional<protocol::Release> release = dialects_.release_of(caller);
  if (begun.size() != kDataFrame || !release) {
    return nullptr;
  }
  const Result<OperationId> id = read_operation_id(begun[kOperationFrame]);
  const Operation* const operation = id ? find_operation(*id, *release) : nullptr;
  if (operation == nullptr || operation->name != kCommitStore) {
    return nullptr;
  }
  const Result<std::uint64_t> number = protocol::whole_id(begun[kInstanceFrame], *release);
  const std::shared_ptr<sessions::Instance> instance =
      number ? services_.instances.find(sessions::InstanceId{*number}, caller) : nullptr;
  if (instance == nullptr || instance->registration.memory != nullptr ||
      instance->kind() == sessions::ClientKind::kSharedMemory) {
    return nullptr;
  }
  const Result<std::size_t> object_bytes =
      tensors::bytes_of(instance->registration.groups.front().layout);
  return object_bytes && *object_bytes < frame_bytes ? landings_.open(*object_bytes) : nullptr;
}

transport::Reply Dispatch::run(const transport::Request& request) noexcept {
  const Operation& operation = row_of(request);
  switch (treatment_of(request)) {
    case Treatment::kRefuse:
      return to_reply(refusal_of(request));
    case Treatment::kAnswerEmpty:
      return to_reply({});
    default:
      break;
  }
  if (!request.placed.empty() && operation.name != kCommitStore) {
    services_.metrics.refused(operation.name,
                              Error{Code::kInvalid, "taken for a COMMIT_STORE while it arrived"});
    return to_reply(refusal_of(request));
  }
  const Caller caller{connection_of(request), request.route.is_reconnect, landing_of(request)};
  RunResult result =
      run_guarded(operation, services_, caller, payloads_of(request), release_of(request));
  if (!result.outcome) {
    services_.metrics.refused(operation.name, result.outcome.error());
  }
  if (!result.reply.send) {
    services_.metrics.unanswered(operation.name);
  }
  return to_reply(request.route.answers_as == transport::Route::kItself ? std::move(result.reply)
                                                                        : refusal_of(request));
}

transport::Reply Dispatch::refuse(const transport::Request& request) noexcept {
  const Operation& operation = row_of(request);
  services_.metrics.refused(
      operation.name, Error{Code::kTooLarge, "too many requests of one connection are waiting"});
  return to_reply(refusal_of(request));
}

void Dispatch::connection_opened(transport::ConnectionId connection, const transport::PeerName&) {
  services_.sessions.connection_opened(
      sessions::ConnectionId{static_cast<std::uint64_t>(connection)});
}

void Dispatch::connection_closed(transport::ConnectionId connection, transport::ConnectionEnd how) {
  const sessions::ConnectionId closed{static_cast<std::uint64_t>(connection)};
  dialects_.connection_closed(closed);
  services_.sessions.connection_closed(closed);
  // A stopped process whose connection we closed may wake up and write into the pool it mapped, so
  // it counts as silent, not as gone.
  if (how == transport::ConnectionEnd::kPeerLeft) {
    services_.instances.connection_closed(closed);
  } else {
    services_.instances.connection_dropped(closed);
  }
}

}  // namespace larder::handlers
