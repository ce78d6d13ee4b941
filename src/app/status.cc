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
      {"corrupted_count", facts.cache.corrupted_objects},
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

Json kernel_group(const geometry::KernelGroup& group, std::size_t index) {
  return Json{
      {"kernel_group_idx", index},
      {"engine_group_idx", group.engine_group_id},
      {"object_group_idx", group.object_group},
      {"num_layers", group.layer_indices.size()},
      {"layer_indices", group.layer_indices},
      {"tokens_per_block", group.tokens_per_block},
      {"slots_per_block", group.block_slots},
      {"dtype", "torch." + std::string(tensors::name_of(group.dtype))},
      {"is_mla", group.format == geometry::KvFormat::kNlXNbBsHs},
      {"engine_kv_format", geometry::name_of(group.format)},
  };
}

// As `lmcache describe kvcache` reads it; its numbers are of all kernel groups together.
Json kv_cache_layout(const geometry::CachePlan& plan) {
  std::size_t layers = 0;
  std::size_t token_bytes = 0;
  Json groups = Json::array();
  for (const geometry::KernelGroup& group : plan.kernel_groups) {
    layers += group.layer_indices.size();
    token_bytes +=
        group.object_bytes / group.slots_per_object * group.block_slots / group.tokens_per_block;
    groups.push_back(kernel_group(group, groups.size()));
  }
  return Json{
      {"num_layers", layers},
      {"num_blocks", plan.kernel_groups.front().blocks},
      {"cache_size_per_token", token_bytes},
      {"kernel_groups", std::move(groups)},
  };
}

// Of engines whose memory the server reads, and of those that copy their blocks themselves.
struct RegisteredEngines {
  Json memory_ids = Json::array();
  Json memory_meta = Json::object();
  Json own_ids = Json::array();
  Json own_meta = Json::object();
};

RegisteredEngines registered_engines(const StatusFacts& facts) {
  RegisteredEngines engines;
  for (const sessions::InstanceStatus& instance : facts.instances) {
    const auto id = static_cast<std::uint64_t>(instance.id);
    const sessions::Registration& registration = instance.registration;
    Json meta{{"model_name", registration.model_name}, {"world_size", registration.world_size}};
    if (registration.memory != nullptr) {
      meta["device"] = registration.memory->device_name();
      meta["kv_cache_layout"] = kv_cache_layout(registration.memory->plan());
      engines.memory_ids.push_back(id);
      engines.memory_meta[std::to_string(id)] = std::move(meta);
    } else {
      meta["block_size"] = registration.block_size;
      meta["use_mla"] = registration.use_mla;
      meta["layout"] = tensors::to_string(registration.groups.front().layout);
      meta["transfer"] = kind_name(instance.kind);
      engines.own_ids.push_back(id);
      engines.own_meta[std::to_string(id)] = std::move(meta);
    }
  }
  return engines;
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
  const RegisteredEngines engines = registered_engines(facts);
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
      {"registered_gpu_ids", engines.memory_ids},
      {"cache_context_meta", engines.memory_meta},
      {"registered_non_cuda_instance_ids", engines.own_ids},
      {"non_cuda_context_meta", engines.own_meta},
      {"refused_instance_ids", refused},
      {"cuda", facts.cuda},
      {"instance_id", config.instance_id},
      {"connections", facts.connections},
      {"client_connections", client_connections(facts)},
      {"larder_version", config::kVersion},
  };
  // A model name is a peer's text: what is not UTF-8 must not make the page fail.
  return status.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace larder::app
