// test_model.h - what the index should do, said as simply as possible: one list of objects in order
// of use.
//
// What has a chunk behind it that was stored after it does not go before that one. All objects take
// one slot, so that room is a number and fragmentation cannot happen.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace larder::cache {

struct ModelName {
  std::size_t space;
  std::size_t rank;
  std::uint32_t family;  // prompts of one family share their first chunks
  std::uint32_t branch;  // 0 in the shared part
  std::uint32_t chunk;

  auto operator<=>(const ModelName&) const = default;
};

struct ModelPrompt {
  std::uint32_t family;
  std::uint32_t branch;  // from 1
  std::uint32_t shared;  // chunks that all of the family begin with

  ModelName name(std::size_t space, std::size_t rank, std::uint32_t chunk) const {
    return {space, rank, family, chunk < shared ? 0 : branch, chunk};
  }
};

inline constexpr std::size_t kSlidingSpace = 1;  // the one that is asked for with windows

class Model {
 public:
  using Object = std::uint64_t;  // a number of its own; also the pattern of its bytes

  explicit Model(std::size_t slots) : slots_(slots) {}

  bool has(const ModelName& name) const { return resident_.contains(name); }

  Object object(const ModelName& name) const { return resident_.at(name); }

  std::uint64_t clears() const { return clears_; }

  std::size_t used() const { return objects_.size() + reserved + abandoned; }

  std::size_t resident_count() const { return resident_.size(); }

  std::size_t pinned_count() const {
    return static_cast<std::size_t>(std::count_if(
        objects_.begin(), objects_.end(), [](const auto& entry) { return entry.second.pins > 0; }));
  }

  std::size_t evictable_count() const {
    return static_cast<std::size_t>(
        std::count_if(order_.begin(), order_.end(), [this](Object object) {
          return objects_.at(object).pins == 0;
        }));
  }

  void pin(Object object) { ++objects_.at(object).pins; }

  void unpin(Object object) {
    Entry& entry = objects_.at(object);
    ASSERT_GT(entry.pins, 0);
    if (--entry.pins == 0 && !entry.resident) {
      objects_.erase(object);
    }
  }

  void touch(const ModelName& name) {
    if (const auto found = resident_.find(name); found != resident_.end()) {
      order_.erase(std::find(order_.begin(), order_.end(), found->second));
      order_.push_back(found->second);
    }
  }

  // The prompt up to `end`, its first chunk last.
  void touch_prefix(const ModelPrompt& prompt,
                    std::size_t space,
                    std::size_t rank,
                    std::uint32_t end) {
    for (std::uint32_t chunk = end; chunk > 0; --chunk) {
      touch(prompt.name(space, rank, chunk - 1));
    }
  }

  // Takes one slot for a writer, if need be from the object whose use is longest ago. False when
  // nothing may go.
  bool is_full() const { return used() == slots_; }

  bool reserve(const std::set<ModelName>& keep) {
    if (is_full() && !evict_one(keep)) {
      return false;
    }
    ++reserved;
    return true;
  }

  // `before` is the chunk in front of it in its prompt.
  void publish(const ModelName& name, Object object, const std::optional<ModelName>& before) {
    resident_[name] = object;
    objects_[object] = Entry{name, true, 0, std::nullopt};
    if (before.has_value() && has(*before)) {
      objects_[object].before = resident_.at(*before);
    }
    order_.push_back(object);
  }

  std::size_t evict_down_to(std::size_t used_max, std::size_t objects_max) {
    std::size_t gone = 0;
    while (used() > used_max && gone < objects_max && evict_one({})) {
      ++gone;
    }
    return gone;
  }

  void clear() {
    ++clears_;
    resident_.clear();
    order_.clear();
    for (auto entry = objects_.begin(); entry != objects_.end();) {
      entry->second.resident = false;
      entry = entry->second.pins == 0 ? objects_.erase(entry) : std::next(entry);
    }
  }

  std::size_t reserved = 0;
  std::size_t abandoned = 0;
  std::size_t evictions = 0;

 private:
  struct Entry {
    ModelName name;
    bool resident;
    int pins;
    std::optional<Object> before;
  };

  bool evict_one(const std::set<ModelName>& keep) {
    const auto victim = std::find_if(order_.begin(), order_.end(), [&](Object object) {
      const Entry& entry = objects_.at(object);
      return entry.pins == 0 && !keep.contains(entry.name) && !has_follower(object);
    });
    if (victim == order_.end()) {
      return false;
    }
    const ModelName name = objects_.at(*victim).name;
    expect_no_tail_behind(name);
    resident_.erase(name);
    objects_.erase(*victim);
    order_.erase(victim);
    ++evictions;
    return true;
  }

  bool has_follower(Object object) const {
    return std::any_of(order_.begin(), order_.end(), [&](Object other) {
      return objects_.at(other).before == object;
    });
  }

  // Whoever comes after the victim in a prompt must have gone before it, unless somebody holds it
  // or what is behind it.
  // Not where windows slide: a chunk before one is worth less than those in it.
  void expect_no_tail_behind(const ModelName& victim) const {
    if (victim.space == kSlidingSpace) {
      return;
    }
    for (const auto& [name, object] : resident_) {
      const bool same_branch = victim.branch == 0 || name.branch == victim.branch;
      if (name.space == victim.space && name.rank == victim.rank && name.family == victim.family &&
          same_branch && name.chunk == victim.chunk + 1) {
        EXPECT_TRUE(objects_.at(object).pins > 0 || has_follower(object))
            << "chunk " << victim.chunk << " goes before the one behind it";
      }
    }
  }

  const std::size_t slots_;
  std::uint64_t clears_ = 0;
  std::map<ModelName, Object> resident_;
  std::map<Object, Entry> objects_;  // resident, or held after a clear
  std::vector<Object> order_;        // resident, longest unused first
};

}  // namespace larder::cache
