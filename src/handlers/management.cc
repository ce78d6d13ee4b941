#include "handlers/handlers.h"

namespace larder::handlers {

Result<std::int64_t> on_get_chunk_size(Services& services,
                                       const Caller&,
                                       const protocol::EmptyRequest&) {
  return std::int64_t{services.settings.chunk_tokens};
}

// The chunk size names the objects, so it is the operator's and does not change while the server
// runs. The client refuses one that does not suit it with an error of its own.
Result<std::int64_t> on_negotiate_chunk_size(Services& services,
                                             const Caller&,
                                             const protocol::NegotiateRequest& request) {
  const std::uint32_t chunk_tokens = services.settings.chunk_tokens;
  const std::int64_t alignment = request.alignment_tokens;
  if (alignment < 1 || chunk_tokens % alignment != 0) {
    services.metrics.chunk_size_unsuitable(chunk_tokens, alignment);
  }
  return std::int64_t{chunk_tokens};
}

Result<protocol::ModuleCallResponse> on_module_call(Services&,
                                                    const Caller&,
                                                    const protocol::ModuleCallRequest& request) {
  return Error{Code::kUnsupported, fmt::format("no server module answers '{}'", request.method)};
}

Result<std::string_view> on_noop(Services&, const Caller&, const protocol::EmptyRequest&) {
  return std::string_view("OK");
}

Result<bool> on_ping(Services& services,
                     const Caller& caller,
                     const protocol::PingRequest& request) {
  if (request.is_of_connection) {
    return services.instances.ping_connection(caller.connection, caller.is_reconnect);
  }
  if (!request.instance_id.has_value()) {
    return true;
  }
  return services.instances.ping(sessions::InstanceId{*request.instance_id}, caller.connection);
}

Result<None> on_clear(Services& services, const Caller&, const protocol::ClearRequest&) {
  clear_cache(services);
  log::info("cache cleared by a client's CLEAR");
  return None{};
}

Result<None> on_report_block_allocation(Services&,
                                        const Caller&,
                                        const protocol::BlockAllocationRequest&) {
  return None{};
}

Result<std::vector<std::string>> on_get_experimental(Services&,
                                                     const Caller&,
                                                     const protocol::EmptyRequest&) {
  return std::vector<std::string>{};
}

void clear_cache(Services& services) {
  services.index.clear();
  services.sessions.forget_answers();
}

}  // namespace larder::handlers
