// Goal: stored bytes that change are found before they are handed out, leave the index without
// disturbing anybody's account, and can be stored again. Method: bytes of a small pool are changed
// behind the index's back.
#include <gtest/gtest.h>

#include <thread>

#include "cache/test_cache.h"

namespace larder::cache {
namespace {

const std::uint32_t kRank = keys::pack_kv_rank(1, 0);

class CacheIntegrity : public testing::TestWithParam<const char*> {
 protected:
  Result<ReadLease> acquire(std::size_t chunks) {
    return cache_.index().acquire(space_, {std::span(prompt_).first(chunks), 0, kRank});
  }

  // In the memory of one stored chunk.
  void flip_a_bit(std::size_t chunk) {
    const Result<ReadLease> lease =
        cache_.index().acquire(space_, {std::span(prompt_).first(chunk + 1), chunk, kRank});
    ASSERT_TRUE(lease.has_value());
    cache_.pool().base()[lease->offset(0) + kTestObjectBytes / 2] ^= std::byte{1};
  }

  const KeySpace space_ = test_space();
  const std::vector<keys::ChunkHash> prompt_ = test_prompt(1, 5);
  TestCache cache_{16, GetParam(), Verification::kAlways};
};

INSTANTIATE_TEST_SUITE_P(Policies,
                         CacheIntegrity,
                         testing::Values("Learned", "LRU", "ARC", "IsolatedLRU", "noop"));

TEST_P(CacheIntegrity, UnchangedBytesPass) {
  ASSERT_EQ(cache_.store(space_, prompt_), 5U);
  const Result<ReadLease> lease = acquire(5);
  ASSERT_TRUE(lease.has_value());
  EXPECT_TRUE(cache_.index().find_corrupted(*lease).empty());
  EXPECT_EQ(cache_->stats().corrupted_objects, 0U);
}

TEST_P(CacheIntegrity, AChangedObjectIsMissedAndCanBeStoredAgain) {
  ASSERT_EQ(cache_.store(space_, prompt_), 5U);
  flip_a_bit(2);
  {
    const Result<ReadLease> lease = acquire(5);
    ASSERT_TRUE(lease.has_value());
    EXPECT_EQ(cache_.index().find_corrupted(*lease), std::vector<std::size_t>{2});
  }
  EXPECT_EQ(cache_->stats().corrupted_objects, 1U);
  EXPECT_EQ(cache_.hit(space_, prompt_), 2U);
  EXPECT_TRUE(cache_.has(space_, prompt_, 4)) << "what is behind it has not changed";
  cache_.expect_at_rest();
  EXPECT_EQ(cache_.store(space_, prompt_), 1U);
  const Result<ReadLease> again = acquire(5);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(cache_.index().find_corrupted(*again).empty());
  EXPECT_EQ(cache_->stats().corrupted_objects, 1U);
}

TEST_P(CacheIntegrity, WhoHeldItBeforeIsToldToo) {
  ASSERT_EQ(cache_.store(space_, prompt_), 5U);
  PrefixLookup promised = cache_.index().acquire_prefix(needed({space_}), prompt_, {&kRank, 1});
  ASSERT_EQ(promised.chunks, 5U);
  flip_a_bit(0);
  flip_a_bit(4);
  const std::vector<std::size_t> expected{0, 4};
  {
    const Result<ReadLease> lease = acquire(5);
    EXPECT_EQ(cache_.index().find_corrupted(*lease), expected);
  }
  // Even if its bytes were right again by now.
  cache_.pool().base()[promised.lease.offset(0) + kTestObjectBytes / 2] ^= std::byte{1};
  EXPECT_EQ(cache_.index().find_corrupted(promised.lease), expected);
  EXPECT_EQ(cache_->stats().corrupted_objects, 2U) << "each is counted once";
  promised.lease = ReadLease();
  cache_.expect_at_rest();
  EXPECT_EQ(cache_.used_objects(), 3U);
}

TEST_P(CacheIntegrity, AClearedObjectIsFoundByItsHolderAlone) {
  ASSERT_EQ(cache_.store(space_, prompt_), 5U);
  flip_a_bit(1);
  Result<ReadLease> held = acquire(5);
  cache_->clear();
  ASSERT_EQ(cache_.store(space_, prompt_), 5U);
  EXPECT_EQ(cache_.index().find_corrupted(*held), std::vector<std::size_t>{1});
  *held = ReadLease();
  EXPECT_EQ(cache_.hit(space_, prompt_), 5U);
  cache_.expect_at_rest();
}

TEST_P(CacheIntegrity, TheRestIsEvictedAsBefore) {
  ASSERT_EQ(cache_.store(space_, prompt_), 5U);
  flip_a_bit(2);
  {
    const Result<ReadLease> lease = acquire(5);
    EXPECT_EQ(cache_.index().find_corrupted(*lease).size(), 1U);
  }
  const std::size_t going = std::string_view(GetParam()) == "noop" ? 0 : 4;
  EXPECT_EQ(cache_->evict_down_to(0, 100), going);
  cache_.expect_at_rest();
  EXPECT_EQ(cache_.used_objects(), 4 - going);
}

TEST(CacheVerification, WithoutItNothingIsCompared) {
  TestCache cache(16, "LRU", Verification::kOff);
  const std::vector<keys::ChunkHash> prompt = test_prompt(1, 1);
  ASSERT_EQ(cache.store(test_space(), prompt), 1U);
  const Result<ReadLease> lease = cache.index().acquire(test_space(), {prompt, 0, kRank});
  cache.pool().base()[lease->offset(0)] ^= std::byte{1};
  EXPECT_TRUE(cache.index().find_corrupted(*lease).empty());
}

TEST(CacheVerification, ASampleReachesEveryPlaceOfARequest) {
  constexpr std::size_t kChunks = 16;
  constexpr std::uint32_t kRequests = 1000;
  std::vector<std::size_t> found(kChunks);
  TestCache cache(kChunks, "LRU", Verification::kSample);
  for (std::uint32_t request = 0; request < kRequests; ++request) {
    const std::vector<keys::ChunkHash> prompt = test_prompt(request, kChunks);
    ASSERT_EQ(cache.store(test_space(), prompt), kChunks);
    const Result<ReadLease> lease = cache.index().acquire(test_space(), {prompt, 0, kRank});
    ASSERT_TRUE(lease.has_value());
    for (std::size_t chunk = 0; chunk < kChunks; ++chunk) {
      cache.pool().base()[lease->offset(chunk)] ^= std::byte{1};
    }
    for (const std::size_t position : cache.index().find_corrupted(*lease)) {
      ++found[position];
    }
    cache->clear();
  }
  std::size_t all = 0;
  for (const std::size_t times : found) {
    EXPECT_GT(times, 0U);
    all += times;
  }
  EXPECT_GT(all, kRequests * kChunks / 32);
  EXPECT_LT(all, kRequests * kChunks / 8);
}

TEST(CacheVerification, ManyReadersOfAChangedObjectCountItOnce) {
  TestCache cache(16, "LRU", Verification::kAlways);
  const std::vector<keys::ChunkHash> prompt = test_prompt(1, 3);
  ASSERT_EQ(cache.store(test_space(), prompt), 3U);
  std::vector<ReadLease> leases;
  constexpr std::size_t kReaders = 4;
  for (std::size_t reader = 0; reader < kReaders; ++reader) {
    Result<ReadLease> lease = cache.index().acquire(test_space(), {prompt, 0, kRank});
    ASSERT_TRUE(lease.has_value());
    leases.push_back(std::move(*lease));
  }
  cache.pool().base()[leases.front().offset(1)] ^= std::byte{1};
  std::vector<std::thread> readers;
  readers.reserve(leases.size());
  for (ReadLease& lease : leases) {
    readers.emplace_back([&cache, &lease] {
      EXPECT_EQ(cache.index().find_corrupted(lease), std::vector<std::size_t>{1});
      lease = ReadLease();
    });
  }
  for (std::thread& reader : readers) {
    reader.join();
  }
  EXPECT_EQ(cache->stats().corrupted_objects, 1U);
  cache.expect_at_rest();
}

}  // namespace
}  // namespace larder::cache
