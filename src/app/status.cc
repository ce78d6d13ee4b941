#include "app/status.h"

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "config/version.h"

namespace larder::app {
namespace {

// Keeps the order of insertion, which is the reference's.
using Json = nlohmann::ordered_json;

Json l1_manager(const config::Config& config, const StatusFacts& facts) {
  return Json{
      {"is_healthy", !facts.growth_failed},
      {"total_object_count", facts.cache.resident_objects + facts.cache.reserved_objects},
      {"write_locked_count", facts.cache.reserved_objects},
      {"read_locked_count", facts.cache.pinned_objects},
      {"temporary_count", 0},
      {"memory_used_bytes", facts.usage.used_bytes},
      {"memory_total_bytes", facts.usage.configured_bytes},
      {"memory_usage_ratio",
       static_cast<double>(facts.usage.used_bytes) /
           static_cast<double>(facts.usage.configured_bytes)},
      {"write_ttl_seconds", config.write_ttl_seconds},
      {"read_ttl_seconds", config.read_ttl_seconds},
      {"memory_capacity_bytes", facts.usage.capacity_bytes},
      {"quarantined_count", facts.quarantined},
  };
}

Json eviction_controller(const config::Config& config, const StatusFacts& facts) {
  return Json{
      {"is_healthy", facts.maintenance_alive},
      {"thread_alive", facts.maintenance_alive},
      {"eviction_policy", config.eviction_policy},
      {"trigger_watermark", config.eviction_watermark.value_or(1.0)},
      {"eviction_ratio", config.eviction_ratio},
  };
}

std::string kind_name(sessions::ClientKind kind) {
  switch (kind) {
    case sessions::ClientKind::kSharedMemory:
      return "shared_memory";
    case sessions::ClientKind::kCopy:
      return "copy";
    case sessions::ClientKind::kUnknown:
      break;
  }
  return "unknown";
}

// Who is connected, from where, and which release it speaks.
Json client_connections(const StatusFacts& facts) {
  std::unordered_map<std::uint64_t, const handlers::ConnectionStatus*> dialects;
  for (const handlers::ConnectionStatus& client : facts.clients) {
    dialects.emplace(static_cast<std::uint64_t>(client.connection), &client);
  }
  Json connections = Json::array();
  for (const transport::ConnectedPeer& peer : facts.peers) {
    const auto connection = static_cast<std::uint64_t>(peer.connection);
    const auto known = dialects.find(connection);
    const handlers::ConnectionStatus unknown{{}, protocol::ReleaseSet::all()};
    const handlers::ConnectionStatus& client = known == dialects.end() ? unknown : *known->second;
    connections.push_back({{"connection", connection},
                           {"address", peer.name.text},
                           {"release", protocol::to_string(client.releases)},
                           {"decided_by", handlers::name_of(client.decided_by)}});
  }
  return connections;
}

}  // namespace

std::string render_status(const config::Config& config, const StatusFacts& facts) {
  const Json eviction = eviction_controller(config, facts);
  const bool healthy = facts.maintenance_alive && !facts.growth_failed;
  Json ids = Json::array();
  Json meta = Json::object();
  for (const sessions::InstanceStatus& instance : facts.instances) {
    const auto id = static_cast<std::uint64_t>(instance.id);
    ids.push_back(id);
    meta[std::to_string(id)] = Json{
        {"model_name", instance.registration.model_name},
        {"world_size", instance.registration.world_size},
        {"block_size", instance.registration.block_size},
        {"use_mla", instance.registration.use_mla},
        {"layout", tensors::to_string(instance.registration.groups.front().layout)},
        {"transfer", kind_name(instance.kind)},
    };
  }
  Json refused = Json::array();
  for (const sessions::InstanceId id : facts.refused) {
    refused.push_back(static_cast<std::uint64_t>(id));
  }
  const Json status{
      {"is_healthy", healthy},
      {"engine_type", "MPCacheServer"},
      {"chunk_size", config.chunk_tokens},
      {"hash_algorithm", config.hash_algorithm},
      {"active_sessions", facts.sessions},
      {"storage_manager",
       {
           {"is_healthy", healthy},
           {"l1_manager", l1_manager(config, facts)},
           {"l1_eviction_controller", eviction},
           {"eviction_controller", eviction},  // the name `lmcache describe` reads
           {"l2_adapters", Json::array()},
           {"num_l2_adapters", 0},
       }},
      {"active_prefetch_jobs", facts.unanswered},
      {"worker_liveness",
       {
           {"enabled", config.reap_timeout_seconds > 0},
           {"reap_timeout_seconds", config.reap_timeout_seconds},
           {"registration_grace_seconds", config.registration_grace_seconds},
           {"tracked_instances", facts.instances.size()},
       }},
      {"registered_gpu_ids", Json::array()},
      {"cache_context_meta", Json::object()},
      {"registered_non_cuda_instance_ids", ids},
      {"non_cuda_context_meta", meta},
      {"refused_instance_ids", refused},
      {"instance_id", config.instance_id},
      {"connections", facts.connections},
      {"client_connections", client_connections(facts)},
      {"larder_version", config::kVersion},
  };
  // A model name is a peer's text: what is not UTF-8 must not make the page fail.
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace larder::app
