// pool.h - the memory that holds every object: one shared segment and the allocator that hands out
// Slots.
//
// A client maps the segment by name and reads and writes its slots directly, so a page that the
// system cannot back would kill the engine (SIGBUS). Therefore a slot is handed out only when its
// pages are reserved (fallocate): the first 64 MiB before the constructor returns, the rest by a
// background thread. If the system runs out on the way the pool stays smaller: capacity_bytes()
// says by how much, and growth_failed() turns true.
//
// Slots are multiples of align_bytes, found by best fit in O(log n). The pool never evicts:
// kNoSpace is for the caller to act on. Thread-safe; the pool outlives every Slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "pool/pool_config.h"

namespace larder::pool {

class Pool;

// A byte range of the pool, given back on destruction. Move-only.
class [[nodiscard]] Slot {
 public:
  Slot() = default;

  Slot(Slot&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), offset_(other.offset_), bytes_(other.bytes_) {}

  Slot& operator=(Slot&& other) noexcept;
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  ~Slot();

  bool valid() const { return pool_ != nullptr; }

  std::size_t offset() const { return offset_; }  // from the start of the segment

  std::size_t size() const { return bytes_; }  // as asked for, not rounded

  std::span<std::byte> bytes() const;

 private:
  friend class Pool;

  Slot(Pool* pool, std::size_t offset, std::size_t bytes)
      : pool_(pool), offset_(offset), bytes_(bytes) {}

  Pool* pool_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
};

struct PoolRange {
  std::size_t offset;
  std::size_t bytes;
};

struct PoolUsage {
  std::size_t configured_bytes;  // what clients are told; the size of the segment's file
  std::size_t capacity_bytes;    // reserved so far: what slots can come from
  std::size_t used_bytes;        // in slots, rounded to the alignment
};

class Pool {
 public:
  // kNoSpace: the system cannot hold it (the message names wanted and free bytes and the flag to
  // change); kBusy: the name belongs to a live process; kInvalid: the config makes no sense;
  // kSystem otherwise. Sweeps stale segments of ours first.
  static Result<std::unique_ptr<Pool>> create(const PoolConfig& config);

  struct State;
  explicit Pool(std::unique_ptr<State> state);  // for create(): nobody else can make a State

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();  // stops growing, unlinks the segment; REQUIRES: no Slot lives

  // kTooLarge when it can never fit; kNoSpace when it does not fit now. While the pool still grows,
  // reserves what this slot needs itself rather than fail (may then take milliseconds). REQUIRES:
  // bytes > 0.
  Result<Slot> take(std::size_t bytes);

  // The same without waiting for anything, as the thread that receives must: an invalid slot where
  // there is no room, none yet, or another thread is taking.
  Slot take_now(std::size_t bytes);

  // Gives `slots` back and takes one of `bytes` in one step, so that nobody else takes the room
  // that was made for it. As take(). REQUIRES: all are of this pool.
  Result<Slot> exchange(std::vector<Slot> slots, std::size_t bytes);

  // What would be one free range if the slot were given back: its first byte and its length.
  PoolRange room_around(const Slot& slot) const;

  // bytes rounded up to the alignment: what a slot of that size occupies.
  std::size_t rounded(std::size_t bytes) const;

  PoolUsage usage() const;  // lock-free

  bool growth_failed() const;  // the system ran out before configured_bytes was reached

  // What a client needs to map the segment: its name without a leading '/', "" when the pool is
  // private memory.
  const std::string& shm_name() const;

  std::size_t align_bytes() const;

  std::byte* base() const;

  // True while the name still leads to this pool's file (someone may have unlinked it). Always true
  // for private memory.
  bool name_intact() const;

 private:
  friend class Slot;
  void give_back(std::size_t offset, std::size_t bytes);

  std::unique_ptr<State> state_;
};

}  // namespace larder::pool
