// Goal: the windows that would be evicted are in one piece, large enough, take no tail's head
// without the tail and nothing that is pinned, and are the cheapest when all are compared. Method:
// objects of random sizes in a small pool, with random holes, pins and links; what is found is
// compared with a search of every window. LARDER_TEST_SEED repeats a run.
#include "cache/address_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "cache/test_cache.h"

namespace larder::cache {
namespace {

constexpr std::size_t kUnits = 64;

class Place {
 public:
  explicit Place(std::uint64_t seed) : random_(seed) {
    pool::PoolConfig config;
    config.bytes = kUnits * kTestAlign;
    config.align_bytes = kTestAlign;
    config.private_memory = true;
    pool_ = std::move(*pool::Pool::create(config));
    map_ = std::make_unique<AddressMap>(*pool_);
    fill();
  }

  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  ~Place() {
    objects_.clear();
    foreign_.clear();
  }

  AddressMap& map() { return *map_; }

  const std::vector<std::unique_ptr<Object>>& objects() const { return objects_; }

  std::size_t below(std::size_t bound) { return random_() % bound; }

  // The free bytes of one piece if these went, at most.
  std::size_t room_without(const std::vector<Object*>& gone) const {
    std::vector<bool> free(kUnits, true);
    const auto mark = [&](const pool::Slot& slot) {
      const std::size_t first = slot.offset() / kTestAlign;
      const std::size_t units = pool_->rounded(slot.size()) / kTestAlign;
      std::fill_n(free.begin() + static_cast<std::ptrdiff_t>(first), units, false);
    };
    for (const auto& object : objects_) {
      if (std::find(gone.begin(), gone.end(), object.get()) == gone.end()) {
        mark(object->slot);
      }
    }
    for (const pool::Slot& slot : foreign_) {
      mark(slot);
    }
    std::size_t most = 0;
    std::size_t now = 0;
    for (const bool is_free : free) {
      now = is_free ? now + 1 : 0;
      most = std::max(most, now);
    }
    return most * kTestAlign;
  }

  // Of all rows of unpinned neighbours that make room, the cost of the cheapest.
  std::optional<std::size_t> cheapest(std::size_t bytes) const {
    std::vector<Object*> ordered;
    for (const auto& object : objects_) {
      ordered.push_back(object.get());
    }
    std::sort(ordered.begin(), ordered.end(), [](const Object* a, const Object* b) {
      return a->slot.offset() < b->slot.offset();
    });
    std::optional<std::size_t> best;
    for (std::size_t from = 0; from < ordered.size(); ++from) {
      std::vector<Object*> row;
      std::size_t cost = 0;
      for (std::size_t at = from; at < ordered.size() && ordered[at]->pins == 0; ++at) {
        row.push_back(ordered[at]);
        cost += ordered[at]->slot.size();
        if (room_without(row) >= bytes && (!best.has_value() || cost < *best)) {
          best = cost;
        }
      }
    }
    return best;
  }

 private:
  void fill() {
    while (true) {
      auto slot = pool_->take((1 + below(6)) * kTestAlign);
      if (!slot) {
        break;
      }
      if (below(12) == 0) {
        foreign_.push_back(std::move(*slot));  // a writer's: not resident
        continue;
      }
      const auto number = static_cast<std::uint32_t>(objects_.size());
      auto object = std::make_unique<Object>(
          keys::ObjectId{test_hash(number, 0), 0}, nullptr, std::move(*slot));
      object->usage.last_use = 1;  // all cost their size alone
      if (below(3) != 0 && !objects_.empty()) {
        object->link_behind(*objects_[below(objects_.size())]);
      }
      object->pins = below(8) == 0 ? 1 : 0;
      objects_.push_back(std::move(object));
    }
    for (const auto& object : objects_) {
      if (object->is_tail() && below(6) == 0) {
        object->unlink();
        object->slot = pool::Slot();  // a hole
      }
    }
    std::erase_if(objects_, [](const auto& object) { return !object->slot.valid(); });
    for (const auto& object : objects_) {
      map_->add(*object);
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<AddressMap> map_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<pool::Slot> foreign_;
};

constexpr UseSpan kOneUse{1, 1};

void expect_sound(const Window& window, bool with_tails) {
  const std::set<const Object*> going(window.objects.begin(), window.objects.end());
  EXPECT_EQ(going.size(), window.objects.size()) << "one object twice";
  for (const Object* const object : window.objects) {
    EXPECT_EQ(object->pins, 0U);
    for (const Object* behind = object->links.first_behind; with_tails && behind != nullptr;
         behind = behind->links.next) {
      EXPECT_TRUE(going.contains(behind)) << "a tail stays without its head";
    }
  }
}

TEST(AddressMap, WindowsAreInOnePieceAndTakeTailsAlong) {
  const std::uint64_t seed = test_seed();
  std::size_t found = 0;
  for (std::uint64_t run = 0; run < 300; ++run) {
    SCOPED_TRACE(testing::Message() << "run " << run);
    Place place(seed + run);
    for (const auto& object : place.objects()) {
      if (object->pins > 0 || !object->is_tail()) {
        continue;
      }
      const std::size_t bytes = (1 + place.below(20)) * kTestAlign;
      const std::optional<Window> window = place.map().around(*object, bytes, kOneUse);
      if (window.has_value()) {
        ++found;
        expect_sound(*window, true);
        EXPECT_GE(place.room_without(window->objects), bytes);
        EXPECT_TRUE(std::find(window->objects.begin(), window->objects.end(), object.get()) !=
                    window->objects.end());
      }
    }
  }
  EXPECT_GT(found, 1000U);
}

TEST(AddressMap, TheCheapestWindowOfAllIsFoundWhereverThereIsOne) {
  const std::uint64_t seed = test_seed();
  std::size_t found = 0;
  std::size_t missing = 0;
  for (std::uint64_t run = 0; run < 300; ++run) {
    SCOPED_TRACE(testing::Message() << "run " << run);
    Place place(seed + run);
    for (std::size_t units = 2; units < 30; units += 3) {
      const std::size_t bytes = units * kTestAlign;
      if (place.room_without({}) >= bytes) {
        continue;
      }
      const std::optional<std::size_t> cheapest = place.cheapest(bytes);
      Walk walk;
      const std::optional<Window> window = place.map().anywhere(bytes, kOneUse, kUnits, walk);
      EXPECT_TRUE(walk.is_over);
      ASSERT_EQ(window.has_value(), cheapest.has_value()) << units << " units";
      if (!window.has_value()) {
        ++missing;
        continue;
      }
      ++found;
      expect_sound(*window, false);
      EXPECT_GE(place.room_without(window->objects), bytes);
      std::size_t size = 0;
      for (const Object* const object : window->objects) {
        size += object->slot.size();
      }
      EXPECT_EQ(size, *cheapest) << units << " units";
    }
  }
  EXPECT_GT(found, 300U);
  EXPECT_GT(missing, 100U);
}

TEST(AddressMap, AWalkInStepsMissesNoWindow) {
  const std::uint64_t seed = test_seed();
  std::size_t found = 0;
  std::size_t steps = 0;
  for (std::uint64_t run = 0; run < 300; ++run) {
    SCOPED_TRACE(testing::Message() << "run " << run);
    Place place(seed + run);
    for (std::size_t units = 2; units < 30; units += 3) {
      const std::size_t bytes = units * kTestAlign;
      if (place.room_without({}) >= bytes) {
        continue;
      }
      const std::optional<std::size_t> cheapest = place.cheapest(bytes);
      Walk walk;
      std::optional<std::size_t> least;
      while (!walk.is_over) {
        const std::size_t from = walk.from;
        const auto window = place.map().anywhere(bytes, kOneUse, 1 + place.below(4), walk);
        ASSERT_TRUE(walk.is_over || walk.from > from) << "it gets nowhere";
        ++steps;
        if (!window.has_value()) {
          continue;
        }
        ++found;
        expect_sound(*window, false);
        EXPECT_GE(place.room_without(window->objects), bytes);
        std::size_t size = 0;
        for (const Object* const object : window->objects) {
          size += object->slot.size();
        }
        least = std::min(least.value_or(size), size);
      }
      EXPECT_EQ(least, cheapest) << units << " units";
    }
  }
  EXPECT_GT(found, 300U);
  EXPECT_GT(steps, 3000U);
}

TEST(AddressMap, PrefersWhatWasUsedLongAgoAndFoundSeldom) {
  TestCache cache(4);
  AddressMap map(cache.pool());
  std::vector<std::unique_ptr<Object>> objects;
  for (std::uint32_t number = 0; number < 4; ++number) {
    objects.push_back(std::make_unique<Object>(keys::ObjectId{test_hash(number, 0), 0},
                                               nullptr,
                                               std::move(*cache.pool().take(kTestAlign))));
    objects.back()->usage.last_use = number == 0 ? 90 : 10 + number;
    map.add(*objects.back());
  }
  const UseSpan uses{10, 100};
  std::optional<Window> window = map.around(*objects[1], 2 * kTestAlign, uses);
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->objects, (std::vector<Object*>{objects[1].get(), objects[2].get()}))
      << "the neighbour on the left was used lately";
  objects[2]->usage.queue = 7;
  window = map.around(*objects[1], 2 * kTestAlign, uses);
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(window->objects, (std::vector<Object*>{objects[1].get(), objects[0].get()}))
      << "the one on the right was found often";
}

}  // namespace
}  // namespace larder::cache
