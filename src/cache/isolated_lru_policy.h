// isolated_lru_policy.h - least recently used, tenant by tenant: who uses much does not push out
// who uses little.
//
// The victim is the least recently used object of the tenant that uses the largest part of its
// share (of its quota; of the whole pool without one). O(log n) in objects and tenants. Objects
// must be on a shelf with a tenant.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <utility>

#include "cache/eviction_policy.h"

namespace larder::cache {

class IsolatedLruPolicy final : public EvictionPolicy {
 public:
  void add(Object& object) override;
  void remove(Object& object, Leaving leaving) override;
  void touch(Object& object, Use use) override;
  void pin(Object& object) override;
  void unpin(Object& object) override;
  Object* victim() override;

  bool isolates() const override { return true; }

  Object* victim_of(const Tenant& tenant) override;
  void share_changed(const Tenant& tenant) override;

 private:
  // By part of the share in use; of equals the tenant that came last.
  using Loads = std::set<std::pair<double, std::uint64_t>>;

  struct Lane {
    const Tenant* tenant = nullptr;
    UseOrder evictable;
    std::uint64_t bytes = 0;
    std::uint64_t objects = 0;
    double load = 0;  // as in loads_
  };

  Lane& lane_of(const Object& object);
  void settle(Lane& lane);

  std::unordered_map<std::uint64_t, Lane> lanes_;  // by the tenant's number
  Loads loads_;                                    // of lanes in which something may go
  std::uint64_t uses_ = 0;
};

}  // namespace larder::cache
