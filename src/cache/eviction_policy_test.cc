// Goal: victims come in order of use, and never while pinned. Method: a policy alone with objects
// that no index knows, driven by hand; then random calls against a list.
#include "cache/eviction_policy.h"

#include <gtest/gtest.h>

#include <deque>
#include <list>
#include <random>
#include <vector>

#include "cache/test_cache.h"

namespace larder::cache {
namespace {

Object make_object(std::uint32_t number) {
  return Object(keys::ObjectId{test_hash(number, 0), 0}, nullptr, pool::Slot());
}

TEST(LruPolicy, HasNoVictimWhenNothingIsThere) {
  LruPolicy policy;
  EXPECT_EQ(policy.victim(), nullptr);
}

TEST(LruPolicy, GivesUpTheLeastRecentlyUsedFirst) {
  LruPolicy policy;
  Object first = make_object(1);
  Object second = make_object(2);
  policy.add(first);
  policy.add(second);
  EXPECT_EQ(policy.victim(), &first);
  policy.touch(first, Use::kKept);
  EXPECT_EQ(policy.victim(), &second);
  policy.remove(second, Leaving::kEvicted);
  EXPECT_EQ(policy.victim(), &first);
  policy.remove(first, Leaving::kEvicted);
  EXPECT_EQ(policy.victim(), nullptr);
}

TEST(LruPolicy, NeverOffersWhatIsPinned) {
  LruPolicy policy;
  Object object = make_object(1);
  policy.add(object);
  policy.pin(object);
  EXPECT_EQ(policy.victim(), nullptr);
  policy.touch(object, Use::kKept);
  EXPECT_EQ(policy.victim(), nullptr) << "a use must not make a pinned object a victim";
  policy.unpin(object);
  EXPECT_EQ(policy.victim(), &object);
}

TEST(LruPolicy, KeepsThePlaceOfAnObjectThatWasPinned) {
  LruPolicy policy;
  Object first = make_object(1);
  Object second = make_object(2);
  policy.add(first);
  policy.add(second);
  policy.pin(first);
  policy.unpin(first);
  EXPECT_EQ(policy.victim(), &first) << "a pin alone is not a use";
}

TEST(LruPolicy, CountsAUseWhilePinned) {
  LruPolicy policy;
  Object first = make_object(1);
  Object second = make_object(2);
  policy.add(first);
  policy.add(second);
  policy.pin(first);
  policy.touch(first, Use::kKept);
  policy.unpin(first);
  EXPECT_EQ(policy.victim(), &second);
}

TEST(LruPolicy, ForgetsAPinnedObjectThatLeavesTheIndex) {
  LruPolicy policy;
  Object object = make_object(1);
  policy.add(object);
  policy.pin(object);
  policy.remove(object, Leaving::kEvicted);
  EXPECT_EQ(policy.victim(), nullptr);
}

TEST(LruPolicy, AgreesWithAList) {
  std::mt19937_64 random(test_seed());
  LruPolicy policy;
  std::deque<Object> objects;
  for (std::uint32_t number = 0; number < 12; ++number) {
    objects.emplace_back(keys::ObjectId{test_hash(number, 0), 0}, nullptr, pool::Slot());
  }
  std::list<std::size_t> order;  // all that are there, oldest first
  std::vector<bool> pinned(objects.size(), false);
  for (int step = 0; step < 20000; ++step) {
    const std::size_t at = random() % objects.size();
    const bool there = std::find(order.begin(), order.end(), at) != order.end();
    switch (random() % 4) {
      case 0:
        if (!there) {
          policy.add(objects[at]);
          order.push_back(at);
          pinned[at] = false;
        } else if (random() % 4 == 0) {
          policy.remove(objects[at], Leaving::kEvicted);
          order.remove(at);
        }
        break;
      case 1:
      case 2:
        if (there) {
          policy.touch(objects[at], Use::kKept);
          order.remove(at);
          order.push_back(at);
        }
        break;
      default:
        if (there) {
          pinned[at] ? policy.unpin(objects[at]) : policy.pin(objects[at]);
          pinned[at] = !pinned[at];
        }
    }
    const auto oldest =
        std::find_if(order.begin(), order.end(), [&](std::size_t i) { return !pinned[i]; });
    ASSERT_EQ(policy.victim(), oldest == order.end() ? nullptr : &objects[*oldest])
        << "step " << step;
  }
}

TEST(NoEvictionPolicy, NeverHasAVictim) {
  NoEvictionPolicy policy;
  Object object = make_object(1);
  policy.add(object);
  policy.touch(object, Use::kKept);
  EXPECT_EQ(policy.victim(), nullptr);
}

TEST(EvictionPolicy, IsMadeByTheNameOfTheFlag) {
  for (const char* const name : {"Learned", "LRU", "ARC", "IsolatedLRU", "noop"}) {
    EXPECT_NE(make_eviction_policy(name), nullptr) << name;
  }
  EXPECT_EQ(make_eviction_policy("lru"), nullptr);
  EXPECT_EQ(make_eviction_policy(""), nullptr);
}

}  // namespace
}  // namespace larder::cache
