// Goal: ranges never overlap, are aligned, and free space is never lost. Method: random operations
// against a naive model that scans a list of taken ranges; the counters and every answer must
// agree. Seeded by LARDER_TEST_SEED.
#include "pool/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/test_random.h"

namespace larder::pool {
namespace {

// Taken ranges only; free space is what lies between them.
class NaiveSpace {
 public:
  std::size_t capacity = 0;
  std::map<std::size_t, std::size_t> taken;

  // (length, offset) of every gap, in address order.
  std::vector<std::pair<std::size_t, std::size_t>> gaps() const {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    std::size_t at = 0;
    for (const auto& [offset, bytes] : taken) {
      if (offset > at) {
        found.emplace_back(offset - at, at);
      }
      at = offset + bytes;
    }
    if (capacity > at) {
      found.emplace_back(capacity - at, at);
    }
    return found;
  }

  std::size_t used() const {
    std::size_t sum = 0;
    for (const auto& [offset, bytes] : taken) {
      sum += bytes;
    }
    return sum;
  }

  std::optional<std::size_t> best_fit(std::size_t bytes) const {
    std::optional<std::pair<std::size_t, std::size_t>> best;
    for (const auto& gap : gaps()) {
      if (gap.first >= bytes && (!best || gap < *best)) {
        best = gap;
      }
    }
    return best ? std::optional(best->second) : std::nullopt;
  }
};

void expect_agreement(const ExtentAllocator& allocator, const NaiveSpace& naive) {
  const auto gaps = naive.gaps();
  ASSERT_EQ(allocator.capacity_bytes(), naive.capacity);
  ASSERT_EQ(allocator.used_bytes(), naive.used());
  ASSERT_EQ(allocator.free_bytes(), naive.capacity - naive.used());
  ASSERT_EQ(allocator.free_extents(), gaps.size());
  ASSERT_EQ(allocator.largest_free_bytes(), gaps.empty() ? 0 : std::ranges::max(gaps).first);
  const bool tail = !gaps.empty() && gaps.back().first + gaps.back().second == naive.capacity;
  ASSERT_EQ(allocator.tail_free_bytes(), tail ? gaps.back().first : 0);
}

class RandomOperations : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomOperations, AgreeWithANaiveSetOfRanges) {
  const std::uint64_t seed = test_seed() + GetParam();
  std::mt19937_64 random(seed);
  const std::size_t align = std::size_t{1} << (random() % 14);
  ExtentAllocator allocator(align);
  NaiveSpace naive;
  for (int step = 0; step < 3000; ++step) {
    const auto choice = random() % 100;
    if (choice < 4 && naive.capacity < 600 * align) {
      naive.capacity += (random() % 60) * align;
      allocator.extend(naive.capacity);
    } else if (choice < 55) {
      const std::size_t bytes = (1 + random() % (random() % 4 == 0 ? 50 : 5)) * align;
      ASSERT_EQ(allocator.fits(bytes), naive.best_fit(bytes).has_value());
      const auto offset = allocator.take(bytes);
      ASSERT_EQ(offset, naive.best_fit(bytes));
      if (offset) {
        ASSERT_EQ(*offset % align, 0U);
        naive.taken.emplace(*offset, bytes);
      }
    } else if (!naive.taken.empty()) {
      const auto which = static_cast<std::ptrdiff_t>(random() % naive.taken.size());
      const auto range = std::next(naive.taken.begin(), which);
      allocator.give_back(range->first, range->second);
      naive.taken.erase(range);
    }
    ASSERT_NO_FATAL_FAILURE(expect_agreement(allocator, naive));
  }
  while (!naive.taken.empty()) {
    const auto which = static_cast<std::ptrdiff_t>(random() % naive.taken.size());
    const auto range = std::next(naive.taken.begin(), which);
    allocator.give_back(range->first, range->second);
    naive.taken.erase(range);
  }
  EXPECT_EQ(allocator.free_extents(), naive.capacity > 0 ? 1U : 0U);
  EXPECT_EQ(allocator.largest_free_bytes(), naive.capacity);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOperations, testing::Range<std::uint64_t>(0, 12));

TEST(ExtentAllocator, TakesTheSmallestExtentThatIsLargeEnough) {
  ExtentAllocator allocator(1);
  allocator.extend(100);
  EXPECT_EQ(allocator.take(30), 0U);
  EXPECT_EQ(allocator.take(10), 30U);
  EXPECT_EQ(allocator.take(20), 40U);
  EXPECT_EQ(allocator.take(10), 60U);
  allocator.give_back(0, 30);
  allocator.give_back(40, 20);  // free now: 30 at 0, 20 at 40, 30 at 70
  EXPECT_EQ(allocator.take(18), 40U);
  EXPECT_EQ(allocator.take(25), 0U);  // of two equals the lower one
}

TEST(ExtentAllocator, MergesWithTheNeighboursOnBothSides) {
  ExtentAllocator allocator(4096);
  allocator.extend(3 * 4096);
  ASSERT_EQ(allocator.take(4096), 0U);
  ASSERT_EQ(allocator.take(4096), 4096U);
  ASSERT_EQ(allocator.take(4096), 8192U);
  allocator.give_back(0, 4096);
  allocator.give_back(8192, 4096);
  EXPECT_EQ(allocator.free_extents(), 2U);
  EXPECT_FALSE(allocator.fits(8192));
  allocator.give_back(4096, 4096);
  EXPECT_EQ(allocator.free_extents(), 1U);
  EXPECT_TRUE(allocator.fits(3 * 4096));
}

TEST(ExtentAllocator, GrowsTheLastFreeExtentWhenTheSpaceGrows) {
  ExtentAllocator allocator(1);
  allocator.extend(10);
  ASSERT_EQ(allocator.take(6), 0U);
  EXPECT_FALSE(allocator.fits(8));
  allocator.extend(14);
  EXPECT_EQ(allocator.free_extents(), 1U);
  EXPECT_EQ(allocator.take(8), 6U);
  allocator.extend(20);
  EXPECT_EQ(allocator.take(6), 14U);
}

TEST(ExtentAllocator, SaysWhatIsFreeBesideARange) {
  ExtentAllocator allocator(1);
  allocator.extend(100);
  ASSERT_EQ(allocator.take(10), 0U);
  ASSERT_EQ(allocator.take(20), 10U);
  ASSERT_EQ(allocator.take(30), 30U);
  EXPECT_EQ(allocator.free_before(0), 0U);
  EXPECT_EQ(allocator.free_before(10), 0U);
  EXPECT_EQ(allocator.free_behind(30), 0U);
  EXPECT_EQ(allocator.free_behind(60), 40U);
  allocator.give_back(10, 20);
  EXPECT_EQ(allocator.free_before(30), 20U);
  EXPECT_EQ(allocator.free_behind(10), 20U);
  EXPECT_EQ(allocator.free_behind(100), 0U);
}

TEST(ExtentAllocator, HasNoRoomBeforeTheSpaceExists) {
  ExtentAllocator allocator(4096);
  EXPECT_FALSE(allocator.fits(4096));
  EXPECT_EQ(allocator.take(4096), std::nullopt);
  EXPECT_EQ(allocator.tail_free_bytes(), 0U);
}

TEST(ExtentAllocatorDeathTest, AbortsWhenARangeIsGivenBackTwice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ExtentAllocator allocator(1);
  allocator.extend(100);
  ASSERT_EQ(allocator.take(10), 0U);
  ASSERT_EQ(allocator.take(10), 10U);
  allocator.give_back(0, 10);
  EXPECT_DEATH(allocator.give_back(0, 10), "extent_allocator");
  EXPECT_DEATH(allocator.give_back(5, 10), "extent_allocator");
  EXPECT_DEATH(allocator.give_back(90, 20), "extent_allocator");
}

// What fragmentation costs: the pool is kept full, as a cache keeps it, by dropping the oldest
// ranges whenever a new one has no room. Sizes as of several models with different layouts at once.
TEST(ExtentAllocator, StaysUsableThroughManyCyclesOfMixedSizes) {
  constexpr std::size_t kCapacity = std::size_t{4} << 30;
  constexpr int kCycles = 100000;
  constexpr std::size_t kKibibyte = 1024;
  const std::vector<std::size_t> sizes = {
      36 * kKibibyte, 512 * kKibibyte, 1152 * kKibibyte, 2048 * kKibibyte, 5120 * kKibibyte};
  std::mt19937_64 random(test_seed());
  ExtentAllocator allocator(4096);
  allocator.extend(kCapacity);
  std::deque<std::pair<std::size_t, std::size_t>> taken;
  double least_full = 1;
  double sum_full = 0;
  int times_full = 0;
  for (int cycle = 0; cycle < kCycles; ++cycle) {
    const std::size_t bytes = sizes[random() % sizes.size()];
    auto offset = allocator.take(bytes);
    if (!offset && cycle > kCycles / 4) {
      const double full = static_cast<double>(allocator.used_bytes()) / kCapacity;
      least_full = std::min(least_full, full);
      sum_full += full;
      ++times_full;
    }
    while (!offset) {
      // Mostly the oldest; now and then another, as a lease keeps some from going in order.
      const std::size_t window = std::min<std::size_t>(taken.size(), 64);
      const std::size_t which = random() % 4 == 0 ? random() % window : 0;
      allocator.give_back(taken[which].first, taken[which].second);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
      offset = allocator.take(bytes);
    }
    taken.emplace_back(*offset, bytes);
  }
  ASSERT_GT(times_full, 0);
  const double mean_full = sum_full / times_full;
  RecordProperty("mean_full_per_mille", static_cast<int>(1000 * mean_full));
  RecordProperty("least_full_per_mille", static_cast<int>(1000 * least_full));
  EXPECT_GT(mean_full, 0.95);
  EXPECT_GT(least_full, 0.90);
  for (const auto& [offset, bytes] : taken) {
    allocator.give_back(offset, bytes);
  }
  EXPECT_EQ(allocator.free_extents(), 1U);
}

}  // namespace
}  // namespace larder::pool
