// Goal: the maintenance pass keeps a little room without wasting a small pool, obeys a watermark
// that was asked for, and does everything that is due. Method: the pass is called by hand over
// small real parts and a clock moved by hand; one test runs the thread itself.
#include "app/maintenance.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "cache/test_cache.h"
#include "sessions/test_sessions.h"

namespace larder::app {
namespace {

using cache::kTestAlign;
using std::chrono::milliseconds;
using std::chrono::seconds;

const std::uint32_t kRank = keys::pack_kv_rank(1, 0);

class MaintenanceTest : public testing::Test {
 protected:
  // All the parts that a pass looks after, with a pool of so many objects.
  struct Parts {
    explicit Parts(std::size_t objects, std::string_view policy = "LRU") : cache(objects, policy) {}

    cache::TestCache cache;
    ManualClock clock;
    devices::Devices devices{{.looks_for_cuda = false}, clock};
    sessions::Quarantine quarantine{clock};
    sessions::Instances instances{sessions::kTestInstanceLimits, quarantine, clock};
    sessions::Sessions sessions{cache.index(), {seconds(300), seconds(30), 100}, clock};
    sessions::PromptHashes prompts{sessions::kTestChunkTokens, 1000, clock};

    Maintained maintained() {
      return {cache.pool(), cache.index(), devices, quarantine, instances, sessions, prompts};
    }

    void fill() {
      const auto all = static_cast<std::uint32_t>(cache.pool().usage().capacity_bytes / kTestAlign);
      cache.store(cache::test_space(), cache::test_prompt(1, all));
    }

    std::uint64_t counted(const std::string& name) {
      return cache.metrics().counter(name, "").value();
    }
  };

  static MaintenancePlan plan(std::optional<double> watermark = std::nullopt, double ratio = 0.2) {
    return {milliseconds(1), watermark, ratio, seconds(600)};
  }

  static void pass(Parts& parts, const MaintenancePlan& plan) {
    Maintenance(plan, parts.maintained(), parts.clock, parts.cache.metrics()).pass();
  }

  static constexpr const char* kTriggered = "lmcache_mp_l1_eviction_loop_triggered_total";
  static constexpr const char* kTicks = "lmcache_mp_l1_eviction_loop_ticks_total";
};

// The reserve.

TEST(UsedBytesToKeep, IsAllWhenTheObjectSizeIsUnknown) {
  EXPECT_EQ(used_bytes_to_keep(1000, 0, 0), 1000U);
  EXPECT_EQ(used_bytes_to_keep(1000, 500, 0), 1000U);
  EXPECT_EQ(used_bytes_to_keep(1000, 0, 5), 1000U);
}

TEST(UsedBytesToKeep, IsAllOfAPoolOfFewObjects) {
  EXPECT_EQ(used_bytes_to_keep(127 * 100, 127 * 100, 127), 12700U);
}

TEST(UsedBytesToKeep, KeepsAReserveOfWholeObjects) {
  EXPECT_EQ(used_bytes_to_keep(128 * 100, 128 * 100, 128), 12700U);
  EXPECT_EQ(used_bytes_to_keep(1280 * 100, 640 * 100, 640), 127000U);
  const std::size_t gib = std::size_t{1} << 30;
  const std::size_t object = std::size_t{30} << 20;
  EXPECT_EQ(used_bytes_to_keep(16 * gib, 100 * object, 100), 16 * gib - 4 * object);
}

TEST_F(MaintenanceTest, ASmallPoolIsUsedToItsLastObject) {
  Parts parts(64);
  parts.fill();
  for (int i = 0; i < 3; ++i) {
    pass(parts, plan());
  }
  EXPECT_EQ(parts.cache.used_objects(), 64U);
  EXPECT_EQ(parts.counted(kTriggered), 0U);
  EXPECT_EQ(parts.counted(kTicks), 3U);
}

TEST_F(MaintenanceTest, ALargePoolKeepsAReserve) {
  Parts parts(1280);
  parts.fill();
  pass(parts, plan());
  EXPECT_EQ(parts.cache.used_objects(), 1270U);
  EXPECT_EQ(parts.counted(kTriggered), 1U);
  pass(parts, plan());
  EXPECT_EQ(parts.cache.used_objects(), 1270U);
  EXPECT_EQ(parts.counted(kTriggered), 1U);
}

TEST_F(MaintenanceTest, MoreThanOneSliceGoesInOnePass) {
  Parts parts(4096);
  parts.fill();
  pass(parts, plan(0.5, 0.5));
  EXPECT_EQ(parts.cache.used_objects(), 2048U);
}

// The watermark.

TEST_F(MaintenanceTest, BelowTheWatermarkNothingGoes) {
  Parts parts(100);
  parts.cache.store(cache::test_space(), cache::test_prompt(1, 79));
  pass(parts, plan(0.8));
  EXPECT_EQ(parts.cache.used_objects(), 79U);
  EXPECT_EQ(parts.counted(kTriggered), 0U);
}

TEST_F(MaintenanceTest, AtTheWatermarkTheRatioOfWhatIsUsedGoes) {
  Parts parts(100);
  parts.cache.store(cache::test_space(), cache::test_prompt(1, 80));
  pass(parts, plan(0.8, 0.25));
  EXPECT_EQ(parts.cache.used_objects(), 60U);
  EXPECT_EQ(parts.cache.hit(cache::test_space(), cache::test_prompt(1, 80)), 60U)
      << "from the tail";
  EXPECT_EQ(parts.counted(kTriggered), 1U);
}

TEST_F(MaintenanceTest, WhatIsHeldStaysAboveTheWatermark) {
  Parts parts(100);
  parts.cache.store(cache::test_space(), cache::test_prompt(1, 90));
  const auto held =
      parts.cache->acquire(cache::test_space(), {cache::test_prompt(1, 88), 0, kRank});
  pass(parts, plan(0.8, 0.5));
  EXPECT_EQ(parts.cache.used_objects(), 88U);
}

TEST_F(MaintenanceTest, WithoutEvictionNothingGoesAboveTheWatermark) {
  Parts parts(100, "noop");
  parts.fill();
  pass(parts, plan(0.5, 0.5));
  EXPECT_EQ(parts.cache.used_objects(), 100U);
  EXPECT_EQ(parts.counted(kTriggered), 1U) << "the pass found usage above it all the same";
}

// What else is due.

TEST_F(MaintenanceTest, EndsSessionsWhoseLocksRanOut) {
  Parts parts(64);
  parts.sessions.begin_empty(sessions::kScheduler, "a");
  parts.clock.advance(seconds(300));
  pass(parts, plan());
  EXPECT_EQ(parts.sessions.count(), 0U);
}

TEST_F(MaintenanceTest, ReapsSilentInstancesAndFreesTheirMemoryInTime) {
  Parts parts(64);
  const auto space = cache::test_space();
  parts.instances.add(sessions::InstanceId{1},
                      {"model", 1, 16, false, {{space.layout}}},
                      sessions::kWorkerConnection);
  parts.instances.ping(sessions::InstanceId{1}, sessions::kWorkerConnection);
  auto lease = parts.cache.reserve(space, cache::test_prompt(1, 2));
  ASSERT_TRUE(parts.instances.find(sessions::InstanceId{1}, sessions::kWorkerConnection)
                  ->open_store({}, "a", std::move(*lease), parts.clock.now()));
  parts.clock.advance(seconds(121));
  pass(parts, plan());
  EXPECT_EQ(parts.instances.count(), 0U);
  EXPECT_EQ(parts.quarantine.slot_count(), 2U);
  parts.clock.advance(sessions::kTestInstanceLimits.quarantine_silence);
  pass(parts, plan());
  EXPECT_EQ(parts.cache.used_objects(), 0U);
}

TEST_F(MaintenanceTest, ForgetsIdlePrompts) {
  Parts parts(64);
  parts.prompts.hash("a", sessions::test_tokens(1, 3));
  parts.clock.advance(seconds(601));
  pass(parts, plan());
  EXPECT_EQ(parts.prompts.kept_tokens(), 0U);
}

TEST_F(MaintenanceTest, TellsWhenItsLastPassWas) {
  Parts parts(64);
  Maintenance maintenance(plan(), parts.maintained(), parts.clock, parts.cache.metrics());
  EXPECT_EQ(maintenance.last_pass(), parts.clock.now()) << "a fresh start is not a silence";
  parts.clock.advance(seconds(5));
  maintenance.pass();
  EXPECT_EQ(maintenance.last_pass(), parts.clock.now());
}

TEST_F(MaintenanceTest, TheThreadPassesUntilItIsStopped) {
  Parts parts(64);
  const auto deadline = std::chrono::steady_clock::now() + seconds(30);
  {
    Maintenance maintenance(plan(), parts.maintained(), parts.clock, parts.cache.metrics());
    maintenance.start();
    while (parts.counted(kTicks) < 3 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  }
  const std::uint64_t passes = parts.counted(kTicks);
  EXPECT_GE(passes, 3U);
  EXPECT_EQ(parts.counted(kTicks), passes);
}

TEST_F(MaintenanceTest, OneThatWasNeverStartedStops) {
  Parts parts(64);
  const Maintenance maintenance(plan(), parts.maintained(), parts.clock, parts.cache.metrics());
}

}  // namespace
}  // namespace larder::app
