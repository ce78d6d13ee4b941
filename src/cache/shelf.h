// shelf.h - how objects are kept together: a Shelf holds all objects of one KeySpace, a Tenant
// counts what all shelves of one cache salt hold.
//
// Private to the cache room; guarded by the index's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "cache/key_space.h"
#include "cache/object.h"
#include "keys/object_key.h"
#include "metrics/metrics.h"

namespace larder::cache {

struct Tenant {
  std::uint64_t number = 0;          // of its own, ascending
  std::uint64_t resident_bytes = 0;  // rounded to the pool's alignment
  std::uint64_t pinned_bytes = 0;    // of these
  std::uint64_t share_bytes = 0;     // what it may use: its quota, or the whole pool without one
  std::size_t shelves = 0;
  bool limited = false;  // has a quota
};

struct Shelf {
  // nullptr when it is not resident.
  Object* find(const keys::ObjectId& id) const {
    const auto found = objects.find(id);
    return found == objects.end() ? nullptr : found->second.get();
  }

  std::unordered_map<keys::ObjectId, std::unique_ptr<Object>, keys::ObjectIdHash> objects;
  const KeySpace* space = nullptr;  // the key under which this shelf is kept
  Tenant* tenant = nullptr;
  std::uint64_t space_hash = 0;  // of *space; with an ObjectId's hash it names an object
  metrics::Counter* written = nullptr;
  metrics::Counter* evicted = nullptr;
};

}  // namespace larder::cache
