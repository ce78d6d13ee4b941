#include "handlers/handlers.h"

namespace larder::handlers {

Result<std::int64_t> on_get_chunk_size(Services& services,
                                       const Caller&,
                                       const protocol::EmptyRequest&) {
  return std::int64_t{services.settings.chunk_tokens};
}

Result<std::string_view> on_noop(Services&, const Caller&, const protocol::EmptyRequest&) {
  return std::string_view("OK");
}

Result<bool> on_ping(Services& services,
                     const Caller& caller,
                     const protocol::PingRequest& request) {
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
