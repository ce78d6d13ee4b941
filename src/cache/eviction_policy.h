// eviction_policy.h - which object goes first when room is needed.
//
// The index tells the policy of every change and asks for victims; the policy keeps nothing but
// orders, and names of what went. Calls come under the index's mutex, O(log n) each. Pinned objects
// are never victims: between pin and unpin the policy must not offer them. A chunk without the
// chunks before it can never be found, so the index pins whatever has a resident chunk behind it:
// tails go before heads with every policy.
//
// A prefix is touched from its last chunk to its first, so that of one prompt the tail is the least
// recently used.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "cache/object.h"
#include "cache/use_order.h"

namespace larder::cache {

struct Tenant;

// A request uses its prompt several times within moments; only the first time says that somebody
// came back for it.
enum class Use : std::uint8_t {
  kFound,  // a lookup counted it
  kKept,   // a store, a retrieve or the end of the same request
};

enum class Leaving : std::uint8_t {
  kEvicted,  // may come back, and then was given up too early
  kCleared,
};

class EvictionPolicy {
 public:
  EvictionPolicy() = default;
  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;
  virtual ~EvictionPolicy() = default;

  virtual void add(Object& object) = 0;              // became resident; unpinned
  virtual void remove(Object& object, Leaving) = 0;  // leaves the index; pinned or not
  virtual void touch(Object& object, Use use) = 0;   // after usage.found was counted
  virtual void pin(Object& object) = 0;  // held, or no longer a tail: no victim until unpin
  virtual void unpin(Object& object) = 0;
  virtual Object* victim() = 0;  // the next to go; nullptr when there is none

  // Whether a chunk that is not resident is worth the victim's room; for policies that can tell.
  virtual bool admits(const Object& /*newcomer*/, const Object& /*victim*/) const { return true; }

  // Policies that keep tenants apart: quotas apply only with them.
  virtual bool isolates() const { return false; }

  virtual Object* victim_of(const Tenant& /*tenant*/) {
    return nullptr;
  }  // the tenant's next to go

  virtual void share_changed(const Tenant& /*tenant*/) {}
};

// Least recently used first.
class LruPolicy final : public EvictionPolicy {
 public:
  void add(Object& object) override;
  void remove(Object& object, Leaving) override;
  void touch(Object& object, Use use) override;
  void pin(Object& object) override;
  void unpin(Object& object) override;
  Object* victim() override;

 private:
  UseOrder evictable_;
  std::uint64_t uses_ = 0;
};

// Never gives anything up: a full pool stays full.
class NoEvictionPolicy final : public EvictionPolicy {
 public:
  void add(Object&) override {}

  void remove(Object&, Leaving) override {}

  void touch(Object&, Use) override {}

  void pin(Object&) override {}

  void unpin(Object&) override {}

  Object* victim() override { return nullptr; }
};

// By the flag's name; nullptr for a name without a policy.
std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name);

}  // namespace larder::cache
