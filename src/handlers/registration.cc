#include "handlers/registration.h"

#include "handlers/handlers.h"
#include "keys/object_key.h"
#include "tensors/layout.h"

namespace larder::handlers {
namespace {

// Below this many chunks the pool holds hardly one prompt.
constexpr std::size_t kFewChunks = 8;

Result<tensors::Layout> layout_of(const Services& services,
                                  const protocol::RegisterEngineDrivenRequest& request) {
  const std::optional<tensors::Dtype> dtype = tensors::dtype_from_name(request.dtype_name);
  if (!dtype.has_value()) {
    return Error{Code::kInvalid,
                 "dtype '" + request.dtype_name + "' is not one a KV cache can have"};
  }
  const std::int64_t slots = request.num_physical_slots.value_or(services.settings.chunk_tokens);
  tensors::Layout layout{*dtype, {request.num_layers, slots, request.hidden_dim_size}};
  if (!request.use_mla) {
    layout.shape.insert(layout.shape.begin(), 2);  // plane 0 is K, plane 1 is V
  }
  if (const Result<std::size_t> bytes = tensors::bytes_of(layout); !bytes) {
    return bytes.error();
  }
  return layout;
}

Result<sessions::Registration> registration_of(
    const Services& services, const protocol::RegisterEngineDrivenRequest& request) {
  if (Result<void> checked = check_model(request.model_name, request.world_size); !checked) {
    return checked.error();
  }
  if (request.block_size < 1) {
    return Error{Code::kInvalid, fmt::format("block_size {} is not positive", request.block_size)};
  }
  if (request.group_count > 1 || request.is_recurrent) {
    return Error{
        Code::kUnsupported,
        fmt::format("a model with {} KV groups{} (hybrid layouts are not served; the engine "
                    "runs without cache)",
                    request.group_count,
                    request.is_recurrent ? ", some of them recurrent" : "")};
  }
  Result<tensors::Layout> layout = layout_of(services, request);
  if (!layout) {
    return layout.error();
  }
  return sessions::Registration{request.model_name,
                                static_cast<std::uint32_t>(request.world_size),
                                request.block_size,
                                request.use_mla,
                                {{std::move(*layout), std::nullopt}},
                                request.can_map_pool};
}

// How much of a prompt the pool holds, since operators size it by that.
void report_registration(const Services& services,
                         std::uint64_t id,
                         const sessions::Registration& registration) {
  std::size_t chunk_bytes = 0;
  std::string layouts;
  for (const sessions::ObjectGroup& group : registration.groups) {
    chunk_bytes += services.pool.rounded(*tensors::bytes_of(group.layout));
    layouts += (layouts.empty() ? "" : ", ") + tensors::to_string(group.layout);
  }
  const std::size_t chunks = services.pool.usage().configured_bytes / chunk_bytes;
  const std::string kind =
      registration.memory == nullptr
          ? "non-GPU context for"
          : fmt::format("KV cache ({}) of", registration.memory->device_name());
  log::info(
      "Registered {} instance {} (model={}, world_size={}): {} bytes a chunk, {}; the pool holds "
      "{} "
      "chunks, {} tokens",
      kind,
      id,
      registration.model_name,
      registration.world_size,
      chunk_bytes,
      layouts,
      chunks,
      chunks * services.settings.chunk_tokens);
  if (chunks < kFewChunks) {
    log::warning("the pool holds only {} chunks of instance {}; set a larger one with --l1-size-gb",
                 chunks,
                 id);
  }
}

}  // namespace

Result<void> check_model(const std::string& model_name, std::int64_t world_size) {
  if (world_size < 1 || world_size > keys::kWorldSizeMax) {
    return Error{Code::kInvalid,
                 fmt::format("world_size {} is not in 1..{}", world_size, keys::kWorldSizeMax)};
  }
  if (model_name.find('@') != std::string::npos) {
    return Error{Code::kInvalid, "model_name contains '@'"};
  }
  return {};
}

Result<void> add_instance(Services& services,
                          const Caller& caller,
                          std::uint64_t instance_id,
                          const sessions::Registration& registration) {
  using Registered = sessions::Instances::Registered;
  const sessions::InstanceId id{instance_id};
  switch (services.instances.add(id, registration, caller.connection)) {
    case Registered::kTooMany:
      return Error{Code::kTooLarge, "too many registered instances"};
    case Registered::kReplaced:
      // An engine that shares its memory always has new handles.
      if (registration.memory == nullptr) {
        log::warning(
            "instance {} registered again with other parameters; what it had open is dropped",
            instance_id);
      }
      report_registration(services, instance_id, registration);
      break;
    case Registered::kNew:
      report_registration(services, instance_id, registration);
      break;
    case Registered::kAgain:
      log::info("instance {} registered again", instance_id);
      break;
  }
  return {};
}

Result<protocol::RegisterEngineDrivenResponse> on_register_engine_driven(
    Services& services,
    const Caller& caller,
    const protocol::RegisterEngineDrivenRequest& request) {
  if (!services.settings.serves_engine_driven) {
    return Error{Code::kUnsupported, "--supported-transfer-mode excludes engine-driven transfers"};
  }
  Result<sessions::Registration> registration = registration_of(services, request);
  if (!registration) {
    log::warning("registration of instance {} refused: {}",
                 request.instance_id,
                 registration.error().detail);
    return registration.error();
  }
  if (Result<void> added = add_instance(services, caller, request.instance_id, *registration);
      !added) {
    return added.error();
  }
  protocol::RegisterEngineDrivenResponse response;
  // Whoever opened a name that leads elsewhere by now would read and write somebody else's memory.
  if (services.pool.name_intact()) {
    response.shm_name = services.pool.shm_name();
  }
  response.pool_bytes = response.shm_name.empty() ? 0 : services.pool.usage().configured_bytes;
  return response;
}

// Its client takes the refusal for a registration, and its lookups must not be promised anything.
void after_refused_engine_driven(Services& services,
                                 const Caller& caller,
                                 protocol::Frames frames,
                                 protocol::Release) {
  if (frames.empty()) {
    return;
  }
  if (const auto names = protocol::names_in_registration(frames[0])) {
    services.instances.add_refused(sessions::InstanceId{names->instance_id},
                                   names->model_name,
                                   names->world_size,
                                   caller.connection);
  }
}

Result<None> on_unregister_engine_driven(Services& services,
                                         const Caller&,
                                         const protocol::InstanceRequest& request) {
  services.instances.remove_refused(sessions::InstanceId{request.instance_id});
  if (services.instances.remove(sessions::InstanceId{request.instance_id})) {
    log::info("Unregistered non-GPU context for instance {}", request.instance_id);
  } else {
    log::debug("UNREGISTER of instance {}, which is not registered", request.instance_id);
  }
  return None{};
}

}  // namespace larder::handlers
