// use_order.h - the objects of one queue of a policy that may go, least recently used first.
//
// O(log n) per call. An object is found by its last use, which is unique within a policy. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "cache/object.h"

namespace larder::cache {

class UseOrder {
 public:
  // At the place of its last use, wherever that is.
  void insert(Object& object) { objects_.emplace(object.usage.last_use, &object); }

  // False when it was not there.
  bool erase(const Object& object) { return objects_.erase(object.usage.last_use) != 0; }

  // Gives the object a later last use, and moves it there if it is in this order.
  void renew(Object& object, std::uint64_t use) {
    auto node = objects_.extract(object.usage.last_use);
    object.usage.last_use = use;
    if (!node.empty()) {
      node.key() = use;
      objects_.insert(objects_.end(), std::move(node));
    }
  }

  Object* oldest() const { return objects_.empty() ? nullptr : objects_.begin()->second; }

  // The least recently used whose last use is not before `use`.
  Object* first_from(std::uint64_t use) const {
    const auto found = objects_.lower_bound(use);
    return found == objects_.end() ? nullptr : found->second;
  }

  bool empty() const { return objects_.empty(); }

 private:
  std::map<std::uint64_t, Object*> objects_;
};

}  // namespace larder::cache
