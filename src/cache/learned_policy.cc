#include "cache/learned_policy.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace larder::cache {
namespace {

// Observations between two lessons: as many as there are objects, so that a busy server with many
// does not forget faster than one with few.
constexpr std::size_t kObservationsMin = 1000;

// Of a chunk that is stored again after its eviction: somebody looked for it.
std::uint16_t found_again(const Usage& before) {
  constexpr std::uint16_t kMost = std::numeric_limits<std::uint16_t>::max();
  return before.found == kMost ? kMost : static_cast<std::uint16_t>(before.found + 1);
}

}  // namespace

void LearnedPolicy::add(Object& object) {
  if (const std::optional<Usage> before = ghosts_.take(object)) {
    observe(*before, true);
    object.usage.found = std::max(object.usage.found, found_again(*before));
  }
  object.usage.queue = static_cast<std::uint8_t>(ReuseTable::kind_of(object.usage.found));
  object.usage.last_use = ++uses_;
  queues_.at(object.usage.queue).insert(object);
  ++resident_;
}

void LearnedPolicy::remove(Object& object, Leaving leaving) {
  queues_.at(object.usage.queue).erase(object);
  --resident_;
  if (leaving == Leaving::kEvicted) {
    for (const Usage& forgotten : ghosts_.add(object, resident_)) {
      observe(forgotten, false);
    }
  }
}

void LearnedPolicy::touch(Object& object, Use use) {
  if (use == Use::kFound) {
    observe(object.usage, true);
  }
  const std::size_t kind = ReuseTable::kind_of(object.usage.found);
  UseOrder& from = queues_.at(object.usage.queue);
  if (kind == object.usage.queue) {
    from.renew(object, ++uses_);
    return;
  }
  const bool evictable = from.erase(object);
  object.usage.queue = static_cast<std::uint8_t>(kind);
  object.usage.last_use = ++uses_;
  if (evictable) {
    queues_.at(kind).insert(object);
  }
}

void LearnedPolicy::pin(Object& object) {
  queues_.at(object.usage.queue).erase(object);
}

void LearnedPolicy::unpin(Object& object) {
  queues_.at(object.usage.queue).insert(object);
}

Object* LearnedPolicy::victim() {
  for (const ReuseTable::Cell& cell : table_.cells()) {
    const std::uint64_t youngest = ReuseTable::first_use_of(cell.age);
    const std::uint64_t oldest = ReuseTable::last_use_of(cell.age);
    if (uses_ < youngest) {
      continue;
    }
    Object* const object = queues_.at(cell.kind).first_from(uses_ > oldest ? uses_ - oldest : 0);
    if (object != nullptr && uses_ - object->usage.last_use >= youngest) {
      return object;
    }
  }
  return nullptr;
}

bool LearnedPolicy::admits(const Object& newcomer, const Object& victim) const {
  const Usage* const before = ghosts_.find(newcomer);
  const std::uint16_t found = before == nullptr
                                  ? newcomer.usage.found
                                  : std::max(newcomer.usage.found, found_again(*before));
  return table_.worth({ReuseTable::kind_of(found), 0}) >= table_.worth(cell_of(victim.usage));
}

void LearnedPolicy::observe(const Usage& usage, bool found_again) {
  table_.observe(usage.queue, uses_ - usage.last_use, found_again);
  if (++observed_ >= std::max(kObservationsMin, resident_)) {
    observed_ = 0;
    table_.learn();
  }
}

ReuseTable::Cell LearnedPolicy::cell_of(const Usage& usage) const {
  return {usage.queue, ReuseTable::age_of(uses_ - usage.last_use)};
}

}  // namespace larder::cache
