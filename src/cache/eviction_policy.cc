#include "cache/eviction_policy.h"

namespace larder::cache {

void LruPolicy::add(Object& object) {
  object.usage.last_use = ++uses_;
  evictable_.insert(object);
}

void LruPolicy::remove(Object& object, Leaving /*leaving*/) {
  evictable_.erase(object);
}

void LruPolicy::touch(Object& object, Use /*use*/) {
  evictable_.renew(object, ++uses_);
}

void LruPolicy::pin(Object& object) {
  evictable_.erase(object);
}

void LruPolicy::unpin(Object& object) {
  evictable_.insert(object);
}

Object* LruPolicy::victim() {
  return evictable_.oldest();
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
