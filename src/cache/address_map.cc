#include "cache/address_map.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

namespace larder::cache {
namespace {

// What a byte of the oldest costs, when one of the youngest costs 1 more. Not nothing: of two
// windows of old objects the smaller one is better.
constexpr double kOldest = 0.25;

double cost_of(const Object& object, const UseSpan& uses) {
  const double span = static_cast<double>(uses.newest - uses.oldest) + 1;
  const std::uint64_t use = std::clamp(object.usage.last_use, uses.oldest, uses.newest);
  const double youth = static_cast<double>(use - uses.oldest) / span;
  return static_cast<double>(object.slot.size()) * (kOldest + youth) * (1 + object.usage.queue);
}

// More behind one object than this, and its window is not worth a look: it is what prompts share.
constexpr std::size_t kBehindMax = 64;

// All that is behind the object in its prompts, and itself; nothing when that is too much or some
// of it is pinned.
bool collect(Object& object, std::uint64_t window, std::vector<Object*>& going) {
  const std::size_t first = going.size();
  if (object.window == window) {
    return true;
  }
  going.push_back(&object);
  for (std::size_t i = first; i < going.size(); ++i) {
    if (going[i]->pins > 0 || going.size() - first > kBehindMax) {
      going.resize(first);
      return false;
    }
    for (Object* behind = going[i]->links.first_behind; behind != nullptr;
         behind = behind->links.next) {
      if (behind->window != window) {
        going.push_back(behind);
      }
    }
  }
  return true;
}

// A window in growth: the objects side by side, and all that must go with them.
class Growth {
 public:
  Growth(std::uint64_t number, const UseSpan& uses) : number_(number), uses_(uses) {}

  struct Step {
    std::vector<Object*> going;
    pool::PoolRange room{};  // that the neighbour leaves
    double cost = 0;

    // Of each byte that helps: more room than is missing does not.
    double cost_for(std::size_t missing_bytes) const {
      return cost / static_cast<double>(std::min(room.bytes, missing_bytes));
    }
  };

  // What one more neighbour would take along; nothing when it cannot go.
  std::optional<Step> step(Object* neighbour) const {
    Step step;
    if (neighbour == nullptr || !collect(*neighbour, number_, step.going)) {
      return std::nullopt;
    }
    for (const Object* const object : step.going) {
      step.cost += cost_of(*object, uses_);
    }
    return step;
  }

  void join(const Step& step) {
    for (Object* const object : step.going) {
      object->window = number_;
      window_.objects.push_back(object);
    }
    window_.cost += step.cost;
  }

  double cost() const { return window_.cost; }

  Window take() { return std::move(window_); }

 private:
  const std::uint64_t number_;
  const UseSpan uses_;
  Window window_;
};

}  // namespace

std::optional<Window> AddressMap::around(Object& seed,
                                         std::size_t bytes,
                                         const UseSpan& uses,
                                         double cost_max) {
  Growth growth(++windows_, uses);
  const auto step_to = [&](Object* neighbour) {
    std::optional<Growth::Step> step = growth.step(neighbour);
    if (step.has_value()) {
      step->room = pool_.room_around(neighbour->slot);
    }
    return step;
  };
  std::optional<Growth::Step> step = step_to(&seed);
  if (!step.has_value()) {
    return std::nullopt;
  }
  std::size_t begin = step->room.offset;
  std::size_t end = begin + step->room.bytes;
  while (step.has_value()) {
    growth.join(*step);
    if (growth.cost() > cost_max) {
      return std::nullopt;
    }
    begin = std::min(begin, step->room.offset);
    end = std::max(end, step->room.offset + step->room.bytes);
    if (end - begin >= bytes) {
      return growth.take();
    }
    step = step_to(ending_at(begin));
    std::optional<Growth::Step> right = step_to(beginning_at(end));
    if (!step.has_value() || (right.has_value() && right->cost_for(bytes - (end - begin)) <
                                                       step->cost_for(bytes - (end - begin)))) {
      step = std::move(right);
    }
  }
  return std::nullopt;
}

std::optional<Window> AddressMap::anywhere(std::size_t bytes,
                                           const UseSpan& uses,
                                           std::size_t objects_max,
                                           Walk& walk) const {
  struct Place {
    Object* object;
    std::size_t begin;  // of the free range before it
    double cost;
  };

  std::deque<Place> row;
  std::size_t end = 0;
  Window window;
  Window best;
  std::size_t looked_at = 0;
  const std::size_t first = walk.from;
  for (auto at = objects_.lower_bound(first); at != objects_.end(); ++at) {
    // The next step begins with the row that is not long enough yet.
    walk.from = row.empty() ? at->first : row.front().object->slot.offset();
    if (looked_at++ >= objects_max && walk.from > first) {
      return best.objects.empty() ? std::nullopt : std::optional(std::move(best));
    }
    Object* const object = at->second;
    const pool::PoolRange room = pool_.room_around(object->slot);
    if (object->pins > 0 || room.offset > end) {
      row.clear();
      window.cost = 0;
    }
    // Of a pinned one only its end counts: what comes next does not touch the row before it.
    end = end_of(*object);
    if (object->pins > 0) {
      continue;
    }
    const double cost = cost_of(*object, uses);
    row.push_back({object, room.offset, cost});
    window.cost += cost;
    const std::size_t room_end = room.offset + room.bytes;
    while (row.size() > 1 && room_end - row[1].begin >= bytes) {
      window.cost -= row.front().cost;
      row.pop_front();
    }
    const bool is_enough = room_end - row.front().begin >= bytes;
    if (is_enough && (best.objects.empty() || window.cost < best.cost)) {
      best.cost = window.cost;
      best.objects.clear();
      std::transform(
          row.begin(), row.end(), std::back_inserter(best.objects), [](const Place& place) {
            return place.object;
          });
    }
  }
  walk.is_over = true;
  return best.objects.empty() ? std::nullopt : std::optional(std::move(best));
}

Object* AddressMap::ending_at(std::size_t offset) const {
  const auto next = objects_.lower_bound(offset);
  if (next == objects_.begin()) {
    return nullptr;
  }
  Object* const object = std::prev(next)->second;
  return end_of(*object) == offset ? object : nullptr;
}

Object* AddressMap::beginning_at(std::size_t offset) const {
  const auto found = objects_.find(offset);
  return found == objects_.end() ? nullptr : found->second;
}

std::size_t AddressMap::end_of(const Object& object) const {
  return object.slot.offset() + pool_.rounded(object.slot.size());
}

}  // namespace larder::cache
