// Goal: only reserved ranges are handed out, takers get what can be had, and a reservation that
// fails ends the growth. Method: a reserve function of the test stands for the operating system and
// records, delays or refuses.
#include "pool/growing_space.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace larder::pool {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;
constexpr std::size_t kPage = 4096;

// Backs ranges until `limit_bytes`, and insists on adjoining ranges, one at a time.
class FakeSystem {
 public:
  explicit FakeSystem(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  Result<void> reserve(std::size_t offset, std::size_t bytes) {
    EXPECT_FALSE(busy_.exchange(true)) << "two reservations at once";
    EXPECT_EQ(offset, backed_.load());
    ++calls_;
    const bool backed = offset + bytes <= limit_bytes_;
    if (backed) {
      backed_ += bytes;
    }
    busy_ = false;
    return backed ? Result<void>() : Result<void>(Error{Code::kNoSpace, "the test has no more"});
  }

  GrowingSpace::Reserve function() {
    return [this](std::size_t offset, std::size_t bytes) { return reserve(offset, bytes); };
  }

  std::size_t backed() const { return backed_; }

  int calls() const { return calls_; }

 private:
  const std::size_t limit_bytes_;
  std::atomic<bool> busy_{false};
  std::atomic<std::size_t> backed_{0};
  std::atomic<int> calls_{0};
};

GrowthLimits limits(std::size_t total_bytes, std::size_t step_bytes) {
  return {total_bytes, kPage, step_bytes};
}

TEST(GrowingSpace, GrowsInStepsUntilTheEnd) {
  FakeSystem system(100 * kMebibyte);
  GrowingSpace space(limits(10 * kMebibyte + 100, 4 * kMebibyte), system.function());
  ASSERT_TRUE(space.reserve_first(kMebibyte).has_value());
  EXPECT_EQ(space.capacity_bytes(), kMebibyte);
  EXPECT_TRUE(space.grow());
  EXPECT_EQ(space.capacity_bytes(), 5 * kMebibyte);
  EXPECT_TRUE(space.grow());
  EXPECT_FALSE(space.grow());
  EXPECT_EQ(system.backed(), 10 * kMebibyte + 100);
  EXPECT_EQ(space.capacity_bytes(), 10 * kMebibyte);  // the odd end holds no slot
  EXPECT_FALSE(space.grow());
  EXPECT_EQ(system.calls(), 4);
  EXPECT_FALSE(space.growth_failed());
}

TEST(GrowingSpace, TakerThatRunsAheadReservesWhatItNeeds) {
  FakeSystem system(100 * kMebibyte);
  GrowingSpace space(limits(64 * kMebibyte, 8 * kMebibyte), system.function());
  ASSERT_TRUE(space.reserve_first(kMebibyte).has_value());
  const auto slot = space.take(20 * kMebibyte);
  ASSERT_TRUE(slot.has_value());
  EXPECT_EQ(*slot, 0U);
  EXPECT_GE(system.backed(), 20 * kMebibyte);
  EXPECT_LT(system.backed(), 32 * kMebibyte);  // not the whole space for one slot
  EXPECT_EQ(system.calls(), 4);                // in limited steps
}

TEST(GrowingSpace, TakerFailsAtOnceWhenGrowthCannotHelp) {
  FakeSystem system(100 * kMebibyte);
  GrowingSpace space(limits(8 * kMebibyte, 8 * kMebibyte), system.function());
  ASSERT_TRUE(space.reserve_first(4 * kMebibyte).has_value());
  ASSERT_TRUE(space.take(4 * kMebibyte).has_value());
  const auto refused = space.take(5 * kMebibyte);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(system.calls(), 1);
}

TEST(GrowingSpace, SaysTooLargeOnlyWhenAnEmptyPoolCouldNotHoldIt) {
  FakeSystem system(6 * kMebibyte);
  GrowingSpace space(limits(8 * kMebibyte, 2 * kMebibyte), system.function());
  EXPECT_EQ(space.take(8 * kMebibyte + 1).error().code, Code::kTooLarge);
  EXPECT_EQ(space.take(~std::size_t{0}).error().code, Code::kTooLarge);
  const auto first = space.take(kMebibyte);
  ASSERT_TRUE(first.has_value());
  while (space.grow()) {
  }
  EXPECT_TRUE(space.growth_failed());
  EXPECT_EQ(space.take(6 * kMebibyte).error().code, Code::kNoSpace);
  EXPECT_EQ(space.take(7 * kMebibyte).error().code, Code::kTooLarge);  // the pool stayed smaller
  space.give_back(*first, kMebibyte);
  EXPECT_TRUE(space.take(6 * kMebibyte).has_value());
}

TEST(GrowingSpace, KeepsItsCapacityWhenTheSystemRunsOut) {
  FakeSystem system(5 * kMebibyte);
  GrowingSpace space(limits(64 * kMebibyte, 2 * kMebibyte), system.function());
  ASSERT_TRUE(space.reserve_first(kMebibyte).has_value());
  while (space.grow()) {
  }
  EXPECT_TRUE(space.growth_failed());
  EXPECT_EQ(space.capacity_bytes(), 5 * kMebibyte);
  const int calls = system.calls();
  EXPECT_TRUE(space.take(5 * kMebibyte).has_value());
  EXPECT_EQ(space.take(kPage).error().code, Code::kNoSpace);
  EXPECT_FALSE(space.grow());
  EXPECT_EQ(system.calls(), calls);  // the system is not asked again
}

TEST(GrowingSpace, FailedFirstReservationIsForTheCallerToReport) {
  FakeSystem system(kMebibyte);
  GrowingSpace space(limits(8 * kMebibyte, kMebibyte), system.function());
  const auto reserved = space.reserve_first(2 * kMebibyte);
  ASSERT_FALSE(reserved.has_value());
  EXPECT_EQ(reserved.error().code, Code::kNoSpace);
  EXPECT_FALSE(space.growth_failed());
}

TEST(GrowingSpace, RoundsToTheAlignmentWithoutOverflow) {
  FakeSystem system(kMebibyte);
  const GrowingSpace space(limits(kMebibyte, kMebibyte), system.function());
  EXPECT_EQ(space.rounded(1), kPage);
  EXPECT_EQ(space.rounded(kPage), kPage);
  EXPECT_EQ(space.rounded(kPage + 1), 2 * kPage);
  EXPECT_EQ(space.rounded(~std::size_t{0}), ~std::size_t{0} - kPage + 1);
}

TEST(GrowingSpace, AlignmentBeyondTheStepStillGrows) {
  FakeSystem system(100 * kMebibyte);
  GrowingSpace space({32 * kMebibyte, 8 * kMebibyte, kMebibyte}, system.function());
  ASSERT_TRUE(space.reserve_first(kMebibyte).has_value());
  EXPECT_EQ(space.capacity_bytes(), 8 * kMebibyte);
  ASSERT_TRUE(space.take(1).has_value());
  ASSERT_TRUE(space.take(1).has_value());
  EXPECT_EQ(space.used_bytes(), 16 * kMebibyte);
}

// A taker that needs more than is reserved waits for the reservation that runs, and one that fits
// does not.
TEST(GrowingSpace, OthersTakeWhileAReservationRuns) {
  Mutex mutex;
  ConditionVariable changed;
  bool entered = false;
  bool released = false;
  std::atomic<int> calls{0};
  GrowingSpace space(limits(16 * kMebibyte, 8 * kMebibyte), [&](std::size_t offset, std::size_t) {
    ++calls;
    const MutexLock lock(mutex);
    entered = offset > 0;
    changed.notify_all();
    while (entered && !released) {
      changed.wait(mutex);
    }
    return Result<void>();
  });
  ASSERT_TRUE(space.reserve_first(8 * kMebibyte).has_value());
  ASSERT_TRUE(space.take(7 * kMebibyte).has_value());
  std::vector<std::jthread> takers;
  for (int i = 0; i < 4; ++i) {
    takers.emplace_back([&space] { EXPECT_TRUE(space.take(2 * kMebibyte).has_value()); });
  }
  {
    const MutexLock lock(mutex);
    while (!entered) {
      changed.wait(mutex);
    }
  }
  EXPECT_TRUE(space.take(kMebibyte).has_value());  // fits in what is reserved already
  EXPECT_EQ(calls.load(), 2);                      // nobody else reserves meanwhile
  {
    const MutexLock lock(mutex);
    released = true;
    changed.notify_all();
  }
  takers.clear();
  EXPECT_EQ(space.used_bytes(), 16 * kMebibyte);
}

TEST(GrowingSpace, TakingNowNeitherReservesNorWaits) {
  Mutex gate;
  FakeSystem system(8 * kMebibyte);
  std::atomic<bool> is_reserving{false};
  GrowingSpace space(limits(8 * kMebibyte, 4 * kMebibyte),
                     [&](std::size_t offset, std::size_t bytes) {
                       is_reserving = true;
                       const MutexLock lock(gate);
                       return system.reserve(offset, bytes);
                     });
  EXPECT_FALSE(space.take_now(kPage).has_value()) << "nothing is reserved yet";
  EXPECT_EQ(system.calls(), 0);
  EXPECT_TRUE(space.grow());
  EXPECT_EQ(space.take_now(4 * kMebibyte - kPage), std::optional<std::size_t>(0));
  EXPECT_FALSE(space.take_now(2 * kPage).has_value());
  gate.lock();
  is_reserving = false;
  std::thread grower([&] { space.grow(); });
  while (!is_reserving) {
    std::this_thread::yield();
  }
  EXPECT_EQ(space.take_now(kPage), std::optional(4 * kMebibyte - kPage)) << "while another grows";
  EXPECT_FALSE(space.take_now(kPage).has_value());
  gate.unlock();
  grower.join();
  EXPECT_EQ(space.take_now(kPage), std::optional(4 * kMebibyte));
  space.give_back(4 * kMebibyte, kPage);
  EXPECT_EQ(space.used_bytes(), 4 * kMebibyte);
}

TEST(GrowingSpace, ExchangesNeighboursForOneLargerRange) {
  FakeSystem system(8 * kMebibyte);
  GrowingSpace space(limits(8 * kMebibyte, 8 * kMebibyte), system.function());
  std::vector<Range> taken;
  for (int i = 0; i < 8; ++i) {
    taken.push_back({*space.take(kMebibyte), kMebibyte});
  }
  const Range around = space.with_free_sides(taken[3]);
  EXPECT_EQ(around.offset, taken[3].offset);
  EXPECT_EQ(around.bytes, kMebibyte);
  const std::vector<Range> neighbours = {taken[4], taken[2], taken[3]};
  const auto larger = space.exchange(neighbours, 3 * kMebibyte - 1);
  ASSERT_TRUE(larger.has_value());
  EXPECT_EQ(*larger, taken[2].offset);
  EXPECT_EQ(space.used_bytes(), 8 * kMebibyte);
  const std::vector<Range> apart = {taken[0], taken[6]};
  const auto refused = space.exchange(apart, 2 * kMebibyte);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  EXPECT_EQ(space.used_bytes(), 6 * kMebibyte) << "what was given is given either way";
  EXPECT_EQ(space.with_free_sides(taken[1]).offset, taken[0].offset);
  EXPECT_EQ(space.with_free_sides(taken[5]).bytes, 2 * kMebibyte);
}

TEST(GrowingSpace, ManyTakersAndAGrowerShareTheSpaceWithoutOverlap) {
  constexpr std::size_t kTotal = 64 * kMebibyte;
  FakeSystem system(kTotal);
  GrowingSpace space(limits(kTotal, 4 * kMebibyte), system.function());
  std::vector<std::atomic<std::uint8_t>> owners(kTotal / kPage);
  std::jthread grower([&space] {
    while (space.grow()) {
    }
  });
  std::vector<std::jthread> takers;
  for (std::uint8_t taker = 1; taker <= 4; ++taker) {
    takers.emplace_back([&, taker] {
      std::mt19937 random(taker);
      std::vector<std::pair<std::size_t, std::size_t>> taken;
      for (int round = 0; round < 1500; ++round) {
        const std::size_t pages = 1 + random() % 200;
        if (const auto offset = space.take(pages * kPage)) {
          EXPECT_LE(*offset + pages * kPage, system.backed());
          for (std::size_t page = *offset / kPage; page < *offset / kPage + pages; ++page) {
            EXPECT_EQ(owners[page].exchange(taker), 0);
          }
          taken.emplace_back(*offset, pages);
        } else {
          EXPECT_EQ(offset.error().code, Code::kNoSpace);
        }
        while (taken.size() > 30 + random() % 30) {
          const auto [offset, count] = taken.back();
          taken.pop_back();
          for (std::size_t page = offset / kPage; page < offset / kPage + count; ++page) {
            EXPECT_EQ(owners[page].exchange(0), taker);
          }
          space.give_back(offset, count * kPage);
        }
      }
      for (const auto& [offset, count] : taken) {
        for (std::size_t page = offset / kPage; page < offset / kPage + count; ++page) {
          owners[page] = 0;
        }
        space.give_back(offset, count * kPage);
      }
    });
  }
  takers.clear();
  grower.join();
  EXPECT_EQ(space.used_bytes(), 0U);
  EXPECT_EQ(space.capacity_bytes(), kTotal);
  EXPECT_TRUE(space.take(kTotal).has_value());
}

}  // namespace
}  // namespace larder::pool
