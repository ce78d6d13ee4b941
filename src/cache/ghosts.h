// ghosts.h - names of what was evicted, so that a policy sees what it gave up too early.
//
// O(1) a call, some 100 bytes a name. A name is 64 bits of hashes: two objects that share one
// confuse a policy, never the index. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cache/object.h"

namespace larder::cache {

class Ghosts {
 public:
  // Remembers the object and how it was used, at most `max` objects in all. Returns the oldest,
  // which are forgotten for it.
  std::vector<Usage> add(const Object& object, std::size_t max);

  // How the object was used when it went; nullptr when it is not remembered. Valid until the next
  // add or take.
  const Usage* find(const Object& object) const;

  // The same, and forgets it.
  std::optional<Usage> take(const Object& object);

  std::size_t size() const { return by_name_.size(); }

 private:
  struct Ghost {
    std::uint64_t name;
    Usage usage;
  };

  std::list<Ghost> ghosts_;  // oldest first
  std::unordered_map<std::uint64_t, std::list<Ghost>::iterator> by_name_;
};

}  // namespace larder::cache
