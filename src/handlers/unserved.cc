#include "handlers/handlers.h"

namespace larder::handlers {
namespace {

// A client that must not be answered learns from its PINGs that the cache is no use to it.
Error turn_away(Services& services, std::uint64_t instance_id, bool has_no_refusal) {
  if (has_no_refusal) {
    services.instances.turn_away(sessions::InstanceId{instance_id});
  }
  return Error{Code::kUnsupported, "transfers by the server are not served"};
}

}  // namespace

Result<protocol::EventResult> on_store(Services& services,
                                       const Caller&,
                                       const protocol::StoreRequest& request) {
  return turn_away(services, request.instance_id, request.has_no_refusal);
}

Result<protocol::EventResult> on_retrieve(Services& services,
                                          const Caller&,
                                          const protocol::RetrieveRequest& request) {
  return turn_away(services, request.instance_id, request.has_no_refusal);
}

}  // namespace larder::handlers
