// arc_policy.h - ARC (adaptive replacement): what was found once and what was found again are two
// queues, and what comes back after its eviction moves the border between them.
//
// Counts objects, not bytes, as the reference does. The capacity is the largest number of objects
// that were resident at once. Uses by the same request renew an object in its queue but do not
// promote it. The names of as many evicted objects as the capacity are remembered.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cache/eviction_policy.h"
#include "cache/ghosts.h"

namespace larder::cache {

class ArcPolicy final : public EvictionPolicy {
 public:
  void add(Object& object) override;
  void remove(Object& object, Leaving leaving) override;
  void touch(Object& object, Use use) override;
  void pin(Object& object) override;
  void unpin(Object& object) override;
  Object* victim() override;

 private:
  struct Queue {
    UseOrder evictable;
    std::size_t resident = 0;
    Ghosts ghosts;
  };

  void learn(bool was_frequent);

  std::array<Queue, 2> queues_;  // by Usage::queue: found once, found again
  std::size_t capacity_ = 0;
  double recent_target_ = 0;  // how many objects the first queue should hold
  std::uint64_t uses_ = 0;
};

}  // namespace larder::cache
