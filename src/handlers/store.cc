#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "handlers/handlers.h"
#include "handlers/landing.h"
#include "handlers/transfer.h"
#include "tensors/tensor_pickle.h"

namespace larder::handlers {
namespace {

using sessions::ClientKind;

using ObjectIds = std::unordered_set<keys::ObjectId, keys::ObjectIdHash>;

// Memory for what the range still lacks, but for what is staged: slots that are filled already (by
// tensor), or new ones.
Result<cache::WriteLease> reserve(Services& services,
                                  const Transfer& transfer,
                                  const ObjectIds& staged,
                                  std::span<pool::Slot> filled = {}) {
  Result<cache::WriteLease> lease = services.index.reserve(
      transfer.space,
      transfer.objects,
      [&staged](const keys::ObjectId& id) { return staged.contains(id); },
      filled);
  if (!lease && lease.error().code == Code::kNoSpace) {
    services.metrics.no_room(transfer.space.model_name, transfer.range.count());
    return lease.error();
  }
  if (lease && lease->size() < lease->missing()) {
    services.metrics.no_room(transfer.space.model_name, lease->missing() - lease->size());
  }
  return lease;
}

void note_copy_mode(const Services& services, sessions::Instance& instance) {
  if (instance.learn_kind(ClientKind::kCopy) && !services.pool.shm_name().empty()) {
    log::warning(
        "instance {} sends its data in messages although shared memory was offered; it is probably "
        "another "
        "user or in a container without this machine's /dev/shm",
        static_cast<std::uint64_t>(instance.id));
  }
}

// What a COMMIT_STORE carries, and where objects of it were received, if they were.
struct Payload {
  std::span<const std::byte> pickle;
  Landing* landing;
};

// A slot is an object as it is when it holds one tensor's bytes in the object's own form. Others
// stay with the payload, to be copied out of.
struct LandedSlots {
  std::vector<pool::Slot> filled;  // by tensor; invalid: there is none
  std::vector<pool::Slot> others;
};

LandedSlots landed_slots(const Payload& payload,
                         const std::vector<tensors::TensorView>& tensors,
                         const tensors::Layout& layout) {
  LandedSlots landed;
  if (payload.landing == nullptr) {
    return landed;
  }
  landed.filled.resize(tensors.size());
  landed.others = payload.landing->take_slots();
  std::unordered_map<const std::byte*, pool::Slot*> by_address;
  for (pool::Slot& slot : landed.others) {
    by_address.emplace(slot.bytes().data(), &slot);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const tensors::TensorView& tensor = tensors[i];
    const auto slot = by_address.find(tensor.storage.data());
    if (slot != by_address.end() && slot->second->valid() && tensor.dtype == layout.dtype &&
        tensor.shape == layout.shape && tensor.is_whole_storage()) {
      landed.filled[i] = std::move(*slot->second);
    }
  }
  return landed;
}

// Copies the payload's tensors into the reserved objects, but those that are there. Nothing is
// published unless every one fits.
Result<void> fill(const cache::WriteLease& lease,
                  const Transfer& transfer,
                  const std::vector<tensors::TensorView>& tensors) {
  for (std::size_t i = 0; i < lease.size(); ++i) {
    const std::size_t position = lease.chunk(i) - transfer.range.begin;
    if (position >= tensors.size()) {
      return Error{Code::kInvalid,
                   fmt::format("{} tensors for {} chunks", tensors.size(), transfer.range.count())};
    }
    if (tensors[position].storage.data() == lease.slot(i).bytes().data()) {
      continue;
    }
    if (Result<void> copied = tensors::copy_to_object(
            tensors[position], transfer.space.layout, lease.slot(i).bytes());
        !copied) {
      return copied;
    }
  }
  return {};
}

Result<std::vector<tensors::TensorView>> read_tensors(const Payload& payload,
                                                      const tensors::TensorListLimits& limits) {
  if (payload.landing == nullptr) {
    return tensors::read_tensor_list(payload.pickle, limits);
  }
  if (!payload.landing->is_whole()) {
    return Error{Code::kMalformed, "the data is not as long as it says"};
  }
  return tensors::read_tensor_list(payload.pickle, limits, payload.landing->cuts());
}

// Room for another message like this one, so that the next one's objects find free slots while they
// arrive and need not be copied. In whole objects, so that a small pool is used to its last, and
// never at the cost of what was just stored.
void make_room_ahead(Services& services, const Transfer& transfer, std::size_t objects) {
  constexpr std::size_t kShareMax = 16;  // of the pool
  constexpr std::size_t kObjectsMax = 256;
  const pool::PoolUsage usage = services.pool.usage();
  const bool is_growing =
      !services.pool.growth_failed() &&
      usage.configured_bytes - usage.capacity_bytes >= services.pool.align_bytes();
  const std::size_t object_bytes = services.pool.rounded(*tensors::bytes_of(transfer.space.layout));
  if (is_growing || object_bytes < Landings::kObjectBytesMin) {
    return;
  }
  const std::size_t ahead = std::min(objects, usage.capacity_bytes / kShareMax / object_bytes);
  const Result<cache::ReadLease> kept = services.index.acquire(transfer.space, transfer.objects);
  services.index.evict_ahead(usage.capacity_bytes - ahead * object_bytes, kObjectsMax);
}

Result<bool> commit_payload(Services& services,
                            const Transfer& transfer,
                            const std::string& request_id,
                            const Payload& payload) {
  if (transfer.instance->kind() == ClientKind::kSharedMemory) {
    // It may be writing into the slots of this very key, so they are not taken from it.
    return Error{Code::kInvalid, "a payload from an instance that writes into shared memory"};
  }
  note_copy_mode(services, *transfer.instance);
  const std::size_t landed_bytes = payload.landing == nullptr ? 0 : payload.landing->landed_bytes();
  services.metrics.copy_mode_bytes_in.add(payload.pickle.size() + landed_bytes);
  services.metrics.copy_mode_bytes_landed.add(landed_bytes);
  // What PREPARE_STORE set aside while this client's kind was not known; given back if the payload
  // is no good.
  std::optional<cache::WriteLease> lease = transfer.instance->close_store(transfer.key, request_id);
  const tensors::TensorListLimits limits{transfer.range.count(),
                                         services.pool.usage().configured_bytes};
  const Result<std::vector<tensors::TensorView>> tensors = read_tensors(payload, limits);
  if (!tensors) {
    return tensors.error();
  }
  LandedSlots landed = landed_slots(payload, *tensors, transfer.space.layout);
  if (!lease.has_value()) {
    // What another request has staged may never be committed, and this data is here.
    Result<cache::WriteLease> reserved = reserve(services, transfer, {}, landed.filled);
    if (!reserved) {
      return reserved.error();
    }
    lease = std::move(*reserved);
  }
  if (Result<void> filled = fill(*lease, transfer, *tensors); !filled) {
    return filled.error();
  }
  const bool complete = lease->size() == lease->missing();
  const bool is_committed = lease->commit();
  if (is_committed && complete) {
    make_room_ahead(services, transfer, tensors->size());
  }
  return is_committed && complete;
}

}  // namespace

Result<protocol::PrepareStoreResponse> on_prepare_store(
    Services& services, const Caller& caller, const protocol::PrepareStoreRequest& request) {
  if (request.skips_chunks) {
    return Error{Code::kUnsupported, "chunks of a KV group that are not stored"};
  }
  Result<Transfer> transfer =
      resolve_transfer(services, caller, request.key, request.instance_id, CopiedBy::kEngine);
  if (!transfer) {
    return transfer.error();
  }
  protocol::PrepareStoreResponse response;
  const bool writes_slots =
      !services.pool.shm_name().empty() && transfer->instance->kind() != ClientKind::kCopy;
  if (transfer->range.count() == 0 || !writes_slots) {
    return response;  // a client in copy mode ignores this answer, and its memory is found at
                      // COMMIT_STORE
  }
  if (transfer->instance->has_store(transfer->key, request.key.request_id)) {
    return response;  // what it still lacks belongs to the store that is open
  }
  Result<cache::WriteLease> lease =
      reserve(services, *transfer, transfer->instance->staged(transfer->space));
  if (!lease) {
    return lease.error();
  }
  if (lease->empty()) {
    return response;
  }
  for (std::size_t i = 0; i < lease->size(); ++i) {
    response.slots.push_back(describe_slot(*transfer, lease->slot(i).offset()));
    response.chunk_indices.push_back(
        static_cast<std::int64_t>(lease->chunk(i) - transfer->range.begin));
  }
  if (!transfer->instance->open_store(
          transfer->key, request.key.request_id, std::move(*lease), services.clock.now())) {
    return Error{
        Code::kNotFound,
        "the instance was unregistered meanwhile, or has too many open transfers, or this one"};
  }
  return response;
}

Result<bool> on_commit_store(Services& services,
                             const Caller& caller,
                             const protocol::CommitStoreRequest& request) {
  Result<Transfer> transfer =
      resolve_transfer(services, caller, request.key, request.instance_id, CopiedBy::kEngine);
  if (!transfer) {
    return transfer.error();
  }
  if (!request.payload.empty()) {
    return commit_payload(
        services, *transfer, request.key.request_id, {request.payload, caller.landing});
  }
  std::optional<cache::WriteLease> lease =
      transfer->instance->close_store(transfer->key, request.key.request_id);
  if (!lease.has_value()) {
    return false;
  }
  transfer->instance->learn_kind(ClientKind::kSharedMemory);
  return lease->commit();
}

}  // namespace larder::handlers
