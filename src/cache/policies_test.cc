// Goal: each policy does what its header says, and all of them keep the contract: what may go is
// offered, what may not is not. Method: policies alone, with objects on a shelf that no index
// knows; by hand for what is particular, random calls against a set for the contract.
// LARDER_TEST_SEED repeats a run.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <limits>
#include <random>
#include <set>

#include "cache/arc_policy.h"
#include "cache/ghosts.h"
#include "cache/isolated_lru_policy.h"
#include "cache/learned_policy.h"
#include "cache/reuse_table.h"
#include "cache/shelf.h"
#include "cache/test_cache.h"

namespace larder::cache {
namespace {

// Objects of `tenants` salts, one slot each.
class Objects {
 public:
  explicit Objects(std::size_t slots, std::size_t tenants = 1) : cache_(slots), shelves_(tenants) {
    for (std::size_t i = 0; i < tenants; ++i) {
      tenants_.push_back({});
      tenants_.back().number = i + 1;
      tenants_.back().share_bytes = slots * kTestAlign;
      shelves_[i].space_hash = i;
    }
    for (std::size_t i = 0; i < tenants; ++i) {
      shelves_[i].tenant = &tenants_[i];
    }
  }

  Object& make(std::size_t tenant = 0) {
    auto slot = cache_.pool().take(kTestAlign);
    LARDER_CHECK(slot.has_value());
    objects_.emplace_back(
        keys::ObjectId{test_hash(++made_, 0), 0}, &shelves_[tenant], std::move(*slot));
    return objects_.back();
  }

  Tenant& tenant(std::size_t number) { return tenants_[number]; }

 private:
  TestCache cache_;
  std::deque<Tenant> tenants_;
  std::vector<Shelf> shelves_;
  std::deque<Object> objects_;
  std::uint32_t made_ = 0;
};

void find_again(EvictionPolicy& policy, Object& object) {
  ++object.usage.found;
  policy.touch(object, Use::kFound);
}

Object* evict_next(EvictionPolicy& policy) {
  Object* const victim = policy.victim();
  if (victim != nullptr) {
    policy.remove(*victim, Leaving::kEvicted);
  }
  return victim;
}

class EveryPolicy : public testing::TestWithParam<const char*> {};

TEST_P(EveryPolicy, OffersWhatMayGoAndNothingElse) {
  std::mt19937_64 random(test_seed());
  const std::unique_ptr<EvictionPolicy> policy = make_eviction_policy(GetParam());
  Objects objects(24, 3);
  std::vector<Object*> all;
  for (std::size_t i = 0; i < 24; ++i) {
    all.push_back(&objects.make(i % 3));
  }
  std::set<Object*> resident;
  std::set<Object*> free;
  for (int step = 0; step < 40000; ++step) {
    Object* const object = all[random() % all.size()];
    switch (resident.contains(object) ? random() % 6 : 6) {
      case 0:
      case 1:
        find_again(*policy, *object);
        break;
      case 2:
        policy->touch(*object, Use::kKept);
        break;
      case 3:
      case 4:
        free.contains(object) ? policy->pin(*object) : policy->unpin(*object);
        free.contains(object) ? static_cast<void>(free.erase(object))
                              : static_cast<void>(free.insert(object));
        break;
      case 5:
        policy->remove(*object, random() % 2 == 0 ? Leaving::kEvicted : Leaving::kCleared);
        resident.erase(object);
        free.erase(object);
        break;
      default:
        object->usage = {};
        policy->add(*object);
        resident.insert(object);
        free.insert(object);
    }
    Object* const victim = policy->victim();
    ASSERT_EQ(victim == nullptr, free.empty()) << "step " << step;
    ASSERT_TRUE(victim == nullptr || free.contains(victim)) << "step " << step;
  }
}

TEST_P(EveryPolicy, GivesUpTheTailOfAPromptFirst) {
  const std::unique_ptr<EvictionPolicy> policy = make_eviction_policy(GetParam());
  Objects objects(4);
  std::vector<Object*> prompt;
  for (int chunk = 0; chunk < 4; ++chunk) {
    prompt.push_back(&objects.make());
    policy->add(*prompt.back());
  }
  for (auto object = prompt.rbegin(); object != prompt.rend(); ++object) {
    policy->touch(**object, Use::kKept);
  }
  for (auto object = prompt.rbegin(); object != prompt.rend(); ++object) {
    EXPECT_EQ(evict_next(*policy), *object);
  }
}

INSTANTIATE_TEST_SUITE_P(Names,
                         EveryPolicy,
                         testing::Values("Learned", "LRU", "ARC", "IsolatedLRU"),
                         [](const auto& test) { return std::string(test.param); });

TEST(ArcPolicy, PrefersToGiveUpWhatWasFoundOnlyOnce) {
  ArcPolicy policy;
  Objects objects(3);
  Object& found = objects.make();
  Object& once = objects.make();
  policy.add(found);
  find_again(policy, found);
  policy.add(once);
  EXPECT_EQ(policy.victim(), &once) << "though the other was used before it";
}

TEST(ArcPolicy, UsesByTheSameRequestDoNotPromote) {
  ArcPolicy policy;
  Objects objects(3);
  Object& kept = objects.make();
  Object& later = objects.make();
  policy.add(kept);
  policy.touch(kept, Use::kKept);
  policy.add(later);
  EXPECT_EQ(policy.victim(), &kept);
}

TEST(ArcPolicy, LearnsFromWhatComesBackTooEarly) {
  ArcPolicy policy;
  Objects objects(12);
  std::vector<Object*> frequent;
  for (int i = 0; i < 3; ++i) {
    frequent.push_back(&objects.make());
    policy.add(*frequent.back());
    find_again(policy, *frequent.back());
  }
  Object& first = objects.make();
  policy.add(first);
  EXPECT_EQ(evict_next(policy), &first);
  policy.add(first);
  EXPECT_EQ(first.usage.queue, 1) << "it was missed, so it is one that comes back";
  Object& second = objects.make();
  policy.add(second);
  EXPECT_EQ(evict_next(policy), &second);
  policy.add(second);
  Object& third = objects.make();
  policy.add(third);
  EXPECT_EQ(policy.victim(), frequent.front())
      << "the first queue was given up too early twice, so it has grown";
}

TEST(IsolatedLruPolicy, TakesFromTheTenantThatUsesTheLargestPartOfItsShare) {
  IsolatedLruPolicy policy;
  Objects objects(8, 2);
  Object& small = objects.make(0);
  policy.add(small);
  std::vector<Object*> large;
  for (int i = 0; i < 4; ++i) {
    large.push_back(&objects.make(1));
    policy.add(*large.back());
  }
  EXPECT_EQ(evict_next(policy), large[0]) << "though the small tenant's was used before it";
  EXPECT_EQ(evict_next(policy), large[1]);
  objects.tenant(0).share_bytes = kTestAlign;
  policy.share_changed(objects.tenant(0));
  EXPECT_EQ(policy.victim(), &small) << "all of its share is in use";
  EXPECT_EQ(policy.victim_of(objects.tenant(1)), large[2]);
}

TEST(IsolatedLruPolicy, TakesFromTheNextTenantWhenTheFirstsAreHeld) {
  IsolatedLruPolicy policy;
  Objects objects(4, 2);
  Object& small = objects.make(0);
  std::array<Object*, 2> large = {&objects.make(1), &objects.make(1)};
  policy.add(small);
  policy.add(*large[0]);
  policy.add(*large[1]);
  policy.pin(*large[0]);
  policy.pin(*large[1]);
  EXPECT_EQ(policy.victim(), &small);
  EXPECT_EQ(policy.victim_of(objects.tenant(1)), nullptr);
  policy.unpin(*large[1]);
  EXPECT_EQ(policy.victim(), large[1]);
}

TEST(ReuseTable, BeginsLikeLeastRecentlyUsedWithWhatWasFoundOftenLast) {
  const ReuseTable table;
  for (std::size_t kind = 0; kind < ReuseTable::kKinds; ++kind) {
    for (std::size_t age = 0; age + 1 < ReuseTable::kAges; ++age) {
      EXPECT_GE(table.worth({kind, age}), table.worth({kind, age + 1}));
      if (kind > 0) {
        EXPECT_GT(table.worth({kind, age}), table.worth({kind - 1, age}));
      }
    }
  }
  EXPECT_GT(table.worth({0, 1}), 1000 * table.worth({0, ReuseTable::kAges - 1}));
  EXPECT_EQ(table.cells().front().kind, 0U);
  EXPECT_EQ(table.cells().front().age, ReuseTable::kAges - 1);
}

TEST(ReuseTable, EveryNumberOfUsesIsInOneAge) {
  for (std::size_t age = 0; age + 1 < ReuseTable::kAges; ++age) {
    EXPECT_EQ(ReuseTable::age_of(ReuseTable::last_use_of(age)), age);
    EXPECT_EQ(ReuseTable::last_use_of(age) + 1, ReuseTable::first_use_of(age + 1));
  }
  // What was not used for years is still a victim.
  constexpr std::uint64_t kEver = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(ReuseTable::last_use_of(ReuseTable::kAges - 1), kEver);
  EXPECT_EQ(ReuseTable::age_of(kEver), ReuseTable::kAges - 1);
}

TEST(ReuseTable, AgesArePowersOfTwo) {
  EXPECT_EQ(ReuseTable::age_of(0), 0U);
  for (std::size_t age = 1; age < ReuseTable::kAges; ++age) {
    EXPECT_EQ(ReuseTable::age_of(ReuseTable::first_use_of(age)), age);
    EXPECT_EQ(ReuseTable::age_of(ReuseTable::first_use_of(age) - 1), age - 1);
  }
  EXPECT_EQ(ReuseTable::age_of(~std::uint64_t{0}), ReuseTable::kAges - 1);
}

TEST(ReuseTable, LearnsThatAKindComesBackOnlyAfterAWhile) {
  ReuseTable table;
  for (int i = 0; i < 10000; ++i) {
    table.observe(1, 1000, true);
    table.observe(0, 1000, i % 10 == 0);
  }
  table.learn();
  const std::size_t age = ReuseTable::age_of(1000);
  EXPECT_GT(table.worth({1, age}), table.worth({1, 0})) << "nearer to its return";
  EXPECT_GT(table.worth({1, age}), 4 * table.worth({1, age + 1})) << "it should have been back";
  EXPECT_GT(table.worth({1, age}), 4 * table.worth({0, age}));
}

TEST(ReuseTable, ForgetsSlowly) {
  ReuseTable table;
  for (int i = 0; i < 1000; ++i) {
    table.observe(0, 100, true);
  }
  table.learn();
  const double then = table.worth({0, ReuseTable::age_of(100)});
  for (int lesson = 0; lesson < 2000; ++lesson) {
    table.observe(0, 100, false);
    table.learn();
  }
  EXPECT_LT(table.worth({0, ReuseTable::age_of(100)}), then / 4);
}

// One prompt in two comes back after 200 uses, the others never do; new ones keep coming.
TEST(LearnedPolicy, KeepsWhatComesBackAndGivesUpWhatDoesNot) {
  LearnedPolicy policy;
  Objects objects(3000);
  std::deque<Object*> regulars;
  std::set<Object*> resident;
  std::size_t missed = 0;
  std::size_t asked = 0;
  for (int i = 0; i < 40; ++i) {
    regulars.push_back(&objects.make());
  }
  for (int step = 0; step < 2500; ++step) {
    Object* const regular = regulars.front();
    regulars.pop_front();
    regulars.push_back(regular);
    if (resident.contains(regular)) {
      find_again(policy, *regular);
    } else {
      missed += step >= 1500 ? 1 : 0;
      regular->usage = {};
      policy.add(*regular);
      resident.insert(regular);
    }
    asked += step >= 1500 ? 1 : 0;
    Object& once = objects.make();
    policy.add(once);
    resident.insert(&once);
    while (resident.size() > 48) {  // least recently used would keep 24 of the 40
      resident.erase(evict_next(policy));
    }
  }
  EXPECT_LT(missed, asked / 10) << missed << " of " << asked;
}

TEST(LearnedPolicy, ComesBackWithTheCountItHad) {
  LearnedPolicy policy;
  Objects objects(2);
  Object& object = objects.make();
  Object& other = objects.make();
  policy.add(other);
  policy.add(object);
  find_again(policy, object);
  find_again(policy, object);
  policy.remove(object, Leaving::kEvicted);
  object.usage = {};
  policy.add(object);
  EXPECT_EQ(object.usage.found, 3U);
  policy.remove(object, Leaving::kCleared);
  object.usage = {};
  policy.add(object);
  EXPECT_EQ(object.usage.found, 0U) << "what was cleared is not remembered";
}

TEST(LearnedPolicy, AdmitsByWhatIsKnownOfBoth) {
  LearnedPolicy policy;
  Objects objects(4);
  Object& frequent = objects.make();
  policy.add(frequent);
  for (int i = 0; i < 5; ++i) {
    find_again(policy, frequent);
  }
  Object& newcomer = objects.make();
  EXPECT_FALSE(policy.admits(newcomer, frequent));
  newcomer.usage.found = 5;
  EXPECT_TRUE(policy.admits(newcomer, frequent)) << "it goes on where a frequent one ended";
  Object& once = objects.make();
  policy.add(once);
  newcomer.usage.found = 0;
  EXPECT_TRUE(policy.admits(newcomer, once));
}

TEST(Ghosts, RememberTheLatestAndSayWhatTheyForget) {
  Objects objects(4, 2);
  Ghosts ghosts;
  std::array<Object*, 3> gone = {&objects.make(), &objects.make(), &objects.make()};
  for (std::uint16_t i = 0; i < 3; ++i) {
    gone.at(i)->usage.found = i;
  }
  EXPECT_TRUE(ghosts.add(*gone[0], 2).empty());
  EXPECT_TRUE(ghosts.add(*gone[1], 2).empty());
  EXPECT_TRUE(ghosts.add(*gone[0], 2).empty()) << "the same again is not one more";
  const std::vector<Usage> forgotten = ghosts.add(*gone[2], 2);
  ASSERT_EQ(forgotten.size(), 1U);
  EXPECT_EQ(forgotten[0].found, 1U) << "the one that went longest ago";
  EXPECT_EQ(ghosts.find(*gone[1]), nullptr);
  ASSERT_NE(ghosts.find(*gone[2]), nullptr);
  EXPECT_EQ(ghosts.take(*gone[2])->found, 2U);
  EXPECT_FALSE(ghosts.take(*gone[2]).has_value());
  EXPECT_EQ(ghosts.size(), 1U);
}

}  // namespace
}  // namespace larder::cache
