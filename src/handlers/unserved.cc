#include "handlers/handlers.h"
#include "protocol/refusals.h"

namespace larder::handlers {
namespace {

// The release does not matter to the turning away: a newer client would get an answer, and its PING
// stays true.
Error turn_away(Services& services,
                std::uint64_t instance_id,
                std::span<const std::byte> event_handle) {
  if (protocol::is_unanswerable(event_handle, protocol::Release::k050)) {
    services.instances.turn_away(sessions::InstanceId{instance_id});
  }
  return Error{Code::kUnsupported, "transfers by the server are not served"};
}

}  // namespace

Result<protocol::EventResult> on_store(Services& services,
                                       const Caller&,
                                       const protocol::StoreRequest& request) {
  return turn_away(services, request.instance_id, request.event_handle);
}

Result<protocol::EventResult> on_retrieve(Services& services,
                                          const Caller&,
                                          const protocol::RetrieveRequest& request) {
  return turn_away(services, request.instance_id, request.event_handle);
}

}  // namespace larder::handlers
