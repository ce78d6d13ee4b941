// The part of the index that makes room: reservations, eviction, quotas.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "cache/cache_index.h"

namespace larder::cache {
namespace {

// Windows that are compared before one store evicts. Objects of one size need no comparison: the
// policy's first victim is room enough.
constexpr std::size_t kWindowsCompared = 32;

// Somebody else may take the room between two looks at it; not for ever.
constexpr int kRoundsMax = 16;

// Objects that are looked at under one hold of the mutex when pins are in the way of those windows.
constexpr std::size_t kWalkStep = 1024;

// Objects of a lowered quota that go under one hold of the mutex.
constexpr std::size_t kTrimSlice = 256;

pool::Slot take_filled(std::span<pool::Slot> filled, std::size_t position, std::size_t bytes) {
  if (position >= filled.size() || !filled[position].valid()) {
    return {};
  }
  LARDER_CHECK(filled[position].size() == bytes);
  return std::move(filled[position]);
}

// Appends what the ranks have of the chunk. Whether any has it.
bool find_in_ranks(const Shelf& shelf,
                   const keys::ChunkHash& hash,
                   std::span<const std::uint32_t> kv_ranks,
                   std::vector<Object*>& found) {
  const std::size_t before = found.size();
  for (const std::uint32_t kv_rank : kv_ranks) {
    if (Object* const object = shelf.find({hash, kv_rank}); object != nullptr) {
      found.push_back(object);
    }
  }
  return found.size() > before;
}

}  // namespace

Result<WriteLease> CacheIndex::reserve(const KeySpace& space,
                                       const StoreRange& range,
                                       const std::function<bool(const keys::ObjectId&)>& skip,
                                       std::span<pool::Slot> filled) {
  const Result<std::size_t> bytes = tensors::bytes_of(space.layout);
  if (!bytes) {
    return bytes.error();
  }
  release_returned();
  WriteLease lease;
  std::vector<std::size_t> missing = find_missing(space, range, lease);
  // Asked outside the mutex: the caller looks through its own transfers under a lock of its own.
  std::erase_if(missing, [&](std::size_t chunk) {
    return skip(keys::ObjectId{range.hashes[chunk], range.kv_rank});
  });
  lease.index_ = this;
  lease.space_ = space;
  lease.kv_rank_ = range.kv_rank;
  lease.hashes_.assign(range.hashes.begin(), range.hashes.end());
  lease.missing_ = missing.size();
  // Growing under way could fail between slot and chunk.
  lease.slots_.reserve(missing.size());
  lease.chunks_.reserve(missing.size());
  Kept kept;
  std::optional<Error> refused;
  for (const std::size_t chunk : missing) {
    if (has_quotas_ && !make_room_in_quota(lease, range, chunk, *bytes, kept)) {
      refused = Error{Code::kNoSpace, "the quota of the cache salt is used up"};
      break;
    }
    Result<pool::Slot> slot = take_filled(filled, chunk - range.first_chunk, *bytes);
    if (!slot->valid()) {
      slot = pool_.take(*bytes);
    }
    if (!slot && slot.error().code == Code::kNoSpace) {
      keep_prefix(space, range, chunk + 1, kept);
      if (admission_ == Admission::kSelective && !admits(space, range, chunk)) {
        // Declined is not failed: the rest counts as not missing, as if it were stored already.
        declined_chunks_.add(lease.missing_ - lease.slots_.size());
        lease.missing_ = lease.slots_.size();
        break;
      }
      slot = take_evicting(*bytes);
    }
    if (!slot) {
      refused = slot.error();
      break;
    }
    lease.slots_.push_back(std::move(*slot));
    lease.chunks_.push_back(chunk);
    reserved_objects_.fetch_add(1);
  }
  if (refused.has_value() && lease.slots_.empty()) {
    return *refused;
  }
  return lease;
}

std::size_t CacheIndex::evict_down_to(std::size_t used_bytes, std::size_t objects_max) {
  release_returned();
  const std::size_t used = pool_.usage().used_bytes;
  if (used <= used_bytes) {
    return 0;
  }
  std::size_t freed = 0;
  Dropped dropped;
  const MutexLock lock(mutex_);
  while (freed < used - used_bytes && dropped.size() < objects_max) {
    Object* const victim = policy_->victim();
    if (victim == nullptr) {
      break;
    }
    freed += pool_.rounded(victim->slot.size());
    dropped.push_back(evict(*victim));
  }
  return dropped.size();
}

void CacheIndex::evict_ahead(std::size_t used_bytes, std::size_t objects_max) {
  if (admission_ == Admission::kAll) {
    evict_down_to(used_bytes, objects_max);
  }
}

bool CacheIndex::set_quota(const std::string& cache_salt, std::uint64_t bytes) {
  {
    const MutexLock lock(mutex_);
    if (find_limited(cache_salt) == nullptr && quota_count_ >= kQuotasMax) {
      return false;
    }
    Tenant& tenant = make_tenant(cache_salt);
    quota_count_ += tenant.limited ? 0 : 1;
    tenant.limited = true;
    tenant.share_bytes = bytes;
    policy_->share_changed(tenant);
  }
  for (std::size_t gone = kTrimSlice; has_quotas_ && gone == kTrimSlice;) {
    Dropped dropped;
    const MutexLock lock(mutex_);
    if (const Tenant* const tenant = find_limited(cache_salt); tenant != nullptr) {
      trim(*tenant, tenant->share_bytes, kTrimSlice, dropped);
    }
    gone = dropped.size();
  }
  return true;
}

bool CacheIndex::remove_quota(const std::string& cache_salt) {
  const MutexLock lock(mutex_);
  const auto found = tenants_.find(cache_salt);
  if (found == tenants_.end() || !found->second->limited) {
    return false;
  }
  Tenant& tenant = *found->second;
  tenant.limited = false;
  --quota_count_;
  tenant.share_bytes = pool_.usage().configured_bytes;
  policy_->share_changed(tenant);
  if (tenant.shelves == 0) {
    tenants_.erase(found);
  }
  return true;
}

std::vector<Quota> CacheIndex::quotas() const {
  std::vector<Quota> quotas;
  {
    const MutexLock lock(mutex_);
    for (const auto& [salt, tenant] : tenants_) {
      if (tenant->limited) {
        quotas.push_back({salt, tenant->share_bytes, tenant->resident_bytes});
      }
    }
  }
  std::sort(quotas.begin(), quotas.end(), [](const Quota& a, const Quota& b) {
    return a.cache_salt < b.cache_salt;
  });
  return quotas;
}

std::uint64_t CacheIndex::resident_bytes(const std::string& cache_salt) const {
  const MutexLock lock(mutex_);
  const auto found = tenants_.find(cache_salt);
  return found == tenants_.end() ? 0 : found->second->resident_bytes;
}

std::vector<std::size_t> CacheIndex::find_missing(const KeySpace& space,
                                                  const StoreRange& range,
                                                  WriteLease& lease) {
  std::vector<std::size_t> missing;
  {
    const MutexLock lock(mutex_);
    lease.clear_count_ = clear_count_;
  }
  for (std::size_t first = range.first_chunk; first < range.hashes.size(); first += kFindsInStep) {
    const std::size_t end = std::min(range.hashes.size(), first + kFindsInStep);
    const MutexLock lock(mutex_);
    const Shelf* const shelf = find_shelf(space);
    for (std::size_t chunk = first; chunk < end; ++chunk) {
      if (shelf == nullptr || shelf->find({range.hashes[chunk], range.kv_rank}) == nullptr) {
        missing.push_back(chunk);
      }
    }
  }
  return missing;
}

void CacheIndex::keep_prefix(const KeySpace& space,
                             const StoreRange& range,
                             std::size_t chunks,
                             Kept& kept) {
  std::vector<std::uint32_t> others;
  const std::uint32_t world_size = keys::world_size_of(range.kv_rank);
  for (std::uint32_t worker = 0; worker < world_size; ++worker) {
    if (const std::uint32_t kv_rank = keys::pack_kv_rank(world_size, worker);
        kv_rank != range.kv_rank) {
      others.push_back(kv_rank);
    }
  }
  while (kept.chunks < chunks && !others.empty()) {
    const std::size_t end = std::min(chunks, kept.chunks + chunks_in_step(others.size()));
    keep_others(space, range.hashes.first(end), others, kept);
  }
  if (!kept.own) {
    kept.own = true;
    for (std::size_t first = 0; first < range.hashes.size(); first += kFindsInStep) {
      const std::size_t count = std::min(range.hashes.size() - first, kFindsInStep);
      keep_own(space, range.hashes.subspan(first, count), range.kv_rank, kept);
    }
  }
}

void CacheIndex::keep_others(const KeySpace& space,
                             std::span<const keys::ChunkHash> hashes,
                             std::span<const std::uint32_t> kv_ranks,
                             Kept& kept) {
  std::vector<Object*> objects;
  {
    const MutexLock lock(mutex_);
    const Shelf* const shelf = find_shelf(space);
    bool has_ended = shelf == nullptr;
    for (; kept.chunks < hashes.size() && !has_ended; ++kept.chunks) {
      has_ended = !find_in_ranks(*shelf, hashes[kept.chunks], kv_ranks, objects);
    }
    if (has_ended) {
      kept.chunks = std::numeric_limits<std::size_t>::max();
    }
    pin_all(objects);
  }
  kept.pins.absorb(ReadLease(this, std::move(objects)));
}

void CacheIndex::keep_own(const KeySpace& space,
                          std::span<const keys::ChunkHash> hashes,
                          std::uint32_t kv_rank,
                          Kept& kept) {
  std::vector<Object*> objects;
  {
    const MutexLock lock(mutex_);
    const Shelf* const shelf = find_shelf(space);
    for (const keys::ChunkHash& hash : hashes) {
      Object* const object = shelf == nullptr ? nullptr : shelf->find({hash, kv_rank});
      if (object != nullptr) {
        objects.push_back(object);
      }
    }
    pin_all(objects);
  }
  kept.pins.absorb(ReadLease(this, std::move(objects)));
}

void CacheIndex::pin_all(std::span<Object* const> objects) {
  for (Object* const object : objects) {
    pin(*object);
  }
}

bool CacheIndex::admits(const KeySpace& space, const StoreRange& range, std::size_t chunk) {
  const MutexLock lock(mutex_);
  const Object* const victim = policy_->victim();
  if (victim == nullptr) {
    return true;  // then there is no room either, and the answer says so
  }
  Shelf* const shelf = find_shelf(space);
  Object newcomer({range.hashes[chunk], range.kv_rank}, shelf, pool::Slot());
  // The chunks between are new too: they go on where the last resident one ends.
  const Object* before = nullptr;
  for (std::size_t at = chunk; before == nullptr && shelf != nullptr && at-- > 0;) {
    before = shelf->find({range.hashes[at], range.kv_rank});
  }
  if (before != nullptr && before->usage.branches == 0) {
    newcomer.usage.found = before->usage.found;
  }
  return policy_->admits(newcomer, *victim);
}

Result<pool::Slot> CacheIndex::take_evicting(std::size_t bytes) {
  const std::size_t wanted = pool_.rounded(bytes);
  Result<pool::Slot> slot = pool_.take(bytes);
  Walk walk;
  for (int round = 0; round < kRoundsMax;) {
    if (slot || slot.error().code != Code::kNoSpace) {
      return slot;
    }
    const pool::PoolUsage usage = pool_.usage();
    const std::size_t free_bytes =
        usage.capacity_bytes - std::min(usage.used_bytes, usage.capacity_bytes);
    if (free_bytes + evictable_bytes_.load() < wanted) {
      return slot;
    }
    Dropped dropped;
    {
      const MutexLock lock(mutex_);
      const std::optional<Window> window = find_window(wanted, walk);
      if (!window.has_value() && walk.is_over) {
        return slot;
      }
      if (!window.has_value()) {
        continue;  // others may have the mutex in between
      }
      for (Object* const object : window->objects) {
        untie(*object);
      }
      for (Object* const object : window->objects) {
        dropped.push_back(evict(*object));
      }
    }
    std::vector<pool::Slot> slots;
    slots.reserve(dropped.size());
    for (const std::unique_ptr<Object>& object : dropped) {
      slots.push_back(std::move(object->slot));
    }
    slot = pool_.exchange(std::move(slots), bytes);
    walk = {};
    ++round;
  }
  return slot;
}

std::optional<Window> CacheIndex::find_window(std::size_t bytes, Walk& walk) {
  std::vector<Object*> seeds;
  std::optional<Window> best;
  Object* const first = policy_->victim();
  if (first == nullptr) {
    walk.is_over = true;
    return std::nullopt;
  }
  const UseSpan uses{std::min(first->usage.last_use, newest_use_), newest_use_};
  double cost_max = std::numeric_limits<double>::infinity();
  const bool walks_already = walk.from > 0;
  while (seeds.size() < kWindowsCompared && !walks_already) {
    Object* const seed = policy_->victim();
    if (seed == nullptr) {
      break;
    }
    std::optional<Window> window = by_address_.around(*seed, bytes, uses, cost_max);
    if (window.has_value()) {
      cost_max = window->cost;
      best = std::move(window);
      if (seed == first && best->objects.size() == 1) {
        break;
      }
    }
    policy_->pin(*seed);  // so that the next one is offered
    seeds.push_back(seed);
  }
  for (Object* const seed : seeds) {
    policy_->unpin(*seed);
  }
  return best.has_value() ? std::move(best) : by_address_.anywhere(bytes, uses, kWalkStep, walk);
}

void CacheIndex::untie(Object& object) {
  while (!object.is_tail()) {
    object.links.first_behind->unlink();
  }
}

std::unique_ptr<Object> CacheIndex::evict(Object& victim) {
  LARDER_CHECK(victim.pins == 0);
  policy_->remove(victim, Leaving::kEvicted);
  victim.shelf->evicted->add();
  evictable_bytes_.fetch_sub(pool_.rounded(victim.slot.size()));
  return take_out(victim);
}

std::unique_ptr<Object> CacheIndex::take_out(Object& object) {
  LARDER_CHECK(object.is_tail() && object.shelf != nullptr);
  by_address_.remove(object);
  if (Object* const before = object.links.before; before != nullptr) {
    object.unlink();
    if (before->is_tail() && before->pins == 0) {
      policy_->unpin(*before);
    }
  }
  Shelf& shelf = *object.shelf;
  shelf.tenant->resident_bytes -= pool_.rounded(object.slot.size());
  resident_objects_.fetch_sub(1);
  const auto found = shelf.objects.find(object.id);
  LARDER_CHECK(found != shelf.objects.end());
  std::unique_ptr<Object> taken = std::move(found->second);
  shelf.objects.erase(found);
  taken->shelf = nullptr;
  if (shelf.objects.empty()) {
    drop_shelf(shelves_.find(*shelf.space));
  }
  return taken;
}

bool CacheIndex::make_room_in_quota(const WriteLease& lease,
                                    const StoreRange& range,
                                    std::size_t chunk,
                                    std::size_t bytes,
                                    Kept& kept) {
  const std::size_t wanted = pool_.rounded(bytes) * (lease.size() + 1);
  {
    const MutexLock lock(mutex_);
    const Tenant* const tenant = find_limited(lease.space_.cache_salt);
    if (tenant == nullptr || tenant->resident_bytes + wanted <= tenant->share_bytes) {
      return true;
    }
  }
  keep_prefix(lease.space_, range, chunk + 1, kept);
  Dropped dropped;
  const MutexLock lock(mutex_);
  const Tenant* const tenant = find_limited(lease.space_.cache_salt);
  if (tenant == nullptr) {
    return true;
  }
  if (tenant->pinned_bytes + wanted > tenant->share_bytes) {
    return false;
  }
  trim(*tenant, tenant->share_bytes - wanted, std::numeric_limits<std::size_t>::max(), dropped);
  return tenant->resident_bytes + wanted <= tenant->share_bytes;
}

const Tenant* CacheIndex::find_limited(const std::string& cache_salt) const {
  const auto found = tenants_.find(cache_salt);
  return found == tenants_.end() || !found->second->limited ? nullptr : found->second.get();
}

void CacheIndex::trim(const Tenant& tenant,
                      std::uint64_t bytes_max,
                      std::size_t objects_max,
                      Dropped& dropped) {
  while (tenant.resident_bytes > bytes_max && dropped.size() < objects_max) {
    Object* const victim = policy_->victim_of(tenant);
    if (victim == nullptr) {
      break;
    }
    dropped.push_back(evict(*victim));
  }
}

}  // namespace larder::cache
