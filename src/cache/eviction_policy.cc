#include "cache/eviction_policy.h"

namespace larder::cache {

void LruPolicy::add(Object& object) {
  object.last_use = ++uses_;
  evictable_.emplace_hint(evictable_.end(), object.last_use, &object);
}

void LruPolicy::remove(Object& object) {
  evictable_.erase(object.last_use);
}

void LruPolicy::touch(Object& object) {
  const bool evictable = evictable_.erase(object.last_use) != 0;
  object.last_use = ++uses_;
  if (evictable) {
    evictable_.emplace_hint(evictable_.end(), object.last_use, &object);
  }
}

void LruPolicy::pin(Object& object) {
  evictable_.erase(object.last_use);
}

void LruPolicy::unpin(Object& object) {
  evictable_.emplace(object.last_use, &object);
}

Object* LruPolicy::victim() {
  return evictable_.empty() ? nullptr : evictable_.begin()->second;
}

std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name) {
  if (name == "LRU") {
    return std::make_unique<LruPolicy>();
  }
  if (name == "noop") {
    return std::make_unique<NoEvictionPolicy>();
  }
  return nullptr;
}

}  // namespace larder::cache
