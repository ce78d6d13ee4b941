// object.h - one stored chunk of one rank: its name, its bytes, and who holds it.
//
// Private to the cache room. Every field but the slot's bytes is guarded by the index's mutex; the
// bytes never change after commit and may be read by whoever holds a pin.
#pragma once

#include <cstdint>

#include "keys/object_key.h"
#include "pool/pool.h"

namespace larder::cache {

struct Shelf;

struct Object {
  Object(keys::ObjectId object_id, Shelf* home, pool::Slot memory)
      : id(object_id), shelf(home), slot(std::move(memory)) {}

  keys::ObjectId id;
  Shelf* shelf;  // nullptr once it left the index: only its pins keep it alive
  pool::Slot slot;
  std::uint32_t pins = 0;

  std::uint64_t last_use = 0;  // the eviction policy's: position in its order
};

}  // namespace larder::cache
