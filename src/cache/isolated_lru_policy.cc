#include "cache/isolated_lru_policy.h"

#include <limits>

#include "base/check.h"
#include "cache/shelf.h"

namespace larder::cache {

void IsolatedLruPolicy::add(Object& object) {
  Lane& lane = lane_of(object);
  object.usage.last_use = ++uses_;
  lane.evictable.insert(object);
  lane.bytes += object.slot.size();
  ++lane.objects;
  settle(lane);
}

void IsolatedLruPolicy::remove(Object& object, Leaving /*leaving*/) {
  Lane& lane = lane_of(object);
  lane.evictable.erase(object);
  lane.bytes -= object.slot.size();
  --lane.objects;
  settle(lane);
  if (lane.objects == 0) {
    lanes_.erase(object.shelf->tenant->number);
  }
}

void IsolatedLruPolicy::touch(Object& object, Use /*use*/) {
  lane_of(object).evictable.renew(object, ++uses_);
}

void IsolatedLruPolicy::pin(Object& object) {
  Lane& lane = lane_of(object);
  lane.evictable.erase(object);
  if (lane.evictable.empty()) {
    settle(lane);
  }
}

void IsolatedLruPolicy::unpin(Object& object) {
  Lane& lane = lane_of(object);
  const bool was_empty = lane.evictable.empty();
  lane.evictable.insert(object);
  if (was_empty) {
    settle(lane);
  }
}

Object* IsolatedLruPolicy::victim() {
  return loads_.empty() ? nullptr : lanes_.at(loads_.rbegin()->second).evictable.oldest();
}

Object* IsolatedLruPolicy::victim_of(const Tenant& tenant) {
  const auto found = lanes_.find(tenant.number);
  return found == lanes_.end() ? nullptr : found->second.evictable.oldest();
}

void IsolatedLruPolicy::share_changed(const Tenant& tenant) {
  if (const auto found = lanes_.find(tenant.number); found != lanes_.end()) {
    settle(found->second);
  }
}

IsolatedLruPolicy::Lane& IsolatedLruPolicy::lane_of(const Object& object) {
  LARDER_CHECK(object.shelf != nullptr && object.shelf->tenant != nullptr);
  const Tenant* const tenant = object.shelf->tenant;
  Lane& lane = lanes_[tenant->number];
  lane.tenant = tenant;
  return lane;
}

void IsolatedLruPolicy::settle(Lane& lane) {
  loads_.erase({lane.load, lane.tenant->number});
  if (lane.evictable.empty()) {
    return;
  }
  lane.load = lane.tenant->share_bytes == 0
                  ? std::numeric_limits<double>::infinity()
                  : static_cast<double>(lane.bytes) / static_cast<double>(lane.tenant->share_bytes);
  loads_.emplace(lane.load, lane.tenant->number);
}

}  // namespace larder::cache
