// REGISTER_KV_CACHE: an engine hands over its KV tensors, and the server copies its blocks.
#include <algorithm>
#include <optional>

#include "devices/devices.h"
#include "geometry/engine_cache.h"
#include "handlers/handlers.h"
#include "handlers/registration.h"
#include "pool/segment_name.h"

namespace larder::handlers {
namespace {

// A layer has at most two.
constexpr std::size_t kTensorsMax = 8192;

geometry::EngineType engine_type_of(std::string_view name) {
  using geometry::EngineType;
  return name == "sglang"   ? EngineType::kSglang
         : name == "trtllm" ? EngineType::kTrtllm
         : name == "mock"   ? EngineType::kMock
         : name == "atom"   ? EngineType::kAtom
                            : EngineType::kVllm;
}

// Whoever names the pool's own segment would have blocks copied over other objects.
// A tensor without elements has no segment, and no name.
bool is_pool(const devices::TensorHandle& handle) {
  const auto* const segment = std::get_if<devices::SharedSegmentHandle>(&handle.memory);
  return segment != nullptr && !segment->name.empty() &&
         std::string_view(segment->name).substr(1).starts_with(pool::kSegmentPrefix);
}

Result<std::vector<devices::TensorHandle>> read_handles(
    const protocol::RegisterKvCacheRequest& request) {
  if (request.tensors.empty() || request.tensors.size() > kTensorsMax) {
    return Error{Code::kInvalid, fmt::format("{} tensors", request.tensors.size())};
  }
  std::vector<devices::TensorHandle> handles;
  handles.reserve(request.tensors.size());
  for (const std::span<const std::byte> body : request.tensors) {
    Result<devices::TensorHandle> handle = devices::read_tensor_handle(body);
    if (!handle) {
      return handle.error();
    }
    if (!std::get_if<devices::CudaMemoryHandle>(&handle->memory) && is_pool(*handle)) {
      return Error{Code::kInvalid, "a tensor in a server's own segment"};
    }
    handles.push_back(std::move(*handle));
  }
  return handles;
}

geometry::EngineDescription describe(const protocol::RegisterKvCacheRequest& request,
                                     const std::vector<devices::TensorHandle>& handles) {
  geometry::EngineDescription engine;
  for (const devices::TensorHandle& handle : handles) {
    engine.tensors.push_back(handle.tensor);
  }
  engine.engine_type = engine_type_of(request.engine_type);
  engine.hints = {request.hints.kv_layout,
                  request.hints.kv_list_layout,
                  request.hints.num_kv_heads,
                  request.hints.tokens_per_block,
                  request.hints.head_dim};
  for (const protocol::EngineGroup& group : request.groups) {
    engine.groups.push_back({group.engine_group_id,
                             group.layer_indices,
                             group.tokens_per_block,
                             group.sliding_window_tokens,
                             group.object_group_tag,
                             group.is_recurrent});
  }
  engine.on_host = std::holds_alternative<devices::SharedSegmentHandle>(handles.front().memory);
  engine.is_since_055 = request.is_since_055;
  return engine;
}

Result<sessions::Registration> registration_of(Services& services,
                                               const protocol::RegisterKvCacheRequest& request) {
  if (!services.settings.serves_lmcache_driven) {
    return Error{Code::kUnsupported, "--supported-transfer-mode excludes it"};
  }
  if (Result<void> checked = check_model(request.model_name, request.world_size); !checked) {
    return checked.error();
  }
  const Result<std::vector<devices::TensorHandle>> handles = read_handles(request);
  if (!handles) {
    return handles.error();
  }
  const geometry::EngineDescription engine = describe(request, *handles);
  Result<geometry::CachePlan> plan = geometry::plan_of(
      engine, {services.settings.chunk_tokens, services.settings.separate_object_groups});
  if (!plan) {
    return plan.error();
  }
  sessions::Registration registration;
  registration.model_name = request.model_name;
  registration.world_size = static_cast<std::uint32_t>(request.world_size);
  registration.block_size = plan->kernel_groups.front().tokens_per_block;
  registration.use_mla = plan->kernel_groups.front().format == geometry::KvFormat::kNlXNbBsHs;
  for (const geometry::ObjectGroup& group : plan->object_groups) {
    registration.groups.push_back({group.layout, group.window_chunks});
  }
  Result<std::shared_ptr<devices::EngineMemory>> memory =
      services.devices.map(*handles, std::move(*plan));
  if (!memory) {
    return memory.error();
  }
  registration.memory = std::move(*memory);
  return registration;
}

// The engine takes the empty answer for a registration, so it must not be promised anything either.
void refuse_instance(Services& services,
                     const Caller& caller,
                     std::uint64_t instance_id,
                     const std::string& model_name,
                     std::int64_t world_size) {
  services.instances.add_refused(
      sessions::InstanceId{instance_id}, model_name, world_size, caller.connection);
}

}  // namespace

Result<None> on_register_kv_cache(Services& services,
                                  const Caller& caller,
                                  const protocol::RegisterKvCacheRequest& request) {
  const Result<sessions::Registration> registration = registration_of(services, request);
  Result<void> outcome;
  if (!registration) {
    outcome = registration.error();
  } else {
    outcome = add_instance(services, caller, request.instance_id, *registration);
  }
  if (!outcome) {
    refuse_instance(services, caller, request.instance_id, request.model_name, request.world_size);
    log::warning(
        "instance {} (model {}) shares its KV memory, which cannot be served: {}; it runs without "
        "cache. LMCACHE_MP_TRANSFER_MODE=engine_driven in the engine's environment lets it copy "
        "its "
        "blocks itself",
        request.instance_id,
        request.model_name,
        outcome.error().detail);
  }
  return None{};
}

void after_refused_register(Services& services,
                            const Caller& caller,
                            protocol::Frames frames,
                            protocol::Release release) {
  if (frames.size() < 4) {
    return;
  }
  const Result<std::uint64_t> instance_id = protocol::whole_id(frames[0], release);
  const Result<std::string_view> model_name = protocol::whole_string(frames[2]);
  const Result<std::int64_t> world_size = protocol::whole_int(frames[3], release);
  if (instance_id && model_name && world_size) {
    refuse_instance(services, caller, *instance_id, std::string(*model_name), *world_size);
  }
}

Result<None> on_unregister_kv_cache(Services& services,
                                    const Caller& caller,
                                    const protocol::InstanceRequest& request) {
  if (services.instances.remove_refused(sessions::InstanceId{request.instance_id})) {
    return None{};
  }
  const sessions::InstanceId id{request.instance_id};
  if (const auto instance = services.instances.find(id, caller.connection);
      instance != nullptr && instance->registration.memory != nullptr &&
      !services.devices.retire(*instance->registration.memory)) {
    log::warning(
        "instance {} leaves while its blocks are copied; what is not stored yet is dropped",
        request.instance_id);
  }
  // 0.4.6 has one UNREGISTER for both kinds.
  return on_unregister_engine_driven(services, caller, request);
}

}  // namespace larder::handlers
