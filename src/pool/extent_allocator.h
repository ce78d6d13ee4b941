// extent_allocator.h - which bytes of the pool are free: best fit over ordered extents. Pure
// bookkeeping, no memory.
//
// Takes the smallest free extent that is large enough, the lowest of equals, and cuts from its
// front; a range given back merges with its free neighbours at once, so two free extents never
// touch. Every operation is O(log n) in the number of free extents, which is at most one more than
// the ranges taken. The space may grow at its end.
//
// Not thread-safe. Does not remember what was taken: the caller gives back exactly what it took.
// Giving back a range that overlaps free space is caught and aborts.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace larder::pool {

class ExtentAllocator {
 public:
  // REQUIRES: a power of two. Offsets and lengths are multiples of it.
  explicit ExtentAllocator(std::size_t align_bytes);

  // The space now ends at end_bytes. REQUIRES: not less than capacity_bytes(), a multiple of the
  // alignment.
  void extend(std::size_t end_bytes);

  // The offset of a range now taken, nothing when no extent is large enough. REQUIRES: bytes > 0, a
  // multiple of the alignment.
  std::optional<std::size_t> take(std::size_t bytes);

  // REQUIRES: the range was taken and not given back yet.
  void give_back(std::size_t offset, std::size_t bytes);

  // Free bytes directly before and behind a range that is taken.
  std::size_t free_before(std::size_t offset) const;
  std::size_t free_behind(std::size_t end) const;

  bool fits(std::size_t bytes) const { return bytes <= largest_free_bytes(); }

  std::size_t capacity_bytes() const { return capacity_bytes_; }

  std::size_t used_bytes() const { return capacity_bytes_ - free_bytes_; }

  std::size_t free_bytes() const { return free_bytes_; }

  std::size_t largest_free_bytes() const;
  std::size_t tail_free_bytes()
      const;  // of the extent that ends at the capacity; what growth adds to

  std::size_t free_extents() const { return length_at_.size(); }

 private:
  using LengthAt = std::map<std::size_t, std::size_t>;

  void add_extent(LengthAt::iterator next, std::size_t offset, std::size_t bytes);
  LengthAt::iterator remove_extent(LengthAt::iterator extent);

  bool aligned(std::size_t bytes) const { return (bytes & (align_bytes_ - 1)) == 0; }

  std::size_t align_bytes_;
  std::size_t capacity_bytes_ = 0;
  std::size_t free_bytes_ = 0;
  LengthAt length_at_;                                       // free extents by offset
  std::set<std::pair<std::size_t, std::size_t>> by_length_;  // the same as (length, offset)
};

}  // namespace larder::pool
