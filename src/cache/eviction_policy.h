// eviction_policy.h - which object goes first when room is needed.
//
// The index tells the policy of every change and asks for victims; the policy keeps nothing but an
// order. Calls come under the index's mutex. Pinned objects are never victims: between pin and
// unpin the policy must not offer them.
//
// A prefix is touched from its last chunk to its first, so that a policy that orders by use gives
// up tails before heads: a chunk without the chunks before it can never be found.
#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "cache/object.h"

namespace larder::cache {

class EvictionPolicy {
 public:
  EvictionPolicy() = default;
  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;
  virtual ~EvictionPolicy() = default;

  virtual void add(Object& object) = 0;     // became resident; unpinned
  virtual void remove(Object& object) = 0;  // left the index; pinned or not
  virtual void touch(Object& object) = 0;   // was used
  virtual void pin(Object& object) = 0;     // first pin: no victim until unpin
  virtual void unpin(Object& object) = 0;   // last pin gone
  virtual Object* victim() = 0;             // the next to go; nullptr when there is none
};

// Least recently used first. O(log n) per call; pinned objects cost nothing while they are skipped.
class LruPolicy final : public EvictionPolicy {
 public:
  void add(Object& object) override;
  void remove(Object& object) override;
  void touch(Object& object) override;
  void pin(Object& object) override;
  void unpin(Object& object) override;
  Object* victim() override;

 private:
  std::map<std::uint64_t, Object*> evictable_;  // by last use, oldest first
  std::uint64_t uses_ = 0;
};

// Never gives anything up: a full pool stays full.
class NoEvictionPolicy final : public EvictionPolicy {
 public:
  void add(Object&) override {}

  void remove(Object&) override {}

  void touch(Object&) override {}

  void pin(Object&) override {}

  void unpin(Object&) override {}

  Object* victim() override { return nullptr; }
};

// By the flag's name ("LRU", "noop"); nullptr for a name without a policy.
std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name);

}  // namespace larder::cache
