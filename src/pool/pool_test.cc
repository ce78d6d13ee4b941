// Goal: the contract of pool.h. Method: real pools of a few MiB in a directory on tmpfs; growth is
// awaited with a deadline.
#include "pool/pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "pool/test_support.h"

namespace larder::pool {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

PoolConfig config_in(const TestDirectory& directory, std::size_t bytes) {
  PoolConfig config;
  config.bytes = bytes;
  config.initial_bytes = kMebibyte;
  config.step_bytes = kMebibyte;
  config.directory = directory.path();
  return config;
}

std::unique_ptr<Pool> make_pool(const PoolConfig& config) {
  auto pool = Pool::create(config);
  EXPECT_TRUE(pool.has_value()) << pool.error().detail;
  return std::move(*pool);
}

bool grown_in_time(const Pool& pool) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + std::chrono::seconds(20);
  while (pool.usage().capacity_bytes < pool.usage().configured_bytes) {
    if (clock.now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

TEST(Pool, GrowsInTheBackgroundToItsConfiguredSize) {
  const TestDirectory directory;
  const auto pool = make_pool(config_in(directory, 16 * kMebibyte));
  EXPECT_GE(pool->usage().capacity_bytes, kMebibyte);
  EXPECT_TRUE(grown_in_time(*pool));
  EXPECT_FALSE(pool->growth_failed());
  EXPECT_EQ(pool->usage().used_bytes, 0U);
  EXPECT_TRUE(pool->take(16 * kMebibyte).has_value());
}

TEST(Pool, HandsOutAlignedSlotsInsideTheSegment) {
  const TestDirectory directory;
  PoolConfig config = config_in(directory, 8 * kMebibyte);
  config.align_bytes = 65536;
  const auto pool = make_pool(config);
  auto first = pool->take(70000);
  const auto second = pool->take(1);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(first->size(), 70000U);
  EXPECT_EQ(first->bytes().size(), 70000U);
  EXPECT_EQ(first->bytes().data(), pool->base() + first->offset());
  EXPECT_EQ(first->offset() % 65536, 0U);
  EXPECT_EQ(second->offset() % 65536, 0U);
  EXPECT_EQ(pool->usage().used_bytes, 3U * 65536);
  EXPECT_EQ(pool->rounded(70000), 2U * 65536);
  { const Slot dropped = std::move(*first); }
  EXPECT_EQ(pool->usage().used_bytes, 65536U);
}

TEST(Pool, TakesBackEachSlotExactlyOnce) {
  const TestDirectory directory;
  const auto pool = make_pool(config_in(directory, 4 * kMebibyte));
  Slot kept;
  EXPECT_FALSE(kept.valid());
  {
    auto first = pool->take(4096);
    auto second = pool->take(8192);
    ASSERT_TRUE(first.has_value() && second.has_value());
    kept = std::move(*first);
    EXPECT_EQ(pool->usage().used_bytes, 12288U);
    kept = std::move(*second);  // the first goes back here
    EXPECT_EQ(pool->usage().used_bytes, 8192U);
  }
  EXPECT_EQ(pool->usage().used_bytes, 8192U);
  Slot& same = kept;
  kept = std::move(same);
  EXPECT_TRUE(kept.valid());
  EXPECT_EQ(kept.size(), 8192U);
  kept = Slot();
  EXPECT_EQ(pool->usage().used_bytes, 0U);
}

TEST(Pool, SaysNoSpaceWhenFullAndTooLargeWhenHopeless) {
  const TestDirectory directory;
  const auto pool = make_pool(config_in(directory, 4 * kMebibyte));
  std::vector<Slot> slots;
  while (true) {
    auto slot = pool->take(kMebibyte);
    if (!slot) {
      EXPECT_EQ(slot.error().code, Code::kNoSpace);
      break;
    }
    slots.push_back(std::move(*slot));
  }
  EXPECT_EQ(slots.size(), 4U);  // whether the background was there first or not
  EXPECT_EQ(pool->take(4 * kMebibyte + 1).error().code, Code::kTooLarge);
  slots.pop_back();
  EXPECT_TRUE(pool->take(kMebibyte).has_value());
}

TEST(Pool, ReservedPagesCanBeTouchedByAnotherMapping) {
  const TestDirectory directory;
  const auto pool = make_pool(config_in(directory, 4 * kMebibyte));
  auto slot = pool->take(100000);
  ASSERT_TRUE(slot.has_value());
  std::ranges::fill(slot->bytes(), std::byte{9});
  std::ifstream file(directory.file(pool->shm_name()), std::ios::binary);
  file.seekg(static_cast<std::streamoff>(slot->offset()));
  std::string seen(slot->size(), '?');
  ASSERT_TRUE(file.read(seen.data(), static_cast<std::streamsize>(seen.size())).good());
  EXPECT_EQ(seen, std::string(slot->size(), '\x09'));
}

TEST(Pool, NamesItsSegmentAsClientsExpect) {
  const TestDirectory directory;
  PoolConfig config = config_in(directory, kMebibyte);
  EXPECT_TRUE(make_pool(config)->shm_name().starts_with("lmcache_l1_pool_larder_"));
  config.shm_name = "/kv";
  config.shm_name_given = true;
  const auto pool = make_pool(config);
  EXPECT_EQ(pool->shm_name(), "lmcache_l1_pool_kv");
  EXPECT_EQ(Pool::create(config).error().code, Code::kBusy);  // the first still lives
  EXPECT_TRUE(pool->name_intact());
  ASSERT_EQ(::unlink(directory.file("lmcache_l1_pool_kv").c_str()), 0);
  EXPECT_FALSE(pool->name_intact());
}

TEST(Pool, PrivateMemoryIsWholeAtOnceAndLeavesNoFile) {
  const TestDirectory directory;
  PoolConfig config = config_in(directory, 64 * kMebibyte);
  config.private_memory = true;
  const auto pool = make_pool(config);
  EXPECT_EQ(pool->shm_name(), "");
  EXPECT_TRUE(pool->name_intact());
  EXPECT_EQ(pool->usage().capacity_bytes, 64 * kMebibyte);
  auto slot = pool->take(1000);
  ASSERT_TRUE(slot.has_value());
  std::ranges::fill(slot->bytes(), std::byte{1});
  EXPECT_TRUE(directory.names().empty());
}

TEST(Pool, RefusesConfigurationsThatMakeNoSense) {
  const TestDirectory directory;
  const auto code_of = [](const PoolConfig& config) { return Pool::create(config).error().code; };
  EXPECT_EQ(code_of(config_in(directory, 0)), Code::kInvalid);
  EXPECT_EQ(code_of(config_in(directory, 4095)), Code::kInvalid);
  EXPECT_EQ(code_of(config_in(directory, ~std::size_t{0})), Code::kInvalid);
  PoolConfig config = config_in(directory, kMebibyte);
  config.align_bytes = 3000;
  EXPECT_EQ(code_of(config), Code::kInvalid);
  config = config_in(directory, kMebibyte);
  config.shm_name = "a/b";
  config.shm_name_given = true;
  EXPECT_EQ(code_of(config), Code::kInvalid);
  EXPECT_EQ(code_of(config_in(directory, std::size_t{1} << 50)), Code::kNoSpace);
  EXPECT_TRUE(directory.names().empty());
}

TEST(Pool, StopsWhileItIsGrowingAndLeavesNothing) {
  const TestDirectory directory;
  for (int round = 0; round < 20; ++round) {
    PoolConfig config = config_in(directory, 32 * kMebibyte);
    config.step_bytes = 65536;
    const auto pool = make_pool(config);
    EXPECT_TRUE(pool->take(2 * kMebibyte).has_value());
  }
  EXPECT_TRUE(directory.names().empty());
}

TEST(Pool, SeveralTakersDuringGrowthNeverShareAByte) {
  const TestDirectory directory;
  PoolConfig config = config_in(directory, 16 * kMebibyte);
  config.step_bytes = 256 * 1024;
  const auto pool = make_pool(config);
  std::vector<std::jthread> takers;
  for (unsigned char taker = 1; taker <= 4; ++taker) {
    takers.emplace_back([&pool, taker] {
      std::mt19937 random(taker);
      std::vector<Slot> slots;
      for (int round = 0; round < 200; ++round) {
        if (auto slot = pool->take(1 + random() % 200000)) {
          std::ranges::fill(slot->bytes(), std::byte{taker});
          slots.push_back(std::move(*slot));
        }
        if (slots.size() > 25) {
          const auto victim = slots.begin() + static_cast<std::ptrdiff_t>(random() % slots.size());
          const auto bytes = victim->bytes();
          EXPECT_EQ(std::ranges::count(bytes, std::byte{taker}), std::ssize(bytes));
          slots.erase(victim);
        }
        EXPECT_LE(pool->usage().used_bytes, 16 * kMebibyte);
      }
    });
  }
  takers.clear();
  EXPECT_TRUE(grown_in_time(*pool));
  EXPECT_EQ(pool->usage().used_bytes, 0U);
  EXPECT_TRUE(pool->take(16 * kMebibyte).has_value());
}

}  // namespace
}  // namespace larder::pool
