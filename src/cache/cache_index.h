// cache_index.h - L1: which chunks are stored, and who may touch them.
//
// An object is absent, reserved (a WriteLease; invisible) or resident. Only a commit makes it
// resident, so nobody ever reads bytes whose writer did not finish. Any number of writers may
// reserve the same key; the first commit wins. A resident object with pins is neither evicted nor
// reused; clear() hides it at once and its last pin frees it.
//
// Room is made on demand: reserve() evicts neighbours that leave one piece of the size it needs,
// what the policy gives up or lies beside it; nothing for what cannot fit anyway, and never the
// request's own prefix, of whichever rank. A chunk goes only after those behind it in its prompts,
// unless there is no other way. Lookups count a chunk only when every rank (and every layout asked
// for) has it, and pin no chunk beyond the answer.
//
// Thread-safe: one mutex, held for microseconds per chunk and never during allocation, copies or
// I/O. Statistics are atomics.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "cache/address_map.h"
#include "cache/eviction_policy.h"
#include "cache/key_space.h"
#include "cache/leases.h"
#include "cache/object.h"
#include "cache/shelf.h"
#include "keys/object_key.h"
#include "metrics/metrics.h"
#include "pool/pool.h"

namespace larder::cache {

struct CacheStats {
  std::uint64_t resident_objects;
  std::uint64_t pinned_objects;    // with at least one pin, cleared ones included
  std::uint64_t reserved_objects;  // in write leases
  // Resident and unpinned, rounded to the pool's alignment: what may go at most. The head of a
  // prompt whose tail is pinned counts, though it goes only where nothing else makes room.
  std::uint64_t evictable_bytes;
  std::uint64_t corrupted_objects;  // found so far
};

struct PrefixLookup {
  std::size_t chunks = 0;  // leading chunks that every rank and layout has
  ReadLease lease;         // chunks * ranks * spaces places, ordered [space][chunk][rank]; a chunk
                           // before its space's window is not held
};

struct StoreRange {
  std::span<const keys::ChunkHash> hashes;  // of the prompt from its first chunk to the range's end
  std::size_t first_chunk = 0;              // of the range
  std::uint32_t kv_rank = 0;
};

struct Quota {
  std::string cache_salt;
  std::uint64_t limit_bytes;
  std::uint64_t resident_bytes;
};

enum class Admission : std::uint8_t {
  kAll,        // a store that needs room always gets it
  kSelective,  // not at the cost of what the policy thinks is worth more
};

// Which objects' bytes are compared with their checksum before they are handed out.
enum class Verification : std::uint8_t {
  kOff,     // none, and none has one
  kSample,  // one in sixteen, by chance
  kAlways,
};

class CacheIndex {
 public:
  static constexpr std::size_t kQuotasMax = 65536;

  CacheIndex(pool::Pool& pool,
             std::unique_ptr<EvictionPolicy> policy,
             metrics::Registry& metrics,
             Admission admission = Admission::kAll,
             Verification verification = Verification::kOff);
  CacheIndex(const CacheIndex&) = delete;
  CacheIndex& operator=(const CacheIndex&) = delete;
  ~CacheIndex();  // REQUIRES: no lease is left

  // The most leading chunks of `hashes` that can be read: all of kv_ranks hold them in all of
  // spaces, in those with a window the last ones. Counts as a use of what is pinned.
  PrefixLookup acquire_prefix(std::span<const NeededSpace> spaces,
                              std::span<const keys::ChunkHash> hashes,
                              std::span<const std::uint32_t> kv_ranks);

  // All objects of the range, or kNotFound and no pin. Counts as a use of the prompt up to the
  // range's end.
  Result<ReadLease> acquire(const KeySpace& space, const StoreRange& range);

  // One more pin on what another lease holds at these positions. REQUIRES: lease.holds() each of
  // them.
  ReadLease share(const ReadLease& lease, std::span<const std::size_t> positions);

  // Positions of the lease whose bytes are not those that were committed. These objects leave the
  // index for good, and every later call finds them again in the leases that still hold them. Reads
  // the bytes that are to be verified, without the mutex.
  std::vector<std::size_t> find_corrupted(const ReadLease& lease);

  // Memory for the chunks of the range that are neither resident nor skipped, as many of them from
  // the front as fit. An empty lease when there is nothing to store. kTooLarge when one object can
  // never fit; kNoSpace when not even one fits now, or into the salt's quota. With selective
  // admission, chunks from the first declined one on count as not missing. `skip` is asked without
  // the index's mutex. `filled` are slots that hold the range's objects already, by chunk: a valid
  // one is moved into the lease instead of a new one, if its chunk is to be stored.
  Result<WriteLease> reserve(const KeySpace& space,
                             const StoreRange& range,
                             const std::function<bool(const keys::ObjectId&)>& skip,
                             std::span<pool::Slot> filled = {});

  // For a thread that must not wait for the index, as the one that sends objects: the pins go with
  // the next reserve(), evict_down_to() or stats() of another thread. Taken as list nodes, so that
  // nothing can fail.
  void release_later(std::list<ReadLease> leases) noexcept;

  // Counts as a use of these chunks, where they are resident.
  void touch(std::span<const NeededSpace> spaces,
             std::span<const keys::ChunkHash> hashes,
             std::span<const std::uint32_t> kv_ranks);

  // Drops every object; pinned ones vanish from the index and are freed by their last pin.
  // Reservations of before will not commit.
  void clear();

  // Evicts until at most `used_bytes` of the pool are in use, at most `objects_max` objects per
  // call. Returns how many went.
  std::size_t evict_down_to(std::size_t used_bytes, std::size_t objects_max);

  // The same for what is not there yet: nothing with selective admission, which is to compare what
  // goes with what comes.
  void evict_ahead(std::size_t used_bytes, std::size_t objects_max);

  // What a cache salt may hold, in bytes of the pool. Applies with policies that keep tenants
  // apart, else it is only remembered. A store beyond the quota evicts of its own salt; what is
  // above a quota that was lowered goes at once, but for what is pinned. False, and nothing is
  // remembered, when there are kQuotasMax others.
  bool set_quota(const std::string& cache_salt, std::uint64_t bytes);

  // False when there was none.
  bool remove_quota(const std::string& cache_salt);

  std::vector<Quota> quotas() const;  // by salt

  // What a cache salt holds, with or without a quota.
  std::uint64_t resident_bytes(const std::string& cache_salt) const;

  CacheStats stats() const;

 private:
  friend class ReadLease;
  friend class WriteLease;

  using Shelves = std::unordered_map<KeySpace, Shelf, KeySpaceHash>;
  using Tenants = std::unordered_map<std::string, std::unique_ptr<Tenant>>;  // by salt
  using Dropped = std::vector<std::unique_ptr<Object>>;  // destroyed outside the mutex: their slots
                                                         // go back to the pool

  void release(std::span<Object* const> objects);
  void release_returned() const;
  bool publish(WriteLease& lease);
  void forget(WriteLease& lease);
  std::vector<std::uint64_t> checksums_of(std::span<const pool::Slot> slots) const;

  Shelf* find_shelf(const KeySpace& space) LARDER_REQUIRES(mutex_);
  Shelf& make_shelf(const KeySpace& space) LARDER_REQUIRES(mutex_);
  Tenant& make_tenant(const std::string& salt) LARDER_REQUIRES(mutex_);
  void drop_shelf(Shelves::iterator shelf) LARDER_REQUIRES(mutex_);
  void add(Shelf& shelf, std::unique_ptr<Object> object, Object* before) LARDER_REQUIRES(mutex_);
  void pin(Object& object) LARDER_REQUIRES(mutex_);
  void unpin(Object& object, Dropped& dropped) LARDER_REQUIRES(mutex_);
  // Objects that are looked for under one hold of the mutex, where a request may name any number.
  static constexpr std::size_t kFindsInStep = 4096;

  // Chunks of so many objects each that make a step.
  static std::size_t chunks_in_step(std::size_t objects) {
    return std::max<std::size_t>(1, kFindsInStep / objects);
  }

  // From the last chunk to the first, each in all shelves and ranks before the next.
  void touch_prefix(std::span<Shelf* const> shelves,
                    std::span<const keys::ChunkHash> hashes,
                    std::span<const std::uint32_t> kv_ranks) LARDER_REQUIRES(mutex_);

  // Pins of one reservation: whose room it must not take.
  struct Kept {
    ReadLease pins;
    std::size_t chunks = 0;  // of the other ranks so far
    bool own = false;
  };

  // The range's chunks that are not resident.
  std::vector<std::size_t> find_missing(const KeySpace& space,
                                        const StoreRange& range,
                                        WriteLease& lease);

  // Pins what is resident of the range's prompt: all of its own rank, and of the other ranks the
  // first `chunks`, up to one that none of them has. A chunk is found only if every rank has it, so
  // storing one at the cost of another rank's same or earlier one gains nothing.
  void keep_prefix(const KeySpace& space, const StoreRange& range, std::size_t chunks, Kept& kept);
  // In one hold of the mutex. The other ranks' chunks go on where they ended, and end for good at
  // one that none of them has.
  void keep_others(const KeySpace& space,
                   std::span<const keys::ChunkHash> hashes,
                   std::span<const std::uint32_t> kv_ranks,
                   Kept& kept);
  void keep_own(const KeySpace& space,
                std::span<const keys::ChunkHash> hashes,
                std::uint32_t kv_rank,
                Kept& kept);
  void pin_all(std::span<Object* const> objects) LARDER_REQUIRES(mutex_);

  // Whether the range's chunk is worth the room of what would go for it.
  bool admits(const KeySpace& space, const StoreRange& range, std::size_t chunk);

  Result<pool::Slot> take_evicting(std::size_t bytes);
  // Room in one piece, of what is worth little. Nothing when pins are in the way of every piece
  // that was looked at: of all of them once the walk is over.
  std::optional<Window> find_window(std::size_t bytes, Walk& walk) LARDER_REQUIRES(mutex_);
  // Unties an object from those behind it.
  static void untie(Object& object);
  std::unique_ptr<Object> evict(Object& victim) LARDER_REQUIRES(mutex_);
  // Out of all but the policy and the counts of pins. REQUIRES: a tail, with a shelf.
  std::unique_ptr<Object> take_out(Object& object) LARDER_REQUIRES(mutex_);

  bool is_due();
  // REQUIRES: pinned.
  void condemn(Object& object) LARDER_REQUIRES(mutex_);

  // Whether one more chunk of the lease is within its salt's quota; evicts of the same salt for it.
  // Nothing goes when pins leave no room for it.
  bool make_room_in_quota(const WriteLease& lease,
                          const StoreRange& range,
                          std::size_t chunk,
                          std::size_t bytes,
                          Kept& kept);
  const Tenant* find_limited(const std::string& cache_salt) const LARDER_REQUIRES(mutex_);
  // Evicts until the tenant holds at most bytes_max, at most objects_max objects.
  void trim(const Tenant& tenant,
            std::uint64_t bytes_max,
            std::size_t objects_max,
            Dropped& dropped) LARDER_REQUIRES(mutex_);

  pool::Pool& pool_;
  const Admission admission_;
  const Verification verification_;
  const bool has_quotas_;  // they apply
  mutable Mutex mutex_;
  const std::unique_ptr<EvictionPolicy> policy_ LARDER_PT_GUARDED_BY(mutex_);
  Shelves shelves_ LARDER_GUARDED_BY(mutex_);
  Tenants tenants_ LARDER_GUARDED_BY(mutex_);  // with a shelf or a quota
  std::unordered_map<Object*, std::unique_ptr<Object>> detached_ LARDER_GUARDED_BY(mutex_);
  AddressMap by_address_ LARDER_GUARDED_BY(mutex_);
  std::uint64_t newest_use_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t clear_count_ LARDER_GUARDED_BY(mutex_) = 0;
  std::uint64_t tenants_made_ LARDER_GUARDED_BY(mutex_) = 0;
  std::size_t quota_count_ LARDER_GUARDED_BY(mutex_) = 0;

  // Leases on their way back are no part of what the index says it holds.
  mutable Mutex returned_mutex_;  // held for a moment, and with no other
  mutable std::list<ReadLease> returned_ LARDER_GUARDED_BY(returned_mutex_);
  mutable std::atomic<bool> has_returned_{false};

  std::atomic<std::uint64_t> resident_objects_{0};
  std::atomic<std::uint64_t> pinned_objects_{0};
  std::atomic<std::uint64_t> reserved_objects_{0};
  std::atomic<std::uint64_t> evictable_bytes_{0};
  std::atomic<std::uint64_t> verify_turns_{0};

  metrics::CounterFamily& written_chunks_;
  metrics::CounterFamily& evicted_chunks_;
  metrics::Counter& declined_chunks_;
  metrics::Counter& verified_objects_;
  metrics::Counter& corrupted_objects_;
};

}  // namespace larder::cache
