// Goal: a lease gives back exactly what it holds, once, however it is moved. Method: every way to
// move, split and join leases on a small index, watched through the index's counts.
#include "cache/leases.h"

#include <gtest/gtest.h>

#include <list>
#include <optional>

#include "cache/test_cache.h"

namespace larder::cache {
namespace {

using Positions = std::vector<std::size_t>;

class Leases : public testing::Test {
 protected:
  Leases() { cache_.store(space_, prompt_); }

  ~Leases() override { cache_.expect_at_rest(); }

  ReadLease read() {
    Result<ReadLease> lease = cache_->acquire(space_, {prompt_, 0, keys::pack_kv_rank(1, 0)});
    EXPECT_TRUE(lease.has_value());
    return std::move(*lease);
  }

  WriteLease write(std::uint32_t prompt, std::uint32_t chunks) {
    Result<WriteLease> lease = cache_.reserve(space_, test_prompt(prompt, chunks));
    EXPECT_TRUE(lease.has_value());
    return std::move(*lease);
  }

  std::uint64_t pinned() { return cache_->stats().pinned_objects; }

  std::uint64_t reserved() { return cache_->stats().reserved_objects; }

  TestCache cache_;
  const KeySpace space_ = test_space();
  const std::vector<keys::ChunkHash> prompt_ = test_prompt(1, 4);
};

TEST_F(Leases, AnEmptyReadLeaseHoldsNothing) {
  const ReadLease lease;
  EXPECT_TRUE(lease.empty());
  EXPECT_EQ(lease.size(), 0U);
}

TEST_F(Leases, TheDestructorGivesThePinsBack) {
  {
    const ReadLease lease = read();
    EXPECT_EQ(lease.size(), 4U);
    EXPECT_EQ(pinned(), 4U);
  }
  EXPECT_EQ(pinned(), 0U);
}

TEST_F(Leases, PinsThatAreReleasedLaterAreInNobodysWay) {
  for (int i = 0; i < 2; ++i) {
    std::list<ReadLease> node;
    node.push_back(read());
    EXPECT_EQ(cache_->evict_down_to(0, 100), 0U);
    cache_->release_later(std::move(node));
    if (i == 0) {
      EXPECT_EQ(pinned(), 0U);
    }
  }
  {
    // Needs the room of all four.
    const KeySpace large = {space_.model_name, "", {tensors::Dtype::kUint8, {64 * kTestAlign}}};
    const Result<WriteLease> lease = cache_.reserve(large, test_prompt(2, 1));
    EXPECT_TRUE(lease.has_value());
  }
  EXPECT_EQ(cache_->stats().resident_objects, 0U);
}

TEST_F(Leases, FilledSlotsBecomeTheObjectsOfTheirChunks) {
  const std::vector<keys::ChunkHash> prompt = test_prompt(2, 4);
  cache_.store(space_, std::span(prompt).first(1));
  std::vector<pool::Slot> filled(4);
  for (const std::size_t chunk : {0U, 1U, 3U}) {
    filled[chunk] = std::move(*cache_.pool().take(kTestObjectBytes));
    write_pattern(filled[chunk].bytes(), 10 + chunk);
  }
  const std::size_t second = filled[1].offset();
  const std::size_t fourth = filled[3].offset();
  {
    Result<WriteLease> lease =
        cache_->reserve(space_, {prompt, 0, keys::pack_kv_rank(1, 0)}, skip_none, filled);
    ASSERT_TRUE(lease.has_value());
    ASSERT_EQ(lease->size(), 3U);
    EXPECT_TRUE(filled[0].valid()) << "its chunk is stored";
    EXPECT_FALSE(filled[1].valid());
    EXPECT_EQ(lease->slot(0).offset(), second);
    EXPECT_NE(lease->slot(1).offset(), fourth) << "a slot of its own";
    EXPECT_EQ(lease->slot(2).offset(), fourth);
    EXPECT_TRUE(lease->commit());
  }
  filled.clear();
  const Result<ReadLease> stored = cache_->acquire(space_, {prompt, 0, keys::pack_kv_rank(1, 0)});
  ASSERT_TRUE(stored.has_value());
  EXPECT_TRUE(has_pattern(stored->bytes(1), 11));
  EXPECT_TRUE(has_pattern(stored->bytes(3), 13));
}

TEST_F(Leases, AMovedFromReadLeaseIsEmpty) {
  ReadLease first = read();
  const ReadLease second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(second.size(), 4U);
  EXPECT_EQ(pinned(), 4U);
}

TEST_F(Leases, AssignmentGivesBackWhatWasHeld) {
  ReadLease lease = read();
  lease = ReadLease();
  EXPECT_EQ(pinned(), 0U);
  lease = read();
  lease = read();
  EXPECT_EQ(pinned(), 4U);
}

TEST_F(Leases, TwoLeasesOfTheSameObjectsPinThemUntilBothAreGone) {
  std::optional<ReadLease> first = read();
  std::optional<ReadLease> second = read();
  EXPECT_EQ(pinned(), 4U) << "objects are counted, not pins";
  first.reset();
  EXPECT_EQ(pinned(), 4U);
  second.reset();
  EXPECT_EQ(pinned(), 0U);
}

TEST_F(Leases, OnePinMovesIntoAnotherLease) {
  ReadLease all = read();
  std::optional<ReadLease> some = ReadLease();
  all.move_to(2, *some);
  EXPECT_FALSE(all.holds(2));
  EXPECT_EQ(all.size(), 4U) << "positions stay";
  EXPECT_EQ(some->size(), 1U);
  EXPECT_EQ(pinned(), 4U);
  some.reset();
  EXPECT_EQ(pinned(), 3U);
}

TEST_F(Leases, AbsorbingTakesThePinsOver) {
  ReadLease first = read();
  ReadLease second = read();
  first.absorb(std::move(second));
  EXPECT_EQ(first.size(), 8U);
  EXPECT_TRUE(second.empty());  // NOLINT(bugprone-use-after-move): what is tested
  ReadLease third;
  third.absorb(std::move(first));
  EXPECT_EQ(pinned(), 4U);
  third = ReadLease();
  EXPECT_EQ(pinned(), 0U);
}

TEST_F(Leases, ASharedPinOutlivesTheLeaseItCameFrom) {
  std::optional<ReadLease> all = read();
  const ReadLease shared = cache_->share(*all, Positions{1, 3});
  const std::size_t offset = all->offset(3);
  all.reset();
  EXPECT_EQ(pinned(), 2U);
  EXPECT_EQ(shared.offset(1), offset);
}

TEST_F(Leases, ASharedPinKeepsAClearedObjectAlive) {
  std::optional<ReadLease> all = read();
  cache_->clear();
  const ReadLease shared = cache_->share(*all, Positions{0});
  all.reset();
  EXPECT_EQ(cache_.used_objects(), 1U);
  EXPECT_TRUE(has_pattern(shared.bytes(0), 1));
}

TEST_F(Leases, AWriteLeaseNamesItsChunks) {
  const WriteLease lease = write(2, 3);
  ASSERT_EQ(lease.size(), 3U);
  EXPECT_EQ(lease.missing(), 3U);
  EXPECT_EQ(lease.chunk(1), 1U);
  EXPECT_EQ(lease.id(1), (keys::ObjectId{test_hash(2, 1), keys::pack_kv_rank(1, 0)}));
  EXPECT_EQ(lease.slot(1).size(), kTestObjectBytes);
  EXPECT_EQ(reserved(), 3U);
}

TEST_F(Leases, ADroppedWriteLeaseGivesItsMemoryBackUnpublished) {
  const std::size_t used = cache_.used_objects();
  { const WriteLease lease = write(2, 3); }
  EXPECT_EQ(cache_.used_objects(), used);
  EXPECT_EQ(reserved(), 0U);
  EXPECT_EQ(cache_.hit(space_, test_prompt(2, 3)), 0U);
}

TEST_F(Leases, AMovedWriteLeaseCommitsOnce) {
  WriteLease first = write(2, 3);
  WriteLease second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_TRUE(second.commit());
  EXPECT_EQ(reserved(), 0U);
  EXPECT_EQ(cache_.hit(space_, test_prompt(2, 3)), 3U);
}

TEST_F(Leases, AssignmentDiscardsTheWriteThatWasHeld) {
  WriteLease lease = write(2, 3);
  lease = write(3, 2);
  EXPECT_EQ(reserved(), 2U);
  EXPECT_TRUE(lease.commit());
  EXPECT_EQ(cache_.hit(space_, test_prompt(2, 3)), 0U);
  EXPECT_EQ(cache_.hit(space_, test_prompt(3, 2)), 2U);
}

TEST_F(Leases, AbandonedMemoryStaysTakenUntilItsSlotsGo) {
  const std::size_t used = cache_.used_objects();
  WriteLease lease = write(2, 3);
  std::vector<pool::Slot> slots = lease.abandon();
  EXPECT_EQ(slots.size(), 3U);
  EXPECT_TRUE(lease.empty());
  EXPECT_EQ(reserved(), 0U);
  EXPECT_EQ(cache_.used_objects(), used + 3);
  EXPECT_EQ(cache_.hit(space_, test_prompt(2, 3)), 0U);
  slots.clear();
  EXPECT_EQ(cache_.used_objects(), used);
}

TEST_F(Leases, AbandoningAnEmptyLeaseGivesNothing) {
  WriteLease never;
  EXPECT_TRUE(never.abandon().empty());
  WriteLease nothing_missing = write(1, 4);
  EXPECT_TRUE(nothing_missing.empty());
  EXPECT_TRUE(nothing_missing.abandon().empty());
}

TEST_F(Leases, CommittingTwiceIsABug) {
  WriteLease lease = write(2, 1);
  EXPECT_TRUE(lease.commit());
  EXPECT_DEATH(static_cast<void>(lease.commit()), "");
}

TEST_F(Leases, ReadingAPositionThatWasMovedOutIsABug) {
  ReadLease all = read();
  ReadLease some;
  all.move_to(0, some);
  EXPECT_DEATH(static_cast<void>(all.bytes(0)), "");
  EXPECT_DEATH(static_cast<void>(cache_->share(all, Positions{0})), "");
}

}  // namespace
}  // namespace larder::cache
