// Goal: room is made without harm: not more goes than must, never a head without its tail, never
// beyond a quota, and a pool of many sizes stays full. Method: small pools by hand, and a long
// random run of stores whose losses are counted. LARDER_TEST_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "cache/cache_index.h"
#include "cache/test_cache.h"

namespace larder::cache {
namespace {

const std::uint32_t kOnlyRank = keys::pack_kv_rank(1, 0);

KeySpace sized(KeySpace space, std::size_t slots) {
  space.layout.shape = {static_cast<std::int64_t>(slots * kTestAlign)};
  return space;
}

std::vector<keys::ChunkHash> joined(std::vector<keys::ChunkHash> front,
                                    const std::vector<keys::ChunkHash>& back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

TEST(CacheRoom, AHeadStaysAsLongAsItsTailIsHeld) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 3));
  const Result<ReadLease> tail = cache->acquire(space, {test_prompt(1, 3), 2, kOnlyRank});
  ASSERT_TRUE(tail.has_value());
  EXPECT_EQ(cache.store(space, test_prompt(2, 3)), 1U) << "there was one free slot";
  EXPECT_EQ(cache->evict_down_to(0, 100), 1U);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 3)), 3U);
}

TEST(CacheRoom, ASharedHeadGoesAfterAllThatIsBehindIt) {
  for (const char* const policy : {"Learned", "LRU", "ARC", "IsolatedLRU"}) {
    SCOPED_TRACE(policy);
    TestCache cache(8, policy);
    const KeySpace space = test_space();
    const auto head = test_prompt(1, 2);
    for (std::uint32_t branch = 2; branch < 5; ++branch) {
      cache.store(space, joined(head, test_prompt(branch, 2)));
    }
    while (cache->stats().resident_objects > 2) {
      EXPECT_EQ(cache.hit(space, head), 2U);
      EXPECT_EQ(cache->evict_down_to((cache.used_objects() - 1) * kTestAlign, 100), 1U);
    }
    EXPECT_EQ(cache.hit(space, head), 2U);
  }
}

TEST(CacheRoom, HeadsOfHeldTailsGoWhereNothingElseMakesRoom) {
  constexpr std::uint32_t kHeld = 3000;  // more than one step of the walk looks at
  TestCache cache(kHeld + 7);
  const KeySpace space = test_space();
  std::vector<ReadLease> held;
  const auto hold = [&](std::uint32_t prompt, std::uint32_t chunk) {
    auto lease = cache->acquire(space, {test_prompt(prompt, chunk + 1), chunk, kOnlyRank});
    ASSERT_TRUE(lease.has_value());
    held.push_back(std::move(*lease));
  };
  ASSERT_EQ(cache.store(space, test_prompt(0, kHeld)), kHeld);
  for (std::uint32_t chunk = 0; chunk < kHeld; ++chunk) {
    hold(0, chunk);
  }
  // Side by side: two heads whose tails are held; alone: one that may go, and is too little.
  cache.store(space, test_prompt(1, 1));
  cache.store(space, test_prompt(2, 1));
  cache.store(space, test_prompt(1, 2));
  cache.store(space, test_prompt(2, 2));
  for (std::uint32_t prompt = 3; prompt < 6; ++prompt) {
    cache.store(space, test_prompt(prompt, 1));
  }
  hold(1, 1);
  hold(2, 1);
  hold(3, 0);
  hold(5, 0);
  ASSERT_EQ(cache->stats().evictable_bytes, 3 * kTestAlign);
  EXPECT_TRUE(cache.reserve(sized(space, 2), test_prompt(7, 1)).has_value());
  EXPECT_EQ(cache->stats().evictable_bytes, kTestAlign);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 2)), 0U);
  EXPECT_FALSE(cache.reserve(sized(space, 3), test_prompt(8, 1)).has_value());
}

TEST(CacheRoom, ALargeObjectTakesNeighboursAndNoOthers) {
  TestCache cache(8);
  const KeySpace space = test_space();
  for (std::uint32_t prompt = 0; prompt < 8; ++prompt) {
    cache.store(space, test_prompt(prompt, 1));
  }
  const Result<ReadLease> held = cache->acquire(space, {test_prompt(2, 1), 0, kOnlyRank});
  EXPECT_EQ(cache.hit(space, test_prompt(0, 1)), 1U);  // used last: only 3 and 4 are old and beside
  EXPECT_EQ(cache.store(sized(space, 2), test_prompt(20, 1)), 1U);
  std::vector<std::size_t> left;
  for (std::uint32_t prompt = 0; prompt < 8; ++prompt) {
    left.push_back(cache.hit(space, test_prompt(prompt, 1)));
  }
  EXPECT_EQ(left, (std::vector<std::size_t>{1, 1, 1, 0, 0, 1, 1, 1}));
}

TEST(CacheRoom, WhenNoPieceIsLargeEnoughNothingGoes) {
  TestCache cache(8);
  const KeySpace space = test_space();
  for (std::uint32_t prompt = 0; prompt < 8; ++prompt) {
    cache.store(space, test_prompt(prompt, 1));
  }
  std::vector<ReadLease> held;
  for (std::uint32_t prompt = 0; prompt < 8; prompt += 2) {
    held.push_back(std::move(*cache->acquire(space, {test_prompt(prompt, 1), 0, kOnlyRank})));
  }
  const Result<WriteLease> refused = cache.reserve(sized(space, 2), test_prompt(20, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(cache->stats().resident_objects, 8U) << "four were free to go, but no two of them meet";
}

TEST(CacheRoom, AHeadGoesWithoutItsHeldTailOnlyWhenThereIsNoOtherPiece) {
  TestCache cache(6);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 5));
  cache.store(space, test_prompt(2, 1));
  const Result<ReadLease> tail = cache->acquire(space, {test_prompt(1, 5), 3, kOnlyRank});
  ASSERT_TRUE(tail.has_value());
  EXPECT_EQ(cache.store(sized(space, 3), test_prompt(3, 1)), 1U);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 5)), 0U);
  EXPECT_TRUE(cache.has(space, test_prompt(1, 5), 4)) << "the tail is held, and stays";
  EXPECT_EQ(cache.hit(space, test_prompt(2, 1)), 1U) << "its room was of no use";
  EXPECT_TRUE(has_pattern(tail->bytes(0), 1));
}

TEST(CacheRoom, QuotasKeepATenantWithinItsShare) {
  TestCache cache(16, "IsolatedLRU");
  const KeySpace alice = test_space("model", "alice");
  const KeySpace bob = test_space("model", "bob");
  cache->set_quota("alice", 4 * kTestAlign);
  cache.store(bob, test_prompt(1, 4));
  cache.store(alice, test_prompt(2, 3));
  EXPECT_EQ(cache.store(alice, test_prompt(3, 3)), 3U) << "its own oldest made room";
  EXPECT_EQ(cache.hit(alice, test_prompt(3, 3)), 3U);
  EXPECT_EQ(cache.hit(alice, test_prompt(2, 3)), 1U);
  EXPECT_EQ(cache.hit(bob, test_prompt(1, 4)), 4U);
  EXPECT_EQ(cache.store(alice, test_prompt(4, 9)), 4U) << "what fits, from the front";
  EXPECT_EQ(cache.used_objects(), 8U) << "the rest of the pool is free";
  const std::vector<Quota> quotas = cache->quotas();
  ASSERT_EQ(quotas.size(), 1U);
  EXPECT_EQ(quotas[0].cache_salt, "alice");
  EXPECT_EQ(quotas[0].limit_bytes, 4 * kTestAlign);
  EXPECT_EQ(quotas[0].resident_bytes, 4 * kTestAlign);
}

TEST(CacheRoom, WhatCannotFitIntoAQuotaBesideWhatIsHeldEvictsNothing) {
  TestCache cache(16, "IsolatedLRU");
  const KeySpace space = test_space("model", "alice");
  cache->set_quota("alice", 4 * kTestAlign);
  cache.store(space, test_prompt(1, 1));
  cache.store(space, test_prompt(2, 3));
  const Result<ReadLease> held = cache->acquire(space, {test_prompt(2, 3), 0, kOnlyRank});
  ASSERT_TRUE(held.has_value());
  const Result<WriteLease> refused = cache.reserve(sized(space, 2), test_prompt(3, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 1)), 1U);
}

TEST(CacheRoom, AQuotaHoldsForAllModelsAndLayoutsOfASalt) {
  TestCache cache(16, "IsolatedLRU");
  cache->set_quota("", 3 * kTestAlign);
  cache.store(test_space("one"), test_prompt(1, 2));
  cache.store(test_space("two"), test_prompt(1, 2));
  EXPECT_EQ(cache.used_objects(), 3U);
  EXPECT_EQ(cache.hit(test_space("one"), test_prompt(1, 2)), 1U);
}

TEST(CacheRoom, ALoweredQuotaTakesEffectAtOnceButForWhatIsHeld) {
  TestCache cache(16, "IsolatedLRU");
  const KeySpace space = test_space("model", "alice");
  cache.store(space, test_prompt(1, 2));
  cache.store(space, test_prompt(2, 6));
  {
    const Result<ReadLease> held = cache->acquire(space, {test_prompt(1, 2), 0, kOnlyRank});
    cache->set_quota("alice", kTestAlign);
    EXPECT_EQ(cache.used_objects(), 2U);
    const Result<WriteLease> refused = cache.reserve(space, test_prompt(3, 1));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Code::kNoSpace);
  }
  EXPECT_EQ(cache.store(space, test_prompt(3, 1)), 1U);
  EXPECT_EQ(cache.used_objects(), 1U);
  cache->set_quota("alice", 0);
  EXPECT_EQ(cache.used_objects(), 0U);
  EXPECT_EQ(cache.store(space, test_prompt(3, 1)), 0U);
  EXPECT_TRUE(cache->remove_quota("alice"));
  EXPECT_FALSE(cache->remove_quota("alice"));
  EXPECT_EQ(cache.store(space, test_prompt(3, 16)), 16U);
  cache.expect_at_rest();
}

TEST(CacheRoom, WritersSideBySideEndWithinTheQuota) {
  TestCache cache(16, "IsolatedLRU");
  const KeySpace space = test_space("model", "alice");
  cache->set_quota("alice", 4 * kTestAlign);
  Result<WriteLease> first = cache.reserve(space, test_prompt(1, 3));
  Result<WriteLease> second = cache.reserve(space, test_prompt(2, 3));
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_TRUE(first->commit());
  EXPECT_TRUE(second->commit());
  EXPECT_EQ(cache.used_objects(), 4U);
  EXPECT_EQ(cache.hit(space, test_prompt(2, 3)), 3U);
  cache->clear();
  EXPECT_EQ(cache->quotas().at(0).resident_bytes, 0U) << "the quota stays";
  EXPECT_EQ(cache.store(space, test_prompt(5, 8)), 4U);
}

TEST(CacheRoom, QuotasAreOnlyRememberedWithOtherPolicies) {
  TestCache cache(8, "LRU");
  cache->set_quota("", kTestAlign);
  EXPECT_EQ(cache.store(test_space(), test_prompt(1, 8)), 8U);
  EXPECT_EQ(cache->quotas().at(0).resident_bytes, 8 * kTestAlign);
}

TEST(CacheRoom, TheNumberOfQuotasIsBounded) {
  TestCache cache(8, "IsolatedLRU");
  for (std::size_t salt = 0; salt < CacheIndex::kQuotasMax; ++salt) {
    ASSERT_TRUE(cache->set_quota(std::to_string(salt), kTestAlign));
  }
  EXPECT_FALSE(cache->set_quota("one more", kTestAlign));
  EXPECT_TRUE(cache->set_quota("7", 2 * kTestAlign));
  EXPECT_TRUE(cache->remove_quota("7"));
  EXPECT_TRUE(cache->set_quota("one more", kTestAlign));
  EXPECT_EQ(cache->quotas().size(), CacheIndex::kQuotasMax);
}

TEST(CacheRoom, WhatASaltHoldsIsKnownWithoutAQuota) {
  TestCache cache(8, "LRU");
  cache.store(test_space("model", "alice"), test_prompt(1, 3));
  cache.store(test_space("other", "alice"), test_prompt(1, 2));
  cache.store(test_space("model", "bob"), test_prompt(1, 1));
  EXPECT_EQ(cache->resident_bytes("alice"), 5 * kTestAlign);
  EXPECT_EQ(cache->resident_bytes("nobody"), 0U);
  cache->clear();
  EXPECT_EQ(cache->resident_bytes("alice"), 0U);
}

TEST(CacheRoom, OneTenantsFloodLeavesTheOthersAlone) {
  TestCache cache(16, "IsolatedLRU");
  cache.store(test_space("model", "quiet"), test_prompt(1, 4));
  for (std::uint32_t prompt = 2; prompt < 20; ++prompt) {
    cache.store(test_space("model", "loud"), test_prompt(prompt, 3));
  }
  EXPECT_EQ(cache.hit(test_space("model", "quiet"), test_prompt(1, 4)), 4U);
}

class SelectiveCache {
 public:
  SelectiveCache() {
    pool::PoolConfig config;
    config.bytes = 8 * kTestAlign;
    config.align_bytes = kTestAlign;
    config.private_memory = true;
    pool_ = std::move(*pool::Pool::create(config));
    index_ = std::make_unique<CacheIndex>(
        *pool_, make_eviction_policy("Learned"), metrics_, Admission::kSelective);
  }

  Result<WriteLease> reserve(const std::vector<keys::ChunkHash>& prompt) {
    return index_->reserve(space_, {prompt, 0, kOnlyRank}, skip_none);
  }

  std::size_t hit(const std::vector<keys::ChunkHash>& prompt) {
    return index_->acquire_prefix(needed({space_}), prompt, {&kOnlyRank, 1}).chunks;
  }

  metrics::Registry& metrics() { return metrics_; }

 private:
  const KeySpace space_ = test_space();
  std::unique_ptr<pool::Pool> pool_;
  metrics::Registry metrics_;
  std::unique_ptr<CacheIndex> index_;
};

TEST(Admission, AOneOffDoesNotPushOutWhatIsFoundOften) {
  SelectiveCache cache;
  const auto shared = test_prompt(1, 6);
  ASSERT_TRUE(cache.reserve(shared)->commit());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(cache.hit(shared), 6U);
  }
  Result<WriteLease> lease = cache.reserve(test_prompt(2, 5));
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->size(), 2U) << "there was room for two";
  EXPECT_EQ(lease->missing(), 2U) << "what was declined is not what failed";
  EXPECT_TRUE(lease->commit());
  EXPECT_EQ(cache.hit(shared), 6U);
  EXPECT_NE(cache.metrics().page().find("larder_l1_declined_chunks_total 3.0\n"),
            std::string::npos);
}

TEST(Admission, AStoreOfWhichNothingIsAdmittedIsAnEmptyLeaseThatCommits) {
  SelectiveCache cache;
  const auto shared = test_prompt(1, 8);
  ASSERT_TRUE(cache.reserve(shared)->commit());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(cache.hit(shared), 8U);
  }
  Result<WriteLease> lease = cache.reserve(test_prompt(2, 3));
  ASSERT_TRUE(lease.has_value());
  EXPECT_TRUE(lease->empty());
  EXPECT_EQ(lease->missing(), 0U);
  EXPECT_TRUE(lease->commit());
}

TEST(Admission, WhatGoesOnWhereAFoundPromptEndedIsAdmitted) {
  SelectiveCache cache;
  const auto prompt = test_prompt(1, 6);
  ASSERT_TRUE(cache.reserve(test_prompt(1, 4))->commit());
  ASSERT_TRUE(cache.reserve(test_prompt(2, 4))->commit());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(cache.hit(test_prompt(1, 4)), 4U);
    EXPECT_EQ(cache.hit(test_prompt(2, 4)), 4U);
  }
  Result<WriteLease> lease = cache.reserve(prompt);
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->size(), 2U);
}

// Many sizes at once, as of several models, some of them held: the pool stays full, and no store
// costs much more than its own size.
TEST(CacheRoom, StoresOfRandomSizesKeepThePoolFull) {
  constexpr std::size_t kPoolSlots = 40000;
  constexpr std::size_t kSlotsMax = 64;
  constexpr int kObjects = 100000;
  constexpr int kHeld = 8;
  std::mt19937_64 random(test_seed());
  TestCache cache(kPoolSlots);
  std::vector<KeySpace> spaces;
  for (std::size_t slots = 1; slots <= kSlotsMax; ++slots) {
    spaces.push_back(sized(test_space(), slots));
  }
  std::deque<ReadLease> held;
  std::size_t stored = 0;
  double sum_full = 0;
  double least_full = 1;
  std::size_t most_gone = 0;
  int measured = 0;
  for (std::uint32_t prompt = 0; stored < kObjects; ++prompt) {
    const KeySpace& space = spaces[random() % spaces.size()];
    const auto chunks = static_cast<std::uint32_t>(1 + random() % 12);
    const auto hashes = test_prompt(prompt, chunks);
    const std::size_t before = cache.used_objects();
    Result<WriteLease> lease = cache.reserve(space, hashes);
    ASSERT_TRUE(lease.has_value());
    ASSERT_EQ(lease->size(), chunks);
    const std::size_t taken = chunks * static_cast<std::size_t>(space.layout.shape[0]) / kTestAlign;
    const std::size_t gone = before + taken - cache.used_objects();
    ASSERT_TRUE(lease->commit());
    stored += chunks;
    if (random() % 8 == 0) {
      held.push_back(cache->acquire_prefix(needed({space}), hashes, {&kOnlyRank, 1}).lease);
      while (held.size() > kHeld) {
        held.pop_front();
      }
    }
    if (gone > 0) {  // so full the pool was when it had no room
      const double full = static_cast<double>(before) / kPoolSlots;
      sum_full += full;
      least_full = std::min(least_full, full);
      most_gone = std::max(most_gone, gone);
      ++measured;
    }
  }
  RecordProperty("mean_full_per_mille", static_cast<int>(1000 * sum_full / measured));
  RecordProperty("least_full_per_mille", static_cast<int>(1000 * least_full));
  EXPECT_GT(sum_full / measured, 0.95);
  EXPECT_GT(least_full, 0.88);
  EXPECT_LT(most_gone, kPoolSlots / 10) << "for one store";
  held.clear();
  cache.expect_at_rest();
}

}  // namespace
}  // namespace larder::cache
