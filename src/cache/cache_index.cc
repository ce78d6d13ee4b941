#include "cache/cache_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/checksum.h"

namespace larder::cache {
namespace {

metrics::Labels salt_label(const std::string& salt) {
  // OpenTelemetry drops an empty label of these counters; dashboards rely on it.
  return salt.empty() ? metrics::Labels{} : metrics::Labels{{"cache_salt", salt}};
}

}  // namespace

CacheIndex::CacheIndex(pool::Pool& pool,
                       std::unique_ptr<EvictionPolicy> policy,
                       metrics::Registry& metrics,
                       Admission admission,
                       Verification verification)
    : pool_(pool),
      admission_(admission),
      verification_(verification),
      has_quotas_(policy != nullptr && policy->isolates()),
      policy_(std::move(policy)),
      by_address_(pool),
      written_chunks_(
          metrics.counter_family("lmcache_mp_l1_write_chunks_total", "Chunks stored in L1")),
      evicted_chunks_(
          metrics.counter_family("lmcache_mp_l1_evicted_chunks_total", "Chunks evicted from L1")),
      declined_chunks_(metrics.counter("larder_l1_declined_chunks_total",
                                       "Chunks not stored because others are worth more")),
      verified_objects_(metrics.counter("larder_l1_verified_objects_total",
                                        "Objects whose checksum was compared before a retrieve")),
      corrupted_objects_(
          metrics.counter("larder_l1_corrupted_objects_total",
                          "Objects whose bytes changed since they were stored; dropped")) {
  LARDER_CHECK(policy_ != nullptr);
  // The library chooses its code at the first call, which must not be two threads' first.
  checksum_of({});
}

CacheIndex::~CacheIndex() {
  release_returned();
  LARDER_CHECK(pinned_objects_.load() == 0 && reserved_objects_.load() == 0);
}

ReadLease CacheIndex::share(const ReadLease& lease, std::span<const std::size_t> positions) {
  std::vector<Object*> objects;
  objects.reserve(positions.size());
  const MutexLock lock(mutex_);
  for (const std::size_t position : positions) {
    LARDER_CHECK(lease.holds(position));
    objects.push_back(lease.objects_[position]);
    pin(*objects.back());
  }
  return ReadLease(this, std::move(objects));
}

void CacheIndex::clear() {
  Dropped dropped;
  const MutexLock lock(mutex_);
  ++clear_count_;
  for (auto& [space, shelf] : shelves_) {
    shelf.tenant->resident_bytes = 0;
    shelf.tenant->pinned_bytes = 0;
    for (auto& [id, object] : shelf.objects) {
      policy_->remove(*object, Leaving::kCleared);
      by_address_.remove(*object);
      object->shelf = nullptr;
      object->links = {};
      Object* const key = object.get();
      if (key->pins > 0) {
        detached_.emplace(key, std::move(object));
      } else {
        evictable_bytes_.fetch_sub(pool_.rounded(key->slot.size()));
        dropped.push_back(std::move(object));
      }
    }
  }
  while (!shelves_.empty()) {
    drop_shelf(shelves_.begin());
  }
  resident_objects_.store(0);
}

CacheStats CacheIndex::stats() const {
  release_returned();
  return {resident_objects_.load(),
          pinned_objects_.load(),
          reserved_objects_.load(),
          evictable_bytes_.load(),
          corrupted_objects_.value()};
}

void CacheIndex::release(std::span<Object* const> objects) {
  Dropped dropped;
  const MutexLock lock(mutex_);
  for (Object* object : objects) {
    if (object != nullptr) {
      unpin(*object, dropped);
    }
  }
}

void CacheIndex::release_later(std::list<ReadLease> leases) noexcept {
  const MutexLock lock(returned_mutex_);
  returned_.splice(returned_.end(), leases);
  has_returned_.store(true);
}

void CacheIndex::release_returned() const {
  if (!has_returned_.exchange(false)) {
    return;
  }
  std::list<ReadLease> leases;  // given back after the lock is released
  const MutexLock lock(returned_mutex_);
  leases.swap(returned_);
}

bool CacheIndex::publish(WriteLease& lease) {
  {
    const MutexLock lock(mutex_);
    if (lease.clear_count_ != clear_count_) {
      return false;
    }
    if (lease.slots_.empty()) {
      return true;
    }
    Shelf& shelf = make_shelf(lease.space_);
    for (std::size_t i = 0; i < lease.slots_.size(); ++i) {
      const keys::ObjectId id = lease.id(i);
      if (shelf.find(id) != nullptr) {
        continue;
      }
      const std::size_t chunk = lease.chunk(i);
      Object* const before =
          chunk == 0 ? nullptr : shelf.find({lease.hashes_[chunk - 1], lease.kv_rank_});
      add(shelf,
          std::make_unique<Object>(id, &shelf, std::move(lease.slots_[i]), lease.checksums_[i]),
          before);
    }
  }
  const NeededSpace touched{lease.space_, std::nullopt};
  touch({&touched, 1}, lease.hashes_, {&lease.kv_rank_, 1});
  // Stores side by side may each have fitted into the quota.
  if (has_quotas_) {
    Dropped dropped;
    const MutexLock lock(mutex_);
    if (const Tenant* const tenant = find_limited(lease.space_.cache_salt); tenant != nullptr) {
      trim(*tenant, tenant->share_bytes, lease.slots_.size(), dropped);
    }
  }
  return true;
}

void CacheIndex::forget(WriteLease& lease) {
  reserved_objects_.fetch_sub(lease.slots_.size());
  lease.slots_.clear();
  lease.index_ = nullptr;
}

Shelf* CacheIndex::find_shelf(const KeySpace& space) {
  const auto found = shelves_.find(space);
  return found == shelves_.end() ? nullptr : &found->second;
}

Shelf& CacheIndex::make_shelf(const KeySpace& space) {
  const auto [place, is_new] = shelves_.try_emplace(space);
  if (is_new) {
    place->second.space = &place->first;
    place->second.space_hash = KeySpaceHash()(space);
    place->second.tenant = &make_tenant(space.cache_salt);
    ++place->second.tenant->shelves;
    place->second.written = &written_chunks_.with(salt_label(space.cache_salt));
    place->second.evicted = &evicted_chunks_.with(salt_label(space.cache_salt));
  }
  return place->second;
}

Tenant& CacheIndex::make_tenant(const std::string& salt) {
  const auto [place, is_new] = tenants_.try_emplace(salt);
  if (is_new) {
    place->second = std::make_unique<Tenant>();
    place->second->number = ++tenants_made_;
    place->second->share_bytes = pool_.usage().configured_bytes;
  }
  return *place->second;
}

void CacheIndex::drop_shelf(Shelves::iterator shelf) {
  Tenant& tenant = *shelf->second.tenant;
  --tenant.shelves;
  if (tenant.shelves == 0 && !tenant.limited) {
    tenants_.erase(shelf->first.cache_salt);
  }
  shelves_.erase(shelf);
}

void CacheIndex::add(Shelf& shelf, std::unique_ptr<Object> object, Object* before) {
  if (before != nullptr) {
    // Many prompts share what they begin with, so only the first to go on is the same one again.
    object->usage.found = before->usage.branches == 0 ? before->usage.found : std::uint16_t{0};
    Usage::count(before->usage.branches);
    if (before->is_tail() && before->pins == 0) {
      policy_->pin(*before);
    }
    object->link_behind(*before);
  }
  const std::size_t bytes = pool_.rounded(object->slot.size());
  shelf.tenant->resident_bytes += bytes;
  policy_->add(*object);
  newest_use_ = object->usage.last_use;
  by_address_.add(*object);
  const keys::ObjectId id = object->id;
  shelf.objects.emplace(id, std::move(object));
  resident_objects_.fetch_add(1);
  evictable_bytes_.fetch_add(bytes);
  shelf.written->add();
}

void CacheIndex::pin(Object& object) {
  if (object.pins++ == 0) {
    pinned_objects_.fetch_add(1);
    if (object.shelf != nullptr) {
      if (object.is_tail()) {
        policy_->pin(object);
      }
      const std::size_t bytes = pool_.rounded(object.slot.size());
      evictable_bytes_.fetch_sub(bytes);
      object.shelf->tenant->pinned_bytes += bytes;
    }
  }
}

void CacheIndex::unpin(Object& object, Dropped& dropped) {
  LARDER_CHECK(object.pins > 0);
  if (--object.pins > 0) {
    return;
  }
  pinned_objects_.fetch_sub(1);
  if (object.shelf != nullptr) {
    if (object.is_tail()) {
      policy_->unpin(object);
    }
    const std::size_t bytes = pool_.rounded(object.slot.size());
    evictable_bytes_.fetch_add(bytes);
    object.shelf->tenant->pinned_bytes -= bytes;
    return;
  }
  const auto found = detached_.find(&object);
  LARDER_CHECK(found != detached_.end());
  dropped.push_back(std::move(found->second));
  detached_.erase(found);
}

void CacheIndex::touch_prefix(std::span<Shelf* const> shelves,
                              std::span<const keys::ChunkHash> hashes,
                              std::span<const std::uint32_t> kv_ranks) {
  for (auto hash = hashes.rbegin(); hash != hashes.rend(); ++hash) {
    for (const Shelf* const shelf : shelves) {
      for (const std::uint32_t rank : kv_ranks) {
        if (Object* const object = shelf->find(keys::ObjectId{*hash, rank}); object != nullptr) {
          policy_->touch(*object, Use::kKept);
          newest_use_ = object->usage.last_use;
        }
      }
    }
  }
}

}  // namespace larder::cache
