#include "handlers/transfer.h"

#include "keys/object_key.h"
#include "tensors/layout.h"

namespace larder::handlers {
namespace {

Result<void> check_key(const protocol::Key& key) {
  if (!key.worker_id.has_value()) {
    return Error{Code::kInvalid, "worker_id is missing"};
  }
  if (key.world_size < 1 || key.world_size > keys::kWorldSizeMax || *key.worker_id < 0 ||
      *key.worker_id >= key.world_size) {
    return Error{Code::kInvalid, fmt::format("worker {} of {}", *key.worker_id, key.world_size)};
  }
  if (key.model_name.find('@') != std::string::npos) {
    return Error{Code::kInvalid, "model_name contains '@'"};
  }
  if (!key.tokens_hashable) {
    return Error{Code::kInvalid, "a token id is not in 0..2^32-1"};
  }
  return {};
}

Result<keys::ChunkRange> range_of(const protocol::Key& key, std::int64_t chunk_tokens) {
  if (key.start < 0 || key.end < 0 || key.start % chunk_tokens != 0 ||
      key.end % chunk_tokens != 0) {
    return Error{
        Code::kInvalid,
        fmt::format("[{}, {}) is not in whole chunks of {}", key.start, key.end, chunk_tokens)};
  }
  if (key.start >= key.end) {
    return keys::ChunkRange{0, 0};
  }
  if (static_cast<std::uint64_t>(key.end) > key.token_ids.size()) {
    return Error{Code::kInvalid,
                 fmt::format("end {} is beyond the {} tokens", key.end, key.token_ids.size())};
  }
  return keys::ChunkRange{static_cast<std::size_t>(key.start / chunk_tokens),
                          static_cast<std::size_t>(key.end / chunk_tokens)};
}

// kMismatch: some of the objects have changed; they are dropped.
Result<void> verify(Services& services,
                    const std::string& model_name,
                    const cache::ReadLease& lease) {
  const std::vector<std::size_t> corrupted = services.index.find_corrupted(lease);
  if (corrupted.empty()) {
    return {};
  }
  services.metrics.corrupted(model_name, corrupted.size(), lease.offset(corrupted.front()));
  return Error{Code::kMismatch, "stored bytes have changed"};
}

}  // namespace

Result<Transfer> resolve_transfer(Services& services,
                                  const Caller& caller,
                                  const protocol::Key& key,
                                  std::uint64_t instance_id,
                                  CopiedBy copied_by) {
  Transfer transfer;
  transfer.instance = services.instances.find(sessions::InstanceId{instance_id}, caller.connection);
  if (transfer.instance == nullptr) {
    return Error{Code::kNotFound, fmt::format("instance {} is not registered", instance_id)};
  }
  if ((transfer.instance->registration.memory != nullptr) != (copied_by == CopiedBy::kServer)) {
    return Error{Code::kMismatch,
                 fmt::format("instance {} registered for the other way of copying", instance_id)};
  }
  if (Result<void> checked = check_key(key); !checked) {
    return checked.error();
  }
  const Result<keys::ChunkRange> range = range_of(key, services.settings.chunk_tokens);
  if (!range) {
    return range.error();
  }
  transfer.range = *range;
  transfer.worker = static_cast<std::uint32_t>(*key.worker_id);
  const std::uint32_t kv_rank =
      keys::pack_kv_rank(static_cast<std::uint32_t>(key.world_size), transfer.worker);
  transfer.space = space_of(key, transfer.instance->registration.groups, 0);
  transfer.key = {key.model_name, key.cache_salt, kv_rank, *range, {}};
  transfer.objects = {{}, range->begin, kv_rank};
  if (range->count() > 0) {
    transfer.prompt = services.prompts.hash(key.request_id, key.token_ids);
    transfer.objects.hashes = transfer.prompt.hashes().first(range->end);
    transfer.key.last_chunk = transfer.objects.hashes.back();
  }
  return transfer;
}

cache::KeySpace space_of(const protocol::Key& key,
                         const sessions::ObjectGroups& groups,
                         std::size_t group) {
  return {key.model_name, key.cache_salt, groups[group].layout, static_cast<std::uint32_t>(group)};
}

Result<cache::ReadLease> pin_intact(Services& services,
                                    const protocol::Key& key,
                                    const cache::KeySpace& space,
                                    const cache::StoreRange& range) {
  std::optional<Error> changed;
  const sessions::Reading reading{space, range.kv_rank, range.hashes, range.first_chunk};
  // Another request of this id may hold other objects of these chunks. What has changed is not
  // given out twice, so this ends.
  while (std::optional<cache::ReadLease> promised =
             services.sessions.take(key.request_id, reading)) {
    const Result<void> intact = verify(services, key.model_name, *promised);
    if (intact) {
      return std::move(*promised);
    }
    changed = intact.error();
  }
  Result<cache::ReadLease> lease = services.index.acquire(space, range);
  if (!lease) {
    return changed.value_or(lease.error());
  }
  if (const Result<void> intact = verify(services, key.model_name, *lease); !intact) {
    return intact.error();
  }
  return lease;
}

protocol::SlotDescriptor describe_slot(const Transfer& transfer, std::size_t offset) {
  const tensors::Layout& layout = transfer.space.layout;
  return {offset, *tensors::bytes_of(layout), layout.shape, tensors::name_of(layout.dtype)};
}

}  // namespace larder::handlers
