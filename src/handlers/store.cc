#include "handlers/handlers.h"
#include "handlers/transfer.h"
#include "tensors/tensor_pickle.h"

namespace larder::handlers {
namespace {

using sessions::ClientKind;

// Memory for what the range still lacks. No room is not an error here: an empty lease.
Result<cache::WriteLease> reserve(Services& services, const Transfer& transfer) {
  Result<cache::WriteLease> lease = services.index.reserve(
      transfer.space, transfer.objects, [&transfer](const keys::ObjectId& id) {
        return transfer.instance->is_storing(transfer.space, id);
      });
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

// Copies the payload's tensors into the reserved objects. Nothing is published unless every one
// fits.
Result<void> fill(const cache::WriteLease& lease,
                  const Transfer& transfer,
                  const std::vector<tensors::TensorView>& tensors) {
  for (std::size_t i = 0; i < lease.size(); ++i) {
    const std::size_t position = lease.chunk(i) - transfer.range.begin;
    if (position >= tensors.size()) {
      return Error{Code::kInvalid,
                   fmt::format("{} tensors for {} chunks", tensors.size(), transfer.range.count())};
    }
    if (Result<void> copied = tensors::copy_to_object(
            tensors[position], transfer.space.layout, lease.slot(i).bytes());
        !copied) {
      return copied;
    }
  }
  return {};
}

Result<bool> commit_payload(Services& services,
                            const Transfer& transfer,
                            const std::string& request_id,
                            std::span<const std::byte> payload) {
  if (transfer.instance->kind() == ClientKind::kSharedMemory) {
    // It may be writing into the slots of this very key, so they are not taken from it.
    return Error{Code::kInvalid, "a payload from an instance that writes into shared memory"};
  }
  note_copy_mode(services, *transfer.instance);
  services.metrics.copy_mode_bytes_in.add(payload.size());
  // What PREPARE_STORE set aside while this client's kind was not known; given back if the payload
  // is no good.
  std::optional<cache::WriteLease> lease = transfer.instance->close_store(transfer.key, request_id);
  const tensors::TensorListLimits limits{transfer.range.count(),
                                         services.pool.usage().configured_bytes};
  const Result<std::vector<tensors::TensorView>> tensors =
      tensors::read_tensor_list(payload, limits);
  if (!tensors) {
    return tensors.error();
  }
  if (!lease.has_value()) {
    Result<cache::WriteLease> reserved = reserve(services, transfer);
    if (!reserved) {
      return reserved.error();
    }
    lease = std::move(*reserved);
  }
  if (Result<void> filled = fill(*lease, transfer, *tensors); !filled) {
    return filled.error();
  }
  const bool complete = lease->size() == lease->missing();
  return lease->commit() && complete;
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
  Result<cache::WriteLease> lease = reserve(services, *transfer);
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
    return Error{Code::kNotFound,
                 "the instance was unregistered meanwhile, or has too many open transfers"};
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
    return commit_payload(services, *transfer, request.key.request_id, request.payload);
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
