// address_map.h - the resident objects by their place in the pool: which of them must go together
// to leave one free range.
//
// When objects differ in size, evicting by use alone frees scattered holes, and a store could evict
// all there is before two holes happen to touch. So the victims of one store are a window: objects
// side by side, with whatever is free between them. Where they were used does not matter much, as
// chunks of one prompt lie together; what a window costs is the bytes that go, those used lately
// and those found often counting for more.
//
// Not thread-safe: under the index's mutex. Takes the pool's lock for a moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "cache/object.h"
#include "pool/pool.h"

namespace larder::cache {

struct Window {
  std::vector<Object*> objects;  // unpinned
  double cost = 0;
};

// Uses between which the objects' last uses lie.
struct UseSpan {
  std::uint64_t oldest;
  std::uint64_t newest;
};

// A walk over the pool in steps, so that the index is not locked for as long as the pool is large.
struct Walk {
  std::size_t from = 0;  // offset at which it goes on
  bool is_over = false;
};

class AddressMap {
 public:
  explicit AddressMap(const pool::Pool& pool) : pool_(pool) {}

  void add(Object& object) { objects_.emplace(object.slot.offset(), &object); }

  void remove(const Object& object) { objects_.erase(object.slot.offset()); }

  // A window of at least `bytes` that holds the seed, grown step by step to the side that costs
  // less. What joins takes along all that is behind it in its prompts. Nothing when pins, others'
  // slots or too many chunks behind one are in the way, or it would cost more than cost_max.
  // O(objects in it * log n). REQUIRES: the seed is a tail, and not pinned.
  std::optional<Window> around(Object& seed,
                               std::size_t bytes,
                               const UseSpan& uses,
                               double cost_max = std::numeric_limits<double>::infinity());

  // The cheapest of the windows in one step of a walk over all of them, without regard to what is
  // behind their objects; for when the other finds nothing. A step looks at about objects_max
  // objects, O(log n) each, and none of the windows is missed between two steps.
  std::optional<Window> anywhere(std::size_t bytes,
                                 const UseSpan& uses,
                                 std::size_t objects_max,
                                 Walk& walk) const;

 private:
  using Objects = std::map<std::size_t, Object*>;

  Object* ending_at(std::size_t offset) const;
  Object* beginning_at(std::size_t offset) const;
  std::size_t end_of(const Object& object) const;

  const pool::Pool& pool_;
  Objects objects_;            // by offset
  std::uint64_t windows_ = 0;  // looked at so far
};

}  // namespace larder::cache
