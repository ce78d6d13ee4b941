// Goal: however runs are put on a stream, exactly their bytes are copied, in as few calls as the
// limits allow.
// Method: random runs (seed: LARDER_TEST_SEED) between the fake driver's memory and a pool, against
// a memcpy of each row; for every way of copying and both directions.
#include "devices/run_submitter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <utility>

#include "base/test_random.h"
#include "devices/test_cuda.h"

namespace larder::devices {
namespace {

using geometry::CopyRun;

constexpr std::size_t kBytes = std::size_t{1} << 20;

class RunSubmitterTest : public testing::Test {
 protected:
  RunSubmitterTest()
      : fake_(LARDER_FAKE_CUDA),
        driver_(fake_driver()),
        block_(engine_.allocate(kBytes)),
        pool_bytes_(kBytes),
        pool_(std::in_place, driver_) {
    EXPECT_EQ(driver_.primary_context_retain(&context_, 0), kCuSuccess);
    EXPECT_EQ(driver_.context_set_current(context_), kCuSuccess);
    EXPECT_EQ(driver_.stream_create(&stream_, kCuStreamNonBlocking), kCuSuccess);
    EXPECT_EQ(driver_.ipc_open_mem_handle(&opened_, engine_.handle_of(block_), 0), kCuSuccess);
    EXPECT_EQ(driver_.module_load_data(&module_, block_.data()), kCuSuccess);
    EXPECT_EQ(driver_.module_get_function(&kernel_, module_, kCopyKernelName), kCuSuccess);
  }

  ~RunSubmitterTest() override {
    driver_.context_set_current(context_);
    driver_.stream_synchronize(stream_);
    driver_.stream_destroy(stream_);
    driver_.ipc_close_mem_handle(opened_);
    driver_.module_unload(module_);
    pool_.reset();
    driver_.primary_context_release(0);
    EXPECT_EQ(fake_.counts().violations, 0U);
  }

  void register_pool() {
    pool_->set(pool_bytes_);
    pool_->use_context(context_);
    ASSERT_TRUE(eventually([this] { return pool_->is_registered(); }));
  }

  void fill(std::mt19937_64& random) {
    const auto fill_one = [&random](std::byte& byte) { byte = static_cast<std::byte>(random()); };
    std::for_each(block_.begin(), block_.end(), fill_one);
    std::for_each(pool_bytes_.begin(), pool_bytes_.end(), fill_one);
  }

  // Runs that do not overlap on either side; both sides in another order.
  std::vector<CopyRun> random_runs(std::mt19937_64& random, std::size_t count) {
    const auto up_to = [&random](std::uint64_t most) { return random() % (most + 1); };
    constexpr std::size_t kSlot = 1024;
    std::vector<std::size_t> places(kBytes / kSlot);
    for (std::size_t i = 0; i < places.size(); ++i) {
      places[i] = i * kSlot;
    }
    std::shuffle(places.begin(), places.end(), random);
    std::vector<CopyRun> runs;
    for (std::size_t i = 0; i < std::min(count, places.size()); ++i) {
      const std::uint64_t grain = std::uint64_t{1} << up_to(5);
      CopyRun run;
      run.bytes = up_to(2) * grain + grain;
      run.rows = static_cast<std::uint32_t>(1 + up_to(4));
      run.engine_stride = run.bytes + (up_to(2) * grain);
      run.object_stride = run.bytes + (up_to(2) * grain);
      run.engine = opened_ + places[i] + (up_to(3) * grain);
      run.object = std::bit_cast<std::uint64_t>(pool_bytes_.data()) +
                   places[places.size() - 1 - i] + (up_to(3) * grain);
      runs.push_back(run);
    }
    return runs;
  }

  // Each row with memcpy, in copies of both sides.
  void copy_rows(const std::vector<CopyRun>& runs,
                 Direction direction,
                 std::vector<std::byte>& block,
                 std::vector<std::byte>& pool) const {
    for (const CopyRun& run : runs) {
      for (std::uint64_t row = 0; row < run.rows; ++row) {
        std::byte* engine = &block[run.engine - opened_ + (row * run.engine_stride)];
        std::byte* object = &pool[run.object - std::bit_cast<std::uint64_t>(pool_bytes_.data()) +
                                  (row * run.object_stride)];
        if (direction == Direction::kStore) {
          std::memcpy(object, engine, run.bytes);
        } else {
          std::memcpy(engine, object, run.bytes);
        }
      }
    }
  }

  void expect_copied(RunSubmitter& submitter,
                     Direction direction,
                     const std::vector<CopyRun>& runs) {
    std::vector<std::byte> block(block_.begin(), block_.end());
    std::vector<std::byte> pool(pool_bytes_);
    copy_rows(runs, direction, block, pool);
    const auto submitted =
        submitter.submit({.direction = direction, .bytes = pool_bytes_, .runs = runs}, stream_);
    ASSERT_TRUE(submitted.has_value()) << submitted.error().detail;
    ASSERT_EQ(driver_.stream_synchronize(stream_), kCuSuccess);
    EXPECT_TRUE(std::equal(block.begin(), block.end(), block_.begin()));
    EXPECT_EQ(pool, pool_bytes_);
  }

  void expect_random_runs_copied(bool has_kernel) {
    const std::uint64_t started = test_seed();
    std::mt19937_64 random(started);
    RunSubmitter submitter(driver_, has_kernel ? kernel_ : nullptr, *pool_);
    for (const Direction direction : {Direction::kStore, Direction::kRetrieve}) {
      for (const std::size_t count : {1U, 83U, 84U, 85U, 400U}) {
        fill(random);
        expect_copied(submitter, direction, random_runs(random, count));
      }
    }
  }

  const FakeLibrary fake_;
  FakeEngine engine_;
  CudaDriver driver_;
  std::span<std::byte> block_;
  std::vector<std::byte> pool_bytes_;
  CuContext context_ = nullptr;
  CuStream stream_ = nullptr;
  CuAddress opened_ = 0;
  CuModule module_ = nullptr;
  CuFunction kernel_ = nullptr;
  std::optional<PinnedPool> pool_;
};

TEST_F(RunSubmitterTest, CopiesWithKernelAndBatches) {
  register_pool();
  expect_random_runs_copied(true);
}

TEST_F(RunSubmitterTest, CopiesWithoutAKernel) {
  register_pool();
  expect_random_runs_copied(false);
}

TEST_F(RunSubmitterTest, CopiesWithoutBatches) {
  driver_.copy_batch = nullptr;
  driver_.copy_batch_128 = nullptr;
  register_pool();
  expect_random_runs_copied(true);
}

TEST_F(RunSubmitterTest, CopiesMemoryThatIsNotRegistered) {
  expect_random_runs_copied(true);
}

TEST_F(RunSubmitterTest, FillsItsBatchesAndLaunches) {
  register_pool();
  RunSubmitter submitter(driver_, kernel_, *pool_);
  const auto object = std::bit_cast<std::uint64_t>(pool_bytes_.data());
  std::vector<CopyRun> runs;
  for (std::size_t i = 0; i < RunSubmitter::kBatchMax + 1; ++i) {
    runs.push_back({.engine = opened_ + (i * 16), .object = object + (i * 16), .bytes = 16});
  }
  const std::size_t rows_from = kBytes / 2;
  for (std::size_t i = 0; i < kRectanglesPerLaunch + 1; ++i) {
    runs.push_back({.engine = opened_ + rows_from + (i * 64),
                    .object = object + rows_from + (i * 64),
                    .bytes = 16,
                    .rows = 2,
                    .engine_stride = 32,
                    .object_stride = 32});
  }
  const auto batches = fake_.calls("cuMemcpyBatchAsync_v2");
  const auto launches = fake_.calls("cuLaunchKernel");
  expect_copied(submitter, Direction::kStore, runs);
  EXPECT_EQ(fake_.calls("cuMemcpyBatchAsync_v2"), batches + 2);
  EXPECT_EQ(fake_.calls("cuLaunchKernel"), launches + 2);
}

TEST_F(RunSubmitterTest, TakesRowsThatTouchAsOne) {
  register_pool();
  RunSubmitter submitter(driver_, kernel_, *pool_);
  const auto launches = fake_.calls("cuLaunchKernel");
  expect_copied(submitter,
                Direction::kRetrieve,
                {{.engine = opened_ + 64,
                  .object = std::bit_cast<std::uint64_t>(pool_bytes_.data()),
                  .bytes = 48,
                  .rows = 5,
                  .engine_stride = 48,
                  .object_stride = 48}});
  EXPECT_EQ(fake_.calls("cuLaunchKernel"), launches);
}

TEST_F(RunSubmitterTest, LeavesLongRowsToTheCopyEngines) {
  std::mt19937_64 random(1);
  register_pool();
  const CopyRun run{.engine = opened_ + 64,
                    .object = std::bit_cast<std::uint64_t>(pool_bytes_.data()),
                    .bytes = RunSubmitter::kLongRowBytes,
                    .rows = 5,
                    .engine_stride = RunSubmitter::kLongRowBytes + 128,
                    .object_stride = RunSubmitter::kLongRowBytes + 256};
  const auto launches = fake_.calls("cuLaunchKernel");
  const auto batches = fake_.calls("cuMemcpyBatchAsync_v2");
  const auto copies = fake_.calls("cuMemcpy2DAsync_v2");
  fill(random);
  RunSubmitter batching(driver_, kernel_, *pool_);
  expect_copied(batching, Direction::kStore, {run});
  EXPECT_EQ(fake_.calls("cuMemcpyBatchAsync_v2"), batches + 1);
  CudaDriver older = driver_;
  older.copy_batch = nullptr;
  older.copy_batch_128 = nullptr;
  RunSubmitter plain(older, kernel_, *pool_);
  fill(random);
  expect_copied(plain, Direction::kRetrieve, {run});
  EXPECT_EQ(fake_.calls("cuMemcpy2DAsync_v2"), copies + 1);
  EXPECT_EQ(fake_.calls("cuLaunchKernel"), launches);
}

TEST_F(RunSubmitterTest, ForgetsWhatAFailureLeft) {
  register_pool();
  std::fill(block_.begin(), block_.end(), std::byte{1});
  const auto object = std::bit_cast<std::uint64_t>(pool_bytes_.data());
  const std::vector<CopyRun> runs{{.engine = opened_, .object = object, .bytes = 8},
                                  {.engine = 1,
                                   .object = object,
                                   .bytes = 8,
                                   .rows = 2,
                                   .engine_stride = 9,
                                   .object_stride = 9}};
  RunSubmitter plain(driver_, nullptr, *pool_);
  EXPECT_FALSE(
      plain.submit({.direction = Direction::kStore, .bytes = pool_bytes_, .runs = runs}, stream_)
          .has_value());
  std::fill(pool_bytes_.begin(), pool_bytes_.end(), std::byte{0});
  expect_copied(
      plain, Direction::kStore, {{.engine = opened_ + 512, .object = object + 512, .bytes = 16}});
}

}  // namespace
}  // namespace larder::devices
