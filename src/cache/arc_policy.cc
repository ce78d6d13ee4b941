#include "cache/arc_policy.h"

#include <algorithm>

namespace larder::cache {
namespace {

constexpr std::uint8_t kRecent = 0;
constexpr std::uint8_t kFrequent = 1;

}  // namespace

void ArcPolicy::add(Object& object) {
  object.usage.queue = kRecent;
  for (const std::uint8_t queue : {kRecent, kFrequent}) {
    if (queues_.at(queue).ghosts.take(object).has_value()) {
      learn(queue == kFrequent);
      object.usage.queue = kFrequent;
    }
  }
  Queue& queue = queues_.at(object.usage.queue);
  object.usage.last_use = ++uses_;
  queue.evictable.insert(object);
  ++queue.resident;
  capacity_ = std::max(capacity_, queues_[kRecent].resident + queues_[kFrequent].resident);
}

void ArcPolicy::remove(Object& object, Leaving leaving) {
  Queue& queue = queues_.at(object.usage.queue);
  queue.evictable.erase(object);
  --queue.resident;
  if (leaving == Leaving::kEvicted) {
    // The names of both queues together may be as many as the capacity.
    const Queue& other = queues_.at(object.usage.queue == kRecent ? kFrequent : kRecent);
    const std::size_t others = std::min(other.ghosts.size(), capacity_);
    queue.ghosts.add(object, std::max(capacity_ - others, capacity_ / 2));
  }
}

void ArcPolicy::touch(Object& object, Use use) {
  Queue& queue = queues_.at(object.usage.queue);
  if (use == Use::kKept || object.usage.queue == kFrequent) {
    queue.evictable.renew(object, ++uses_);
    return;
  }
  const bool evictable = queue.evictable.erase(object);
  --queue.resident;
  object.usage.queue = kFrequent;
  object.usage.last_use = ++uses_;
  ++queues_[kFrequent].resident;
  if (evictable) {
    queues_[kFrequent].evictable.insert(object);
  }
}

void ArcPolicy::pin(Object& object) {
  queues_.at(object.usage.queue).evictable.erase(object);
}

void ArcPolicy::unpin(Object& object) {
  queues_.at(object.usage.queue).evictable.insert(object);
}

Object* ArcPolicy::victim() {
  Object* const recent = queues_[kRecent].evictable.oldest();
  Object* const frequent = queues_[kFrequent].evictable.oldest();
  if (recent == nullptr || frequent == nullptr) {
    return recent == nullptr ? frequent : recent;
  }
  const bool too_many_recent =
      static_cast<double>(queues_[kRecent].resident) >= std::max(1.0, recent_target_);
  return too_many_recent ? recent : frequent;
}

void ArcPolicy::learn(bool was_frequent) {
  const auto recent_ghosts = static_cast<double>(queues_[kRecent].ghosts.size() + 1);
  const auto frequent_ghosts = static_cast<double>(queues_[kFrequent].ghosts.size() + 1);
  const double step = was_frequent ? -std::max(1.0, recent_ghosts / frequent_ghosts)
                                   : std::max(1.0, frequent_ghosts / recent_ghosts);
  recent_target_ = std::clamp(recent_target_ + step, 0.0, static_cast<double>(capacity_));
}

}  // namespace larder::cache
