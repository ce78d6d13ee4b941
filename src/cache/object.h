// object.h - one stored chunk of one rank: its name, its bytes, who holds it, and how it was used.
//
// Private to the cache room. Every field is guarded by the index's mutex, but for the slot's bytes
// and their checksum, which never change after commit, and `is_corrupted`: whoever holds a pin may
// read these.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "keys/object_key.h"
#include "pool/pool.h"

namespace larder::cache {

struct Shelf;

// What an eviction policy may go by. The index keeps the first two, whatever the policy; the rest
// is the policy's own.
struct Usage {
  // Lookups that counted this chunk. One that goes on where a prompt ended begins with the count of
  // the chunk before it: whoever came back so often is likely to come back again.
  std::uint16_t found = 0;
  std::uint16_t branches = 0;  // stores that went on behind this chunk
  std::uint8_t queue = 0;      // the policy's: which of its orders the object is in
  std::uint64_t last_use = 0;  // the policy's: its place in that order

  // As far as the counter goes.
  static void count(std::uint16_t& counter) {
    if (counter < std::numeric_limits<std::uint16_t>::max()) {
      ++counter;
    }
  }
};

struct Object;

// The prompts' tree. A chunk without the one before it can never be found, so only what has nothing
// resident behind it is offered to the policy as a victim.
struct Links {
  Object* before = nullptr;  // resident when this was stored, and as long as this is
  Object* first_behind = nullptr;
  Object* next = nullptr;  // behind the same one
  Object* previous = nullptr;
};

struct Object {
  Object(keys::ObjectId object_id, Shelf* home, pool::Slot memory, std::uint64_t sum = 0)
      : id(object_id), shelf(home), slot(std::move(memory)), checksum(sum) {}

  keys::ObjectId id;
  Shelf* shelf;  // nullptr once it left the index: only its pins keep it alive
  pool::Slot slot;
  const std::uint64_t checksum;  // of the bytes as committed; 0 where they are not verified
  std::atomic<bool> is_corrupted{false};  // they changed: never served again
  std::uint32_t pins = 0;
  Links links;
  Usage usage;
  std::uint64_t window = 0;  // the address map's: the last one this was part of

  bool is_tail() const { return links.first_behind == nullptr; }

  // REQUIRES: not linked.
  void link_behind(Object& object) {
    links.before = &object;
    links.next = object.links.first_behind;
    if (links.next != nullptr) {
      links.next->links.previous = this;
    }
    object.links.first_behind = this;
  }

  // Nothing is before it any more. Does nothing when it is not linked.
  void unlink() {
    if (links.before == nullptr) {
      return;
    }
    (links.previous != nullptr ? links.previous->links.next : links.before->links.first_behind) =
        links.next;
    if (links.next != nullptr) {
      links.next->links.previous = links.previous;
    }
    links.before = links.next = links.previous = nullptr;
  }
};

}  // namespace larder::cache
