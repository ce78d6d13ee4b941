#include "cache/cache_index.h"

#include <algorithm>

#include "base/check.h"

namespace larder::cache {
namespace {

metrics::Labels salt_label(const std::string& salt) {
  // OpenTelemetry drops an empty label of these counters; dashboards rely on it.
  return salt.empty() ? metrics::Labels{} : metrics::Labels{{"cache_salt", salt}};
}

Object* find(const Shelf& shelf, const keys::ObjectId& id) {
  const auto found = shelf.objects.find(id);
  return found == shelf.objects.end() ? nullptr : found->second.get();
}

}  // namespace

CacheIndex::CacheIndex(pool::Pool& pool,
                       std::unique_ptr<EvictionPolicy> policy,
                       metrics::Registry& metrics)
    : pool_(pool),
      policy_(std::move(policy)),
      written_chunks_(
          metrics.counter_family("lmcache_mp_l1_write_chunks_total", "Chunks stored in L1")),
      evicted_chunks_(
          metrics.counter_family("lmcache_mp_l1_evicted_chunks_total", "Chunks evicted from L1")) {
  LARDER_CHECK(policy_ != nullptr);
}

CacheIndex::~CacheIndex() {
  LARDER_CHECK(pinned_objects_.load() == 0 && reserved_objects_.load() == 0);
}

PrefixLookup CacheIndex::acquire_prefix(std::span<const KeySpace> spaces,
                                        std::span<const keys::ChunkHash> hashes,
                                        std::span<const std::uint32_t> kv_ranks) {
  PrefixLookup answer;
  if (spaces.empty() || kv_ranks.empty()) {
    return answer;
  }
  std::vector<std::vector<Object*>> found(spaces.size());
  const MutexLock lock(mutex_);
  std::vector<Shelf*> shelves;
  for (const KeySpace& space : spaces) {
    shelves.push_back(find_shelf(space));
    if (shelves.back() == nullptr) {
      return answer;
    }
  }
  const auto has_chunk = [&](const keys::ChunkHash& hash) {
    for (std::size_t s = 0; s < shelves.size(); ++s) {
      for (const std::uint32_t rank : kv_ranks) {
        Object* const object = find(*shelves[s], keys::ObjectId{hash, rank, 0});
        if (object == nullptr) {
          return false;
        }
        found[s].push_back(object);
      }
    }
    return true;
  };
  while (answer.chunks < hashes.size() && has_chunk(hashes[answer.chunks])) {
    ++answer.chunks;
  }
  std::vector<Object*> pinned;
  for (std::vector<Object*>& objects : found) {
    objects.resize(answer.chunks * kv_ranks.size());  // drops what a partial chunk left
    for (Object* object : objects) {
      pin(*object);
    }
    pinned.insert(pinned.end(), objects.begin(), objects.end());
  }
  // Chunk by chunk over all layouts and ranks: what makes up one chunk must also go together.
  for (std::size_t chunk = answer.chunks; chunk-- > 0;) {
    for (const std::vector<Object*>& objects : found) {
      for (std::size_t rank = 0; rank < kv_ranks.size(); ++rank) {
        policy_->touch(*objects[chunk * kv_ranks.size() + rank]);
      }
    }
  }
  answer.lease = ReadLease(this, std::move(pinned));
  return answer;
}

Result<ReadLease> CacheIndex::acquire(const KeySpace& space, const StoreRange& range) {
  std::vector<Object*> objects;
  const MutexLock lock(mutex_);
  Shelf* const shelf = find_shelf(space);
  if (shelf == nullptr) {
    return Error{Code::kNotFound, "nothing is stored for this model and salt"};
  }
  for (const keys::ChunkHash& hash : range.hashes.subspan(range.first_chunk)) {
    Object* const object = find(*shelf, keys::ObjectId{hash, range.kv_rank, 0});
    if (object == nullptr) {
      return Error{Code::kNotFound, "a chunk is not stored"};
    }
    objects.push_back(object);
  }
  for (Object* object : objects) {
    pin(*object);
  }
  touch_prefix({&shelf, 1}, range.hashes, {&range.kv_rank, 1});
  return ReadLease(this, std::move(objects));
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

Result<WriteLease> CacheIndex::reserve(const KeySpace& space,
                                       const StoreRange& range,
                                       const std::function<bool(const keys::ObjectId&)>& skip) {
  const Result<std::size_t> bytes = tensors::bytes_of(space.layout);
  if (!bytes) {
    return bytes.error();
  }
  WriteLease lease;
  std::vector<std::size_t> missing;
  {
    const MutexLock lock(mutex_);
    const Shelf* const shelf = find_shelf(space);
    lease.clear_count_ = clear_count_;
    for (std::size_t chunk = range.first_chunk; chunk < range.hashes.size(); ++chunk) {
      if (shelf == nullptr || find(*shelf, {range.hashes[chunk], range.kv_rank, 0}) == nullptr) {
        missing.push_back(chunk);
      }
    }
  }
  // Asked outside the mutex: the caller looks through its own transfers under a lock of its own.
  std::erase_if(missing, [&](std::size_t chunk) {
    return skip(keys::ObjectId{range.hashes[chunk], range.kv_rank, 0});
  });
  lease.index_ = this;
  lease.space_ = space;
  lease.kv_rank_ = range.kv_rank;
  lease.hashes_.assign(range.hashes.begin(), range.hashes.end());
  lease.missing_ = missing.size();
  Kept kept;
  for (const std::size_t chunk : missing) {
    Result<pool::Slot> slot = pool_.take(*bytes);
    if (!slot && slot.error().code == Code::kNoSpace) {
      keep_prefix(space, range, chunk + 1, kept);
      slot = take_evicting(*bytes);
    }
    if (!slot) {
      if (lease.slots_.empty()) {
        return slot.error();
      }
      break;
    }
    lease.slots_.push_back(std::move(*slot));
    lease.chunks_.push_back(chunk);
    reserved_objects_.fetch_add(1);
  }
  return lease;
}

void CacheIndex::touch(std::span<const KeySpace> spaces,
                       std::span<const keys::ChunkHash> hashes,
                       std::span<const std::uint32_t> kv_ranks) {
  const MutexLock lock(mutex_);
  std::vector<Shelf*> shelves;
  for (const KeySpace& space : spaces) {
    if (Shelf* const shelf = find_shelf(space); shelf != nullptr) {
      shelves.push_back(shelf);
    }
  }
  touch_prefix(shelves, hashes, kv_ranks);
}

void CacheIndex::clear() {
  Dropped dropped;
  const MutexLock lock(mutex_);
  ++clear_count_;
  for (auto& [space, shelf] : shelves_) {
    for (auto& [id, object] : shelf.objects) {
      policy_->remove(*object);
      object->shelf = nullptr;
      Object* const key = object.get();
      if (key->pins > 0) {
        detached_.emplace(key, std::move(object));
      } else {
        evictable_bytes_.fetch_sub(pool_.rounded(key->slot.size()));
        dropped.push_back(std::move(object));
      }
    }
  }
  shelves_.clear();
  resident_objects_.store(0);
}

std::size_t CacheIndex::evict_down_to(std::size_t used_bytes, std::size_t objects_max) {
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

CacheStats CacheIndex::stats() const {
  return {resident_objects_.load(),
          pinned_objects_.load(),
          reserved_objects_.load(),
          evictable_bytes_.load()};
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

bool CacheIndex::publish(WriteLease& lease) {
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
    if (find(shelf, id) != nullptr) {
      continue;
    }
    const std::size_t bytes = pool_.rounded(lease.slots_[i].size());
    auto object = std::make_unique<Object>(id, &shelf, std::move(lease.slots_[i]));
    policy_->add(*object);
    shelf.objects.emplace(id, std::move(object));
    resident_objects_.fetch_add(1);
    evictable_bytes_.fetch_add(bytes);
    shelf.written->add();
  }
  Shelf* const touched = &shelf;
  touch_prefix({&touched, 1}, lease.hashes_, {&lease.kv_rank_, 1});
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
    place->second.written = &written_chunks_.with(salt_label(space.cache_salt));
    place->second.evicted = &evicted_chunks_.with(salt_label(space.cache_salt));
  }
  return place->second;
}

void CacheIndex::pin(Object& object) {
  if (object.pins++ == 0) {
    pinned_objects_.fetch_add(1);
    if (object.shelf != nullptr) {
      policy_->pin(object);
      evictable_bytes_.fetch_sub(pool_.rounded(object.slot.size()));
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
    policy_->unpin(object);
    evictable_bytes_.fetch_add(pool_.rounded(object.slot.size()));
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
        if (Object* const object = find(*shelf, keys::ObjectId{*hash, rank, 0});
            object != nullptr) {
          policy_->touch(*object);
        }
      }
    }
  }
}

std::unique_ptr<Object> CacheIndex::evict(Object& victim) {
  LARDER_CHECK(victim.pins == 0 && victim.shelf != nullptr);
  policy_->remove(victim);
  Shelf& shelf = *victim.shelf;
  shelf.evicted->add();
  resident_objects_.fetch_sub(1);
  evictable_bytes_.fetch_sub(pool_.rounded(victim.slot.size()));
  const auto found = shelf.objects.find(victim.id);
  LARDER_CHECK(found != shelf.objects.end());
  std::unique_ptr<Object> object = std::move(found->second);
  shelf.objects.erase(found);
  object->shelf = nullptr;
  if (shelf.objects.empty()) {
    shelves_.erase(shelves_.find(*shelf.space));
  }
  return object;
}

CacheIndex::Dropped CacheIndex::evict_bytes(std::size_t bytes) {
  Dropped dropped;
  std::size_t freed = 0;
  const MutexLock lock(mutex_);
  while (freed < bytes) {
    Object* const victim = policy_->victim();
    if (victim == nullptr) {
      break;
    }
    freed += pool_.rounded(victim->slot.size());
    dropped.push_back(evict(*victim));
  }
  return dropped;
}

void CacheIndex::keep_prefix(const KeySpace& space,
                             const StoreRange& range,
                             std::size_t chunks,
                             Kept& kept) {
  std::vector<Object*> objects;
  const auto keep = [&objects](Object* object) {
    if (object != nullptr) {
      objects.push_back(object);
    }
  };
  const MutexLock lock(mutex_);
  const Shelf* const shelf = find_shelf(space);
  if (shelf == nullptr) {
    return;
  }
  const std::uint32_t world_size = keys::world_size_of(range.kv_rank);
  for (; kept.chunks < chunks; ++kept.chunks) {
    for (std::uint32_t worker = 0; worker < world_size; ++worker) {
      const std::uint32_t kv_rank = keys::pack_kv_rank(world_size, worker);
      if (kv_rank != range.kv_rank) {
        keep(find(*shelf, {range.hashes[kept.chunks], kv_rank, 0}));
      }
    }
  }
  if (!kept.own) {
    kept.own = true;
    for (const keys::ChunkHash& hash : range.hashes) {
      keep(find(*shelf, {hash, range.kv_rank, 0}));
    }
  }
  for (Object* const object : objects) {
    pin(*object);
  }
  kept.pins.absorb(ReadLease(this, std::move(objects)));
}

Result<pool::Slot> CacheIndex::take_evicting(std::size_t bytes) {
  const std::size_t wanted = pool_.rounded(bytes);
  while (true) {
    Result<pool::Slot> slot = pool_.take(bytes);
    if (slot || slot.error().code != Code::kNoSpace) {
      return slot;
    }
    const pool::PoolUsage usage = pool_.usage();
    const std::size_t free_bytes =
        usage.capacity_bytes - std::min(usage.used_bytes, usage.capacity_bytes);
    if (free_bytes + evictable_bytes_.load() < wanted) {
      return slot;
    }
    if (evict_bytes(wanted).empty()) {
      return slot;
    }
  }
}

}  // namespace larder::cache
