// growing_space.h - the allocator behind its lock, over a space whose front part is reserved so
// far.
//
// Only ranges inside the reserved part are taken. A background thread calls grow() until it says
// false; a taker that finds no room before that reserves what it lacks itself. One reservation runs
// at a time and without the lock, so takers that fit go on meanwhile, and takers that do not wait
// for it instead of reserving each for themselves. The first reservation that fails ends the growth
// for good: the capacity stays as it is, one warning says so.
//
// Thread-safe. The counters are lock-free and may be a moment old.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>

#include "base/mutex.h"
#include "base/result.h"
#include "pool/extent_allocator.h"

namespace larder::pool {

struct GrowthLimits {
  std::size_t total_bytes;  // the space ends here; need not be a multiple of the alignment
  std::size_t align_bytes;  // power of two
  std::size_t step_bytes;   // most bytes reserved in one go, rounded up to the alignment
};

struct Range {
  std::size_t offset;
  std::size_t bytes;
};

class GrowingSpace {
 public:
  // Makes the system back a range; called for adjoining ranges from the front, one at a time.
  using Reserve = std::function<Result<void>(std::size_t offset, std::size_t bytes)>;

  GrowingSpace(const GrowthLimits& limits, Reserve reserve);

  // Reserves the front part before anybody takes; an error is for the caller alone and does not end
  // the growth.
  Result<void> reserve_first(std::size_t bytes) LARDER_EXCLUDES(mutex_);

  // One step of growth, or a wait for one that runs. False when there is nothing left to do.
  bool grow() LARDER_EXCLUDES(mutex_);

  // As Pool::take, as an offset. REQUIRES: bytes > 0.
  Result<std::size_t> take(std::size_t bytes) LARDER_EXCLUDES(mutex_);

  // The same without waiting for anything: nullopt as well where room would have to be reserved
  // first, and while another thread is at it.
  std::optional<std::size_t> take_now(std::size_t bytes) LARDER_EXCLUDES(mutex_);

  // REQUIRES: taken with the same number of bytes, and not given back yet.
  void give_back(std::size_t offset, std::size_t bytes) LARDER_EXCLUDES(mutex_);

  // Gives all of `ranges` back and takes one of `bytes`, as one step: nobody else can take the room
  // in between. REQUIRES: as give_back and take.
  Result<std::size_t> exchange(std::span<const Range> ranges, std::size_t bytes)
      LARDER_EXCLUDES(mutex_);

  // The taken range and what is free on both sides of it.
  Range with_free_sides(const Range& range) const LARDER_EXCLUDES(mutex_);

  std::size_t rounded(std::size_t bytes) const;  // the largest possible multiple on overflow

  std::size_t reserved_bytes() const LARDER_EXCLUDES(mutex_);

  std::size_t capacity_bytes() const { return capacity_bytes_.load(std::memory_order_relaxed); }

  std::size_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

  bool growth_failed() const { return growth_failed_.load(std::memory_order_relaxed); }

 private:
  Result<std::size_t> take_locked(std::size_t bytes) LARDER_REQUIRES(mutex_);
  bool grown() const LARDER_REQUIRES(mutex_);
  std::size_t attainable_bytes() const LARDER_REQUIRES(mutex_);
  void grow_by(std::size_t bytes) LARDER_REQUIRES(mutex_);
  void add_reserved(std::size_t bytes) LARDER_REQUIRES(mutex_);
  void publish() LARDER_REQUIRES(mutex_);

  const GrowthLimits limits_;
  const Reserve reserve_;
  mutable Mutex mutex_;
  ConditionVariable reservation_ended_;
  ExtentAllocator allocator_ LARDER_GUARDED_BY(mutex_);
  std::size_t reserved_bytes_ LARDER_GUARDED_BY(mutex_) = 0;
  bool reserving_ LARDER_GUARDED_BY(mutex_) = false;
  std::atomic<bool> growth_failed_{false};
  std::atomic<std::size_t> capacity_bytes_{0};
  std::atomic<std::size_t> used_bytes_{0};
};

}  // namespace larder::pool
