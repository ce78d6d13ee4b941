// learned_policy.h - gives up what is least likely to be found again soon, as the server's own
// traffic teaches it (reuse_table.h).
//
// Objects are queued by how often their prompt was found, least recently used first. The victim is
// the oldest object of the (queue, age) that is worth least. As many evicted objects as are
// resident are remembered, so that the policy also learns of what it gave up too early; such an
// object comes back with the count it had.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cache/eviction_policy.h"
#include "cache/ghosts.h"
#include "cache/reuse_table.h"

namespace larder::cache {

class LearnedPolicy final : public EvictionPolicy {
 public:
  void add(Object& object) override;
  void remove(Object& object, Leaving leaving) override;
  void touch(Object& object, Use use) override;
  void pin(Object& object) override;
  void unpin(Object& object) override;
  Object* victim() override;
  bool admits(const Object& newcomer, const Object& victim) const override;

 private:
  void observe(const Usage& usage, bool found_again);
  ReuseTable::Cell cell_of(const Usage& usage) const;

  ReuseTable table_;
  std::array<UseOrder, ReuseTable::kKinds> queues_;
  Ghosts ghosts_;
  std::size_t resident_ = 0;
  std::size_t observed_ = 0;  // since the table last learned
  std::uint64_t uses_ = 0;
};

}  // namespace larder::cache
