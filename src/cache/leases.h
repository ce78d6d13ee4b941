// leases.h - the only ways to an object's bytes: ReadLease for stored objects, WriteLease for
// objects being stored.
//
// Both are batches, since a request moves many chunks at once and takes the index's mutex once for
// all of them. Both are move-only; the destructor gives back what is left. One thread at a time
// uses a lease; several leases of the same objects may be used at once. The index outlives every
// lease.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "cache/key_space.h"
#include "keys/object_key.h"
#include "pool/pool.h"

namespace larder::cache {

class CacheIndex;
struct Object;

// Pins on objects: while one lives, the object's bytes neither move nor change nor go, also when
// the index drops it.
class [[nodiscard]] ReadLease {
 public:
  ReadLease() = default;

  ReadLease(ReadLease&& other) noexcept
      : index_(std::exchange(other.index_, nullptr)), objects_(std::move(other.objects_)) {
    other.objects_.clear();
  }

  ReadLease& operator=(ReadLease&& other) noexcept;
  ReadLease(const ReadLease&) = delete;
  ReadLease& operator=(const ReadLease&) = delete;
  ~ReadLease();

  bool empty() const { return objects_.empty(); }

  std::size_t size() const { return objects_.size(); }

  // False for a position that was moved out.
  bool holds(std::size_t position) const { return objects_[position] != nullptr; }

  // REQUIRES: holds(position), for both.
  std::span<const std::byte> bytes(std::size_t position) const;
  std::size_t offset(std::size_t position) const;  // of the slot in the segment

  // Whether find_corrupted() has found it, here or in another lease. REQUIRES: holds(position).
  bool is_corrupted(std::size_t position) const;

  // Moves one pin into another lease (of the same index), so that many can be given back at once
  // elsewhere. REQUIRES: holds(position).
  void move_to(std::size_t position, ReadLease& other);

  // Moves all of another lease's pins to the end of this one.
  void absorb(ReadLease&& other);

 private:
  friend class CacheIndex;

  ReadLease(CacheIndex* index, std::vector<Object*> objects)
      : index_(index), objects_(std::move(objects)) {}

  CacheIndex* index_ = nullptr;
  std::vector<Object*> objects_;
};

// Reserved memory for chunks that are not stored yet. Nobody sees them: only commit() publishes,
// and only whole.
class [[nodiscard]] WriteLease {
 public:
  WriteLease() = default;

  WriteLease(WriteLease&& other) noexcept
      : index_(std::exchange(other.index_, nullptr)),
        clear_count_(other.clear_count_),
        space_(std::move(other.space_)),
        kv_rank_(other.kv_rank_),
        hashes_(std::move(other.hashes_)),
        chunks_(std::move(other.chunks_)),
        slots_(std::move(other.slots_)),
        checksums_(std::move(other.checksums_)),
        missing_(other.missing_) {}

  WriteLease& operator=(WriteLease&& other) noexcept;
  WriteLease(const WriteLease&) = delete;
  WriteLease& operator=(const WriteLease&) = delete;
  ~WriteLease();  // discards what was not committed

  bool empty() const { return slots_.empty(); }

  std::size_t size() const { return slots_.size(); }

  // How many chunks of the range had to be stored when this was reserved; more than size() when the
  // pool had no room.
  std::size_t missing() const { return missing_; }

  std::size_t chunk(std::size_t position) const {
    return chunks_[position];
  }  // counted from the prompt's start

  keys::ObjectId id(std::size_t position) const;

  const pool::Slot& slot(std::size_t position) const { return slots_[position]; }

  // Makes every object visible and counts as a use of the whole prefix. A chunk that somebody else
  // stored meanwhile is dropped here, as it is there already. False, and nothing is published, when
  // the cache was cleared since. Where objects are verified, reads all bytes once, without the
  // index's mutex.
  bool commit();

  // Gives up without publishing, and hands the memory to the caller: a client may still write into
  // it.
  std::vector<pool::Slot> abandon();

 private:
  friend class CacheIndex;

  CacheIndex* index_ = nullptr;
  std::uint64_t clear_count_ = 0;  // of the index when this was reserved
  KeySpace space_;
  std::uint32_t kv_rank_ = 0;
  std::vector<keys::ChunkHash> hashes_;  // of the prompt up to the range's end
  std::vector<std::size_t> chunks_;
  std::vector<pool::Slot> slots_;
  std::vector<std::uint64_t> checksums_;  // of the slots, from commit() on
  std::size_t missing_ = 0;
};

}  // namespace larder::cache
