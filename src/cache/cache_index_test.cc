// Goal: what the index promises to its users, one promise a test: who sees what and when, whose
// room is taken, and what stays while somebody holds it. Method: a pool of a few objects, so that
// every store is under pressure.
#include "cache/cache_index.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <thread>

#include "cache/test_cache.h"

namespace larder::cache {
namespace {

const std::uint32_t kOnlyRank = keys::pack_kv_rank(1, 0);

ReadLease pin_all(TestCache& cache,
                  const KeySpace& space,
                  const std::vector<keys::ChunkHash>& prompt) {
  Result<ReadLease> lease = cache->acquire(space, {prompt, 0, kOnlyRank});
  EXPECT_TRUE(lease.has_value());
  return std::move(*lease);
}

TEST(CacheIndex, ShowsNothingBeforeCommitAndAllAfter) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 3);
  Result<WriteLease> lease = cache.reserve(space, prompt);
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(cache.hit(space, prompt), 0U);
  EXPECT_FALSE(cache.has(space, prompt, 0));
  EXPECT_TRUE(lease->commit());
  EXPECT_EQ(cache.hit(space, prompt), 3U);
  cache.expect_at_rest();
}

TEST(CacheIndex, CountsLeadingChunksOnly) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 5);
  Result<WriteLease> tail = cache.reserve(space, prompt, 3);
  ASSERT_TRUE(tail.has_value() && tail->commit());
  EXPECT_EQ(cache.hit(space, prompt), 0U) << "a hole ends the prefix";
  cache.store(space, test_prompt(1, 2));
  EXPECT_EQ(cache.hit(space, prompt), 2U);
  cache.store(space, test_prompt(1, 3));
  EXPECT_EQ(cache.hit(space, prompt), 5U);
}

TEST(CacheIndex, ReservesOnlyWhatIsMissingInTheRange) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 5);
  cache.store(space, test_prompt(1, 3));
  Result<WriteLease> lease = cache.reserve(space, prompt, 1);
  ASSERT_TRUE(lease.has_value());
  ASSERT_EQ(lease->size(), 2U);
  EXPECT_EQ(lease->chunk(0), 3U);
  EXPECT_EQ(lease->chunk(1), 4U);
}

TEST(CacheIndex, LeavesOutWhatTheCallerSkips) {
  TestCache cache;
  const auto prompt = test_prompt(1, 3);
  const Result<WriteLease> lease =
      cache->reserve(test_space(), {prompt, 0, kOnlyRank}, [](const keys::ObjectId& id) {
        return id.chunk_hash == test_hash(1, 1);
      });
  ASSERT_TRUE(lease.has_value());
  ASSERT_EQ(lease->size(), 2U);
  EXPECT_EQ(lease->missing(), 2U);
  EXPECT_EQ(lease->chunk(1), 2U);
}

TEST(CacheIndex, TheCallerMayUseTheIndexWhileItIsAskedWhatToSkip) {
  TestCache cache;
  const auto prompt = test_prompt(1, 3);
  const KeySpace space = test_space();
  const Result<WriteLease> lease =
      cache->reserve(space, {prompt, 0, kOnlyRank}, [&](const keys::ObjectId&) {
        return cache.hit(space, prompt) > 0;
      });
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->size(), 3U);
}

TEST(CacheIndex, CountsAChunkOnlyWhenEveryRankHasIt) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto ranks = test_ranks(3);
  cache.store(space, test_prompt(1, 4), ranks[0]);
  cache.store(space, test_prompt(1, 2), ranks[1]);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4), ranks), 0U);
  cache.store(space, test_prompt(1, 3), ranks[2]);
  const PrefixLookup found = cache->acquire_prefix(needed({space}), test_prompt(1, 4), ranks);
  EXPECT_EQ(found.chunks, 2U);
  EXPECT_EQ(found.lease.size(), 6U);
  EXPECT_EQ(cache->stats().pinned_objects, 6U) << "no chunk beyond the answer is pinned";
}

TEST(CacheIndex, LayoutsDoNotMix) {
  TestCache cache;
  const KeySpace bytes = test_space();
  const KeySpace floats = other_layout(bytes);
  const auto prompt = test_prompt(1, 3);
  cache.store(bytes, prompt, kOnlyRank, 1);
  EXPECT_EQ(cache.hit(floats, prompt), 0U);
  EXPECT_FALSE(cache.has(floats, prompt, 0));
  EXPECT_EQ(cache.store(floats, test_prompt(1, 2), kOnlyRank, 2), 2U)
      << "the other layout's objects are not ours";
  EXPECT_TRUE(has_pattern(pin_all(cache, bytes, prompt).bytes(0), 1));
  EXPECT_TRUE(has_pattern(pin_all(cache, floats, test_prompt(1, 2)).bytes(0), 2));

  const std::vector<KeySpace> both = {bytes, floats};
  const PrefixLookup found =
      cache->acquire_prefix(needed(both), prompt, std::vector<std::uint32_t>{kOnlyRank});
  EXPECT_EQ(found.chunks, 2U);
  ASSERT_EQ(found.lease.size(), 4U);
  EXPECT_TRUE(has_pattern(found.lease.bytes(1), 1)) << "ordered [space][chunk][rank]";
  EXPECT_TRUE(has_pattern(found.lease.bytes(2), 2));
}

TEST(CacheIndex, ObjectGroupsOfOneLayoutDoNotMix) {
  TestCache cache;
  KeySpace second = test_space();
  second.object_group = 1;
  cache.store(test_space(), test_prompt(1, 2), kOnlyRank, 1);
  EXPECT_EQ(cache.hit(second, test_prompt(1, 2)), 0U);
  EXPECT_EQ(cache.store(second, test_prompt(1, 2), kOnlyRank, 2), 2U);
  EXPECT_TRUE(has_pattern(pin_all(cache, test_space(), test_prompt(1, 2)).bytes(0), 1));
}

// Sliding windows: a full space that holds five chunks and one with a window that lost its first.
TEST(CacheIndex, AWindowNeedsOnlyItsLastChunks) {
  TestCache cache;
  const auto prompt = test_prompt(1, 6);
  const KeySpace full = test_space();
  KeySpace sliding = test_space();
  sliding.object_group = 1;
  const std::vector<NeededSpace> spaces = {{full, std::nullopt, 0}, {sliding, 2, 0}};
  cache.store(full, test_prompt(1, 5));
  cache.store(sliding, test_prompt(1, 3));
  {
    const PrefixLookup found = cache->acquire_prefix(spaces, prompt, test_ranks(1));
    EXPECT_EQ(found.chunks, 3U);
    ASSERT_EQ(found.lease.size(), 6U);
    for (const std::size_t place : {0U, 1U, 2U, 4U, 5U}) {
      EXPECT_TRUE(found.lease.holds(place)) << place;
    }
    EXPECT_FALSE(found.lease.holds(3)) << "before the window";
    EXPECT_EQ(cache->stats().pinned_objects, 5U);
  }
  EXPECT_EQ(cache->stats().pinned_objects, 0U);
}

TEST(CacheIndex, AWindowServesAgainBehindAHole) {
  TestCache cache;
  const auto prompt = test_prompt(1, 6);
  const KeySpace full = test_space();
  KeySpace sliding = test_space();
  sliding.object_group = 1;
  const std::vector<NeededSpace> spaces = {{full, std::nullopt, 0}, {sliding, 2, 0}};
  cache.store(full, prompt);
  // Chunks 0, 2, 3 and 4: of the prefixes 1, 4 and 5 the last two (or all) chunks are there.
  for (const std::size_t chunk : {0U, 2U, 3U, 4U}) {
    Result<WriteLease> lease =
        cache->reserve(sliding, {std::span(prompt).first(chunk + 1), chunk, kOnlyRank}, skip_none);
    ASSERT_TRUE(lease && lease->commit());
  }
  EXPECT_EQ(cache->acquire_prefix(spaces, prompt, test_ranks(1)).chunks, 5U);
  EXPECT_EQ(cache->acquire_prefix(spaces, test_prompt(1, 4), test_ranks(1)).chunks, 4U);
  EXPECT_EQ(cache->acquire_prefix(spaces, test_prompt(1, 3), test_ranks(1)).chunks, 1U);
  const std::vector<NeededSpace> alone = {spaces[1]};
  EXPECT_EQ(cache->acquire_prefix(alone, prompt, test_ranks(1)).chunks, 5U)
      << "with no full space a hole does not end the search";
}

TEST(CacheIndex, SaltsAndModelsDoNotMix) {
  TestCache cache;
  const auto prompt = test_prompt(1, 1);
  cache.store(test_space("model", "alice"), prompt);
  EXPECT_EQ(cache.hit(test_space("model", "bob"), prompt), 0U);
  EXPECT_EQ(cache.hit(test_space("model", ""), prompt), 0U);
  EXPECT_EQ(cache.hit(test_space("other", "alice"), prompt), 0U);
  EXPECT_EQ(cache.hit(test_space("model", "alice"), prompt), 1U);
}

TEST(CacheIndex, ALookupWithoutLayoutsOrRanksFindsNothing) {
  TestCache cache;
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 2));
  EXPECT_EQ(cache->acquire_prefix({}, test_prompt(1, 2), test_ranks(1)).chunks, 0U);
  EXPECT_EQ(cache->acquire_prefix(needed({space}), test_prompt(1, 2), {}).chunks, 0U);
}

TEST(CacheIndex, AcquirePinsAllOfTheRangeOrNothing) {
  TestCache cache;
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 3));
  const Result<ReadLease> beyond = cache->acquire(space, {test_prompt(1, 4), 1, kOnlyRank});
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code, Code::kNotFound);
  EXPECT_EQ(cache->stats().pinned_objects, 0U);
  const Result<ReadLease> inside = cache->acquire(space, {test_prompt(1, 3), 1, kOnlyRank});
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(inside->size(), 2U);
}

TEST(CacheIndex, OfTwoWritersTheFirstCommitWinsAndTheSecondAnswersTrue) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 2);
  Result<WriteLease> first = cache.reserve(space, prompt);
  Result<WriteLease> second = cache.reserve(space, prompt);
  ASSERT_TRUE(first.has_value() && second.has_value());
  ASSERT_EQ(second->size(), 2U) << "each has memory of its own";
  for (std::size_t i = 0; i < 2; ++i) {
    write_pattern(first->slot(i).bytes(), 1);
    write_pattern(second->slot(i).bytes(), 2);
  }
  EXPECT_TRUE(second->commit());
  EXPECT_TRUE(first->commit());
  EXPECT_TRUE(has_pattern(pin_all(cache, space, prompt).bytes(0), 2));
  EXPECT_EQ(cache.used_objects(), 2U) << "the later copy is dropped";
  cache.expect_at_rest();
}

TEST(CacheIndex, ADeadWriterBlocksNobody) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 2);
  Result<WriteLease> dead = cache.reserve(space, prompt);
  ASSERT_TRUE(dead.has_value());
  EXPECT_EQ(cache.store(space, prompt), 2U);
  EXPECT_EQ(cache.hit(space, prompt), 2U);
}

TEST(CacheIndex, CommitAfterClearAnswersFalseAndPublishesNothing) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 2);
  Result<WriteLease> lease = cache.reserve(space, prompt);
  ASSERT_TRUE(lease.has_value());
  cache->clear();
  EXPECT_FALSE(lease->commit());
  EXPECT_EQ(cache.hit(space, prompt), 0U);
  EXPECT_EQ(cache.used_objects(), 0U);
  EXPECT_EQ(cache.store(space, prompt), 2U) << "what is reserved after the clear commits";
}

TEST(CacheIndex, ACommitOfNothingMissingIsTrueUntilTheCacheIsCleared) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 2);
  cache.store(space, prompt);
  Result<WriteLease> before = cache.reserve(space, prompt);
  Result<WriteLease> after = cache.reserve(space, prompt);
  ASSERT_TRUE(before.has_value() && after.has_value());
  EXPECT_TRUE(before->commit());
  cache->clear();
  EXPECT_FALSE(after->commit());
}

TEST(CacheIndex, ClearHidesPinnedObjectsAtOnceAndFreesThemAtTheLastPin) {
  TestCache cache;
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 3);
  cache.store(space, prompt, kOnlyRank, 7);
  std::optional<ReadLease> lease = cache->acquire(space, {prompt, 1, kOnlyRank}).value();
  cache->clear();
  EXPECT_EQ(cache.hit(space, prompt), 0U);
  EXPECT_EQ(cache->stats().resident_objects, 0U);
  EXPECT_EQ(cache->stats().pinned_objects, 2U);
  EXPECT_EQ(cache.used_objects(), 2U);
  EXPECT_EQ(cache.store(space, prompt, kOnlyRank, 8), 3U) << "the same chunks can be stored anew";
  EXPECT_TRUE(has_pattern(lease->bytes(0), 7));
  EXPECT_TRUE(has_pattern(pin_all(cache, space, prompt).bytes(1), 8));
  lease.reset();
  EXPECT_EQ(cache.used_objects(), 3U);
  cache.expect_at_rest();
}

TEST(CacheIndex, ClearedObjectsThatAreStillHeldAreNoRoomForOthers) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 4));
  const ReadLease lease = pin_all(cache, space, test_prompt(1, 4));
  cache->clear();
  const Result<WriteLease> refused = cache.reserve(space, test_prompt(2, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
}

TEST(CacheIndex, AFullPoolMakesRoomForAStore) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 4));
  EXPECT_EQ(cache.store(space, test_prompt(2, 3)), 3U);
  EXPECT_EQ(cache.hit(space, test_prompt(2, 3)), 3U);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4)), 1U)
      << "only as much as is needed goes, from the tail";
}

TEST(CacheIndex, APartialStoreKeepsTheLeadingChunksWhenThePoolIsFull) {
  TestCache cache(4);
  const KeySpace space = test_space();
  const auto prompt = test_prompt(1, 10);
  Result<WriteLease> lease = cache.reserve(space, prompt);
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->size(), 4U);
  EXPECT_EQ(lease->missing(), 10U);
  EXPECT_EQ(lease->chunk(3), 3U);
  EXPECT_TRUE(lease->commit());
  EXPECT_EQ(cache.hit(space, prompt), 4U);
}

TEST(CacheIndex, AnObjectThatCanNeverFitIsRefusedAndEvictsNothing) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 4));
  KeySpace huge = space;
  huge.layout.shape = {std::int64_t{5 * kTestAlign}};
  const Result<WriteLease> refused = cache.reserve(huge, test_prompt(2, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kTooLarge);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4)), 4U);
}

TEST(CacheIndex, ALayoutThatMakesNoSenseIsRefused) {
  TestCache cache(4);
  KeySpace bad = test_space();
  bad.layout.shape = {0};
  const Result<WriteLease> refused = cache.reserve(bad, test_prompt(1, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kInvalid);
}

TEST(CacheIndex, ARequestThatCannotFitBesideWhatIsPinnedEvictsNothing) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 3));
  cache.store(space, test_prompt(2, 1));
  const ReadLease pinned = pin_all(cache, space, test_prompt(1, 3));
  KeySpace large = space;
  large.layout.shape = {std::int64_t{2 * kTestAlign}};
  const Result<WriteLease> refused = cache.reserve(large, test_prompt(3, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(cache.hit(space, test_prompt(2, 1)), 1U);
}

TEST(CacheIndex, WhatIsPinnedIsNeverEvicted) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 4), kOnlyRank, 7);
  const ReadLease pinned = pin_all(cache, space, test_prompt(1, 3));
  EXPECT_EQ(cache.store(space, test_prompt(2, 3)), 1U) << "one object was free to go";
  EXPECT_EQ(cache->evict_down_to(0, 100), 1U);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4)), 3U);
  EXPECT_TRUE(has_pattern(pinned.bytes(0), 7));
}

TEST(CacheIndex, ThePromptsOwnPrefixIsNeverEvictedForItsTail) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 3));
  cache.store(space, test_prompt(2, 1));  // younger than the prefix
  Result<WriteLease> lease = cache.reserve(space, test_prompt(1, 6), 3);
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lease->size(), 1U);
  EXPECT_TRUE(lease->commit());
  EXPECT_EQ(cache.hit(space, test_prompt(1, 6)), 4U);
  const Result<WriteLease> full = cache.reserve(space, test_prompt(1, 6), 4);
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, Code::kNoSpace);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 6)), 4U);
}

TEST(CacheIndex, TheRanksOfAPromptLargerThanThePoolKeepTheSamePrefix) {
  TestCache cache(8);
  const KeySpace space = test_space();
  const auto ranks = test_ranks(2);
  const auto prompt = test_prompt(1, 8);
  EXPECT_EQ(cache.store(space, prompt, ranks[0]), 8U);
  EXPECT_EQ(cache.store(space, prompt, ranks[1]), 4U)
      << "the other rank's tail makes room, not its head";
  EXPECT_EQ(cache.hit(space, prompt, ranks), 4U);
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(cache.store(space, prompt, ranks[0]), 0U);
    EXPECT_EQ(cache.store(space, prompt, ranks[1]), 0U);
    EXPECT_EQ(cache.hit(space, prompt, ranks), 4U);
  }
}

TEST(CacheIndex, TailsGoBeforeHeadsAcrossTheStoresOfAGrowingPrompt) {
  TestCache cache(8);
  const KeySpace space = test_space();
  for (std::uint32_t chunks = 1; chunks <= 8; ++chunks) {
    cache.store(space, test_prompt(1, chunks));
  }
  for (std::size_t left = 7; left > 0; --left) {
    EXPECT_EQ(cache->evict_down_to(left * kTestAlign, 100), 1U);
    EXPECT_EQ(cache.hit(space, test_prompt(1, 8)), left);
  }
}

TEST(CacheIndex, TailsGoBeforeHeadsWhenOnlyTheHeadIsUsedAgain) {
  TestCache cache(8);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 4));
  cache.store(space, test_prompt(2, 4));
  EXPECT_EQ(cache.hit(space, test_prompt(1, 2)), 2U);
  cache->evict_down_to(6 * kTestAlign, 100);
  EXPECT_EQ(cache.hit(space, test_prompt(2, 4)), 4U) << "the unused tail of the first went first";
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4)), 2U);
}

TEST(CacheIndex, ReadingTheTailIsAUseOfTheWholePrompt) {
  TestCache cache(6);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 4));
  cache.store(space, test_prompt(2, 2));
  { const Result<ReadLease> tail = cache->acquire(space, {test_prompt(1, 4), 3, kOnlyRank}); }
  cache->evict_down_to(4 * kTestAlign, 100);
  EXPECT_EQ(cache.hit(space, test_prompt(2, 2)), 0U);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4)), 4U);
}

// A chunk counts only if every rank has it, so the ranks of one prompt must lose the same chunks.
TEST(CacheIndex, ALookupsRanksLoseTheirTailsTogether) {
  TestCache cache(8);
  const KeySpace space = test_space();
  const auto ranks = test_ranks(2);
  cache.store(space, test_prompt(1, 4), ranks[0]);
  cache.store(space, test_prompt(1, 4), ranks[1]);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4), ranks), 4U);
  cache->evict_down_to(4 * kTestAlign, 100);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4), ranks), 2U);
}

TEST(CacheIndex, ATouchMakesTheRanksLoseTheirTailsTogether) {
  TestCache cache(8);
  const KeySpace space = test_space();
  const auto ranks = test_ranks(2);
  cache.store(space, test_prompt(1, 4), ranks[0]);
  cache.store(space, test_prompt(1, 4), ranks[1]);
  cache->touch(needed({space}), test_prompt(1, 4), ranks);
  cache->evict_down_to(4 * kTestAlign, 100);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4), ranks), 2U);
}

TEST(CacheIndex, ALookupsLayoutsLoseTheirTailsTogether) {
  TestCache cache(8);
  const std::vector<KeySpace> both = {test_space(), other_layout(test_space())};
  const auto rank = test_ranks(1);
  for (const bool by_lookup : {true, false}) {
    cache.store(both[0], test_prompt(1, 4));
    cache.store(both[1], test_prompt(1, 4));
    if (by_lookup) {
      EXPECT_EQ(cache->acquire_prefix(needed(both), test_prompt(1, 4), rank).chunks, 4U);
    } else {
      cache->touch(needed(both), test_prompt(1, 4), rank);
    }
    cache->evict_down_to(4 * kTestAlign, 100);
    EXPECT_EQ(cache->acquire_prefix(needed(both), test_prompt(1, 4), rank).chunks, 2U)
        << "by lookup: " << by_lookup;
    cache->clear();
  }
}

TEST(CacheIndex, ATouchIsAUse) {
  TestCache cache(4);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 2));
  cache.store(space, test_prompt(2, 2));
  cache->touch(needed({space}), test_prompt(1, 2), test_ranks(1));
  cache->evict_down_to(2 * kTestAlign, 100);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 2)), 2U);
  EXPECT_EQ(cache.hit(space, test_prompt(2, 2)), 0U);
}

TEST(CacheIndex, EvictsAheadNoMoreThanAskedFor) {
  TestCache cache(8);
  const KeySpace space = test_space();
  cache.store(space, test_prompt(1, 8));
  EXPECT_EQ(cache->evict_down_to(8 * kTestAlign, 100), 0U);
  EXPECT_EQ(cache->evict_down_to(8 * kTestAlign - 1, 100), 1U);
  EXPECT_EQ(cache->evict_down_to(0, 3), 3U) << "in slices";
  EXPECT_EQ(cache.used_objects(), 4U);
}

TEST(CacheIndex, WithoutEvictionAFullPoolStaysFull) {
  TestCache cache(4, "noop");
  const KeySpace space = test_space();
  EXPECT_EQ(cache.store(space, test_prompt(1, 6)), 4U);
  const Result<WriteLease> refused = cache.reserve(space, test_prompt(2, 1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(cache->evict_down_to(0, 100), 0U);
  EXPECT_EQ(cache.hit(space, test_prompt(1, 4)), 4U);
  cache->clear();
  EXPECT_EQ(cache.used_objects(), 0U);
}

TEST(CacheIndex, CountsWrittenAndEvictedChunksBySalt) {
  TestCache cache(4);
  cache.store(test_space("model", ""), test_prompt(1, 3));
  cache.store(test_space("model", "alice"), test_prompt(1, 2));
  const std::string page = cache.metrics().page();
  EXPECT_NE(page.find("lmcache_mp_l1_write_chunks_total 3.0\n"), std::string::npos) << page;
  EXPECT_NE(page.find("lmcache_mp_l1_write_chunks_total{cache_salt=\"alice\"} 2.0\n"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("lmcache_mp_l1_evicted_chunks_total 1.0\n"), std::string::npos) << page;
}

// Bytes of a chunk follow from its name, so that every reader can tell whether they are right.
std::uint64_t pattern_of(std::uint32_t prompt, std::size_t chunk, std::uint32_t kv_rank) {
  return std::uint64_t{prompt} << 40 | std::uint64_t{chunk} << 32 | kv_rank;
}

class Customer {
 public:
  Customer(TestCache& cache, std::uint64_t seed) : cache_(cache), random_(seed) {}

  void visit(int times) {
    for (int i = 0; i < times; ++i) {
      const auto prompt = static_cast<std::uint32_t>(random_() % 12);
      const auto chunks = static_cast<std::uint32_t>(1 + random_() % 8);
      switch (random_() % 16) {
        case 0:
          cache_->evict_down_to(cache_.pool().usage().capacity_bytes / 2, 4);
          break;
        case 1:
          if (random_() % 64 == 0) {
            cache_->clear();
          }
          break;
        case 2:
          cache_->touch(needed({space_}), test_prompt(prompt, chunks), ranks_);
          break;
        case 3:
        case 4:
        case 5:
        case 6:
          retrieve(prompt, chunks);
          break;
        case 7:
        case 8:
        case 9:
          look_up(prompt, chunks);
          break;
        default:
          store(prompt, chunks);
      }
    }
  }

  int wrong() const { return wrong_; }

  int read() const { return read_; }

 private:
  void verify(const ReadLease& lease, std::size_t position, std::uint64_t pattern) {
    wrong_ += has_pattern(lease.bytes(position), pattern) ? 0 : 1;
    ++read_;
  }

  void store(std::uint32_t prompt, std::uint32_t chunks) {
    const std::uint32_t rank = ranks_[random_() % ranks_.size()];
    Result<WriteLease> lease = cache_.reserve(space_, test_prompt(prompt, chunks), 0, rank);
    if (!lease) {
      return;
    }
    for (std::size_t i = 0; i < lease->size(); ++i) {
      write_pattern(lease->slot(i).bytes(), pattern_of(prompt, lease->chunk(i), rank));
    }
    if (random_() % 8 == 0) {
      const std::vector<pool::Slot> slots = lease->abandon();
      return;
    }
    static_cast<void>(lease->commit());
  }

  void look_up(std::uint32_t prompt, std::uint32_t chunks) {
    const PrefixLookup found =
        cache_->acquire_prefix(needed({space_}), test_prompt(prompt, chunks), ranks_);
    for (std::size_t i = 0; i < found.lease.size(); ++i) {
      verify(found.lease, i, pattern_of(prompt, i / ranks_.size(), ranks_[i % ranks_.size()]));
    }
    if (!found.lease.empty()) {
      const std::vector<std::size_t> positions = {found.lease.size() - 1};
      const ReadLease shared = cache_->share(found.lease, positions);
      verify(shared, 0, pattern_of(prompt, found.chunks - 1, ranks_.back()));
    }
  }

  void retrieve(std::uint32_t prompt, std::uint32_t chunks) {
    const std::uint32_t rank = ranks_[random_() % ranks_.size()];
    const Result<ReadLease> lease =
        cache_->acquire(space_, {test_prompt(prompt, chunks), chunks - 1, rank});
    if (lease) {
      verify(*lease, 0, pattern_of(prompt, chunks - 1, rank));
    }
  }

  TestCache& cache_;
  std::mt19937_64 random_;
  const KeySpace space_ = test_space();
  const std::vector<std::uint32_t> ranks_ = test_ranks(2);
  int wrong_ = 0;
  int read_ = 0;
};

TEST(CacheIndex, ManyThreadsNeverReadAWrongByte) {
  TestCache cache(100);  // twelve prompts of eight chunks and two ranks want 192
  const std::uint64_t seed = test_seed();
  std::vector<Customer> customers;
  for (std::uint64_t i = 0; i < 4; ++i) {
    customers.emplace_back(cache, seed + i);
  }
  std::vector<std::thread> threads;
  for (Customer& customer : customers) {
    threads.emplace_back([&customer] { customer.visit(3000); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  int read = 0;
  for (const Customer& customer : customers) {
    EXPECT_EQ(customer.wrong(), 0);
    read += customer.read();
  }
  EXPECT_GT(read, 100) << "too little was read for the run to mean anything";
  cache.expect_at_rest();
  cache->clear();
  EXPECT_EQ(cache.used_objects(), 0U);
}

}  // namespace
}  // namespace larder::cache
