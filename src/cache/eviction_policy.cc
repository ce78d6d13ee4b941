#include "cache/eviction_policy.h"

#include "cache/arc_policy.h"
#include "cache/isolated_lru_policy.h"
#include "cache/learned_policy.h"

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
  if (name == "Learned") {
    return std::make_unique<LearnedPolicy>();
  }
  if (name == "LRU") {
    return std::make_unique<LruPolicy>();
  }
  if (name == "ARC") {
    return std::make_unique<ArcPolicy>();
  }
  if (name == "IsolatedLRU") {
    return std::make_unique<IsolatedLruPolicy>();
  }
  if (name == "noop") {
    return std::make_unique<NoEvictionPolicy>();
  }
  return nullptr;
}

}  // namespace larder::cache
