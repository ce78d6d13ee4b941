// Goal: engine memory on CUDA devices is copied byte for byte in order with the engine's own work,
// every copy ends once, and whatever fails leaves nothing behind.
// Method: the fake driver as the server's, a second copy of it as the engine's, in one process; its
// streams are held to look at what is in between.
#include "devices/cuda_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "devices/cuda_devices.h"
#include "devices/test_cuda_engine.h"

namespace larder::devices {
namespace {

constexpr std::array<std::byte, 16> kAnyImage{};
constexpr int kIllegalAddress = 700;

struct Setting {
  std::string name;
  bool head_major = false;
  bool is_pinned = true;
  bool has_kernel = true;
  int batches = 130;  // of the driver: 130, 128 or none
};

class CudaMemoryTest : public testing::Test {
 protected:
  CudaMemoryTest() : server_(LARDER_FAKE_CUDA), pool_(8 * PagedCache::kObjectBytes) {}

  ~CudaMemoryTest() override {
    server_.hold(false);
    engine_.library.hold(false);
    memory_.reset();
    devices_.reset();
    server_.break_context(false);
    const FakeCudaCounts left = server_.counts();
    EXPECT_EQ(left.contexts, 0U);
    EXPECT_EQ(left.streams, 0U);
    EXPECT_EQ(left.events, 0U);
    EXPECT_EQ(left.blocks, 0U);
    EXPECT_EQ(left.registrations, 0U);
    EXPECT_EQ(left.modules, 0U);
    EXPECT_EQ(left.violations, 0U);
  }

  void begin(const Setting& setting) {
    CudaDriver driver = fake_driver();
    if (setting.batches != 130) {
      driver.copy_batch = nullptr;
    }
    if (setting.batches == 0) {
      driver.copy_batch_128 = nullptr;
    }
    auto devices = CudaDevices::create(
        driver, setting.has_kernel ? std::span(kAnyImage) : std::span<const std::byte>(), clock_);
    ASSERT_TRUE(devices.has_value()) << devices.error().detail;
    devices_ = std::move(*devices);
    if (setting.is_pinned) {
      devices_->register_pool(pool_);
    }
    cache_.emplace(engine_, setting.head_major);
    cache_->fill(1);
    event_.emplace(engine_.driver());
    event_->record(engine_.stream());
    engine_.driver().stream_synchronize(
        engine_.stream());  // complete, also when the engine is held
    auto memory = devices_->map(cache_->handles(), cache_->plan());
    ASSERT_TRUE(memory.has_value()) << memory.error().detail;
    memory_ = std::move(*memory);
    if (setting.is_pinned) {
      ASSERT_TRUE(eventually([this] { return devices_->counts().is_pool_registered; }));
    }
  }

  std::span<std::byte> object(std::size_t index) {
    return std::span(pool_).subspan(index * PagedCache::kObjectBytes, PagedCache::kObjectBytes);
  }

  CopyJob job(Direction direction, Outcome& outcome) {
    return {.direction = direction,
            .block_ids = {ids_},
            .objects = {{.object_group = 0, .chunk = 0, .bytes = object(0)},
                        {.object_group = 0, .chunk = 1, .bytes = object(1)}},
            .skipped_ids = {},
            .engine_event = event_->handle(),
            .done = outcome.done()};
  }

  std::span<const std::int64_t> ids(std::size_t chunk) const {
    return std::span(ids_).subspan(chunk * PagedCache::kBlocksPerChunk,
                                   PagedCache::kBlocksPerChunk);
  }

  void expect_stored() {
    for (std::size_t chunk = 0; chunk < PagedCache::kChunks; ++chunk) {
      const std::vector<std::byte> expected = cache_->object_of(ids(chunk));
      EXPECT_TRUE(std::ranges::equal(expected, object(chunk))) << "chunk " << chunk;
    }
  }

  void expect_refused(const EngineMemory::Started& started, const Outcome& outcome) const {
    EXPECT_FALSE(started.started);
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_FALSE(outcome.copied);
    EXPECT_TRUE(engine_.can_open(started.event));
    EXPECT_TRUE(eventually([&] { return engine_.is_complete(started.event); }));
  }

  SteadyClock clock_;
  const FakeLibrary server_;
  FakeEngine engine_;
  std::vector<std::byte> pool_;
  std::vector<std::int64_t> ids_{5, 0, 7, 2, 6, 4};  // no neighbours: a run a block
  std::optional<PagedCache> cache_;
  std::optional<EngineEvent> event_;
  std::unique_ptr<CudaDevices> devices_;
  std::shared_ptr<EngineMemory> memory_;
};

class CudaCopiesTest : public CudaMemoryTest, public testing::WithParamInterface<Setting> {};

TEST_P(CudaCopiesTest, StoreTakesTheBlocksBytes) {
  begin(GetParam());
  const std::vector<std::byte> before = cache_->snapshot();
  Outcome outcome;
  const auto started = memory_->start(job(Direction::kStore, outcome));
  EXPECT_TRUE(started.started);
  ASSERT_TRUE(eventually([&] { return outcome.calls > 0; }));
  EXPECT_TRUE(outcome.copied);
  EXPECT_TRUE(engine_.is_complete(started.event));
  expect_stored();
  EXPECT_EQ(cache_->snapshot(), before);
}

TEST_P(CudaCopiesTest, RetrieveWritesTheBlocksAndNothingElse) {
  begin(GetParam());
  Outcome stored;
  memory_->start(job(Direction::kStore, stored));
  ASSERT_TRUE(eventually([&] { return stored.calls > 0; }));
  cache_->fill(2);
  PagedCache& cache = *cache_;
  const std::vector<std::byte> before = cache.snapshot();
  Outcome retrieved;
  memory_->start(job(Direction::kRetrieve, retrieved));
  ASSERT_TRUE(eventually([&] { return retrieved.calls > 0; }));
  EXPECT_TRUE(retrieved.copied);
  const std::vector<std::byte> after = cache.snapshot();
  EXPECT_NE(after, before);
  cache.fill(2);
  for (std::size_t chunk = 0; chunk < PagedCache::kChunks; ++chunk) {
    cache.write_object(ids(chunk), object(chunk));
  }
  EXPECT_EQ(after, cache.snapshot());
}

INSTANTIATE_TEST_SUITE_P(
    Ways,
    CudaCopiesTest,
    testing::Values(Setting{.name = "Batch"},
                    Setting{.name = "BatchOf128", .batches = 128},
                    Setting{.name = "OneByOne", .batches = 0},
                    Setting{.name = "Pageable", .is_pinned = false},
                    Setting{.name = "Kernel", .head_major = true},
                    Setting{.name = "TwoDimensional", .head_major = true, .has_kernel = false},
                    Setting{
                        .name = "PageableTwoDimensional", .head_major = true, .is_pinned = false}),
    [](const auto& setting) { return setting.param.name; });

TEST_F(CudaMemoryTest, EachWayUsesTheCallsItIsNamedFor) {
  const auto calls = [this](const char* function) { return server_.calls(function); };
  Outcome outcome;
  begin({.name = "", .head_major = true});
  const auto kernels = calls("cuLaunchKernel");
  memory_->start(job(Direction::kStore, outcome));
  EXPECT_EQ(calls("cuLaunchKernel"), kernels + 2);  // one an object
  ASSERT_TRUE(eventually([&] { return outcome.calls == 1; }));
}

TEST_F(CudaMemoryTest, ABatchIsOneCallAnObject) {
  begin({.name = ""});
  const auto batches = server_.calls("cuMemcpyBatchAsync_v2");
  const auto copies = server_.calls("cuMemcpyAsync");
  Outcome outcome;
  memory_->start(job(Direction::kStore, outcome));
  EXPECT_EQ(server_.calls("cuMemcpyBatchAsync_v2"), batches + 2);
  EXPECT_EQ(server_.calls("cuMemcpyAsync"), copies);
  ASSERT_TRUE(eventually([&] { return outcome.calls == 1; }));
}

TEST_F(CudaMemoryTest, ACopyWaitsForTheEnginesEvent) {
  begin({.name = ""});
  // The engine's work is in front of its event, and stands still.
  engine_.library.hold(true);
  EngineEvent computed(engine_.driver());
  computed.record(engine_.stream());
  Outcome outcome;
  CopyJob waiting = job(Direction::kStore, outcome);
  waiting.engine_event = computed.handle();
  const auto started = memory_->start(std::move(waiting));
  EXPECT_TRUE(started.started);
  EXPECT_FALSE(engine_.is_complete(started.event));
  EXPECT_EQ(outcome.calls, 0);
  EXPECT_FALSE(devices_->drain(std::chrono::milliseconds(1)));
  cache_->fill(3);  // what the engine computes
  engine_.library.hold(false);
  ASSERT_TRUE(eventually([&] { return outcome.calls == 1; }));
  EXPECT_TRUE(outcome.copied);
  EXPECT_TRUE(engine_.is_complete(started.event));
  expect_stored();
}

TEST_F(CudaMemoryTest, DoneComesAfterTheBytesAndOnce) {
  begin({.name = ""});
  server_.hold(true);
  Outcome outcome;
  const auto started = memory_->start(job(Direction::kStore, outcome));
  EXPECT_TRUE(started.started);
  EXPECT_EQ(outcome.calls, 0);
  EXPECT_FALSE(engine_.is_complete(started.event));
  EXPECT_TRUE(std::ranges::all_of(pool_, [](std::byte byte) { return byte == std::byte{0}; }));
  server_.hold(false);
  ASSERT_TRUE(eventually([&] { return outcome.calls > 0; }));
  expect_stored();
  EXPECT_TRUE(devices_->drain(kTestPatience));
  EXPECT_EQ(outcome.calls, 1);
}

TEST_F(CudaMemoryTest, AnEngineWhoseEventNeverComesHoldsUpNobodyElse) {
  begin({.name = ""});
  auto other = devices_->map(cache_->handles(), cache_->plan());
  ASSERT_TRUE(other.has_value());
  engine_.library.hold(true);
  EngineEvent stuck(engine_.driver());
  stuck.record(engine_.stream());
  Outcome first;
  CopyJob waiting = job(Direction::kStore, first);
  waiting.engine_event = stuck.handle();
  EXPECT_TRUE(memory_->start(std::move(waiting)).started);
  Outcome second;
  EXPECT_TRUE((*other)->start(job(Direction::kStore, second)).started);
  ASSERT_TRUE(eventually([&] { return second.calls == 1; }));
  EXPECT_TRUE(second.copied);
  EXPECT_EQ(first.calls, 0);
  engine_.library.hold(false);
  ASSERT_TRUE(eventually([&] { return first.calls == 1; }));
}

// The driver copies through buffers of its own then, and returns when the engine's event is done.
TEST_F(CudaMemoryTest, AHungEngineHoldsUpOneThreadWhileThePoolIsNotPinned) {
  begin({.name = "", .is_pinned = false});
  auto other = devices_->map(cache_->handles(), cache_->plan());
  ASSERT_TRUE(other.has_value());
  engine_.library.hold(true);
  EngineEvent stuck(engine_.driver());
  stuck.record(engine_.stream());
  const auto copies = server_.calls("cuMemcpyAsync");
  Outcome first;
  std::thread held_up([&] {
    CopyJob waiting = job(Direction::kStore, first);
    waiting.engine_event = stuck.handle();
    EXPECT_TRUE(memory_->start(std::move(waiting)).started);
  });
  EXPECT_TRUE(eventually([&] { return server_.calls("cuMemcpyAsync") > copies; }));
  for (EngineMemory* const memory : {memory_.get(), other->get()}) {
    Outcome second;
    CopyJob waiting = job(Direction::kStore, second);
    waiting.engine_event = stuck.handle();
    const auto refused = memory->start(std::move(waiting));
    expect_refused(refused, second);
  }
  engine_.library.hold(false);
  held_up.join();
  ASSERT_TRUE(eventually([&] { return first.calls == 1; }));
  EXPECT_TRUE(first.copied);
  Outcome third;
  EXPECT_TRUE((*other)->start(job(Direction::kStore, third)).started);
  ASSERT_TRUE(eventually([&] { return third.calls == 1; }));
}

TEST_F(CudaMemoryTest, TooManyCopiesBehindOneEngineAreRefused) {
  begin({.name = ""});
  server_.hold(true);
  Outcome accepted;
  for (std::size_t copy = 0; copy < CudaMemory::kCopiesInFlightMax; ++copy) {
    CopyJob empty = job(Direction::kStore, accepted);
    empty.objects.clear();
    ASSERT_TRUE(memory_->start(std::move(empty)).started);
  }
  Outcome refused;
  const auto started = memory_->start(job(Direction::kStore, refused));
  server_.hold(false);
  expect_refused(started, refused);
  ASSERT_TRUE(eventually([&] { return accepted.calls == CudaMemory::kCopiesInFlightMax; }));
}

TEST_F(CudaMemoryTest, AFailureInTheMiddleEndsTheCopyBeforeDone) {
  begin({.name = "", .batches = 0});
  server_.hold(true);
  server_.fail("cuMemcpyAsync", 30, 2);
  const auto waited = server_.calls("cuStreamSynchronize");
  Outcome outcome;
  EngineMemory::Started started;
  std::thread worker([&] { started = memory_->start(job(Direction::kStore, outcome)); });
  // Thirty copies are on the stream: nobody is told before they are done.
  EXPECT_TRUE(eventually([&] { return server_.calls("cuStreamSynchronize") > waited; }));
  EXPECT_EQ(outcome.calls, 0);
  server_.hold(false);
  worker.join();
  expect_refused(started, outcome);
  Outcome later;
  EXPECT_TRUE(memory_->start(job(Direction::kStore, later)).started);
  ASSERT_TRUE(eventually([&] { return later.calls == 1; }));
  expect_stored();
  EXPECT_EQ(outcome.calls, 1);
}

TEST_F(CudaMemoryTest, AFailingCallOfAnyKindIsAnsweredOnce) {
  begin({.name = ""});
  for (const char* function : {"cuCtxSetCurrent",
                               "cuIpcOpenEventHandle",
                               "cuStreamWaitEvent",
                               "cuMemcpyBatchAsync_v2",
                               "cuEventRecord"}) {
    SCOPED_TRACE(function);
    server_.fail(function, 0, 2);
    Outcome outcome;
    const auto started = memory_->start(job(Direction::kStore, outcome));
    expect_refused(started, outcome);
  }
  // The doorbell is a convenience.
  server_.fail("cuLaunchHostFunc", 0, 2);
  Outcome outcome;
  EXPECT_TRUE(memory_->start(job(Direction::kStore, outcome)).started);
  ASSERT_TRUE(eventually([&] { return outcome.calls == 1; }));
  EXPECT_TRUE(outcome.copied);
}

TEST_F(CudaMemoryTest, AnEventThatIsNoneIsRefused) {
  begin({.name = ""});
  const std::string stub = "stub_ipc_handle";
  for (const std::size_t bytes : {std::size_t{0}, stub.size(), std::size_t{63}, kIpcHandleBytes}) {
    SCOPED_TRACE(bytes);
    Outcome outcome;
    CopyJob bad = job(Direction::kStore, outcome);
    bad.engine_event.assign(bytes, std::byte{0});
    const auto started = memory_->start(std::move(bad));
    expect_refused(started, outcome);
  }
}

TEST_F(CudaMemoryTest, ABrokenContextEndsEveryCopyAndStillAnswers) {
  begin({.name = ""});
  server_.hold(true);
  Outcome in_flight;
  const auto before = memory_->start(job(Direction::kStore, in_flight));
  EXPECT_TRUE(before.started);
  server_.break_context(true);
  ASSERT_TRUE(eventually([&] { return in_flight.calls == 1; }));
  EXPECT_FALSE(in_flight.copied);
  Outcome after;
  const auto started = memory_->start(job(Direction::kStore, after));
  expect_refused(started, after);
  EXPECT_TRUE(engine_.can_open(memory_->completed_event()));
  server_.hold(false);
}

TEST_F(CudaMemoryTest, IsUnmappedAfterTheLastCopyWhenItIsReplaced) {
  begin({.name = ""});
  server_.hold(true);
  Outcome outcome;
  EXPECT_TRUE(memory_->start(job(Direction::kStore, outcome)).started);
  // The engine registers again, with the same blocks and half of them.
  std::vector<TensorHandle> half(cache_->handles().begin(), cache_->handles().begin() + 2);
  auto again = devices_->map(half, cache_->plan());
  ASSERT_TRUE(again.has_value());
  memory_.reset();
  EXPECT_EQ(devices_->counts().open_blocks, 2U);
  EXPECT_EQ(devices_->counts().engines, 2U);
  server_.hold(false);
  ASSERT_TRUE(eventually([&] { return devices_->counts().engines == 1; }));
  EXPECT_EQ(outcome.calls, 1);
  EXPECT_TRUE(outcome.copied);
  expect_stored();
  EXPECT_EQ(devices_->counts().open_blocks, 1U);
}

TEST_F(CudaMemoryTest, AnEngineThatLeavesWaitsForItsCopies) {
  begin({.name = ""});
  server_.hold(true);
  Outcome outcome;
  EXPECT_TRUE(memory_->start(job(Direction::kStore, outcome)).started);
  std::optional<bool> is_idle;
  std::thread leaving([&] { is_idle = memory_->retire(kTestPatience); });
  // From the moment it waits on nothing begins.
  EXPECT_TRUE(eventually([&] {
    Outcome later;
    CopyJob empty = job(Direction::kStore, later);
    empty.objects.clear();
    return !memory_->start(std::move(empty)).started;
  }));
  EXPECT_EQ(outcome.calls, 0);
  server_.hold(false);
  leaving.join();
  EXPECT_EQ(is_idle, true);
  EXPECT_EQ(outcome.calls, 1);
  EXPECT_TRUE(outcome.copied);
  expect_stored();
  Outcome late;
  const auto started = memory_->start(job(Direction::kStore, late));
  expect_refused(started, late);
}

TEST_F(CudaMemoryTest, ACopyThatOutlivesItsEnginesPatienceFails) {
  begin({.name = ""});
  server_.hold(true);
  Outcome outcome;
  EXPECT_TRUE(memory_->start(job(Direction::kStore, outcome)).started);
  EXPECT_FALSE(memory_->retire(std::chrono::milliseconds(1)));
  EXPECT_FALSE(memory_->retire(std::chrono::hours(1))) << "nothing to wait for any more";
  cache_->fill(4);  // the engine's next use of the memory
  server_.hold(false);
  ASSERT_TRUE(eventually([&] { return outcome.calls == 1; }));
  EXPECT_FALSE(outcome.copied);
}

// The event that comes with a tensor, behind work that stands still.
TEST_F(CudaMemoryTest, NobodyWaitsForMemoryThatIsNeverReady) {
  begin({.name = ""});
  engine_.library.hold(true);
  EngineEvent ready(engine_.driver());
  ready.record(engine_.stream());
  std::vector<TensorHandle> handles = cache_->handles();
  IpcHandle handle{};
  std::ranges::copy(ready.handle(), handle.begin());
  std::get<CudaMemoryHandle>(handles[0].memory).ready = handle;
  auto waiting = devices_->map(handles, cache_->plan());
  ASSERT_TRUE(waiting.has_value()) << waiting.error().detail;
  waiting->reset();  // in time, as the test's end tells
  handles[1].memory = SharedSegmentHandle{};
  EXPECT_FALSE(devices_->map(handles, cache_->plan()).has_value()) << "neither does a refusal";
  EXPECT_FALSE(devices_->drain(std::chrono::milliseconds(1)));
  EXPECT_EQ(devices_->counts().engines, 3U) << "mapped as long as the device waits";
  engine_.library.hold(false);
  EXPECT_TRUE(devices_->drain(kTestPatience));
  EXPECT_TRUE(eventually([&] { return devices_->counts().engines == 1; }));
}

TEST_F(CudaMemoryTest, EventsOfAnotherFormAreRefusedBeforehand) {
  begin({.name = ""});
  EXPECT_TRUE(memory_->check_event(event_->handle()).has_value());
  constexpr std::size_t kTimelineEventBytes = 81;
  const auto refused = memory_->check_event(std::vector<std::byte>(kTimelineEventBytes));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnsupported);
}

TEST_F(CudaMemoryTest, SeveralThreadsMayStartCopies) {
  begin({.name = "", .head_major = true});
  Outcome outcome;
  constexpr int kThreads = 4;
  constexpr int kCopies = 25;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      for (int copy = 0; copy < kCopies; ++copy) {
        EXPECT_TRUE(memory_->start(job(Direction::kStore, outcome)).started);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  ASSERT_TRUE(devices_->drain(kTestPatience));
  EXPECT_EQ(outcome.calls, kThreads * kCopies);
  EXPECT_TRUE(outcome.copied);
  expect_stored();
  EXPECT_LE(devices_->counts().exported_events, 2 + (kThreads * kCopies));
}

}  // namespace
}  // namespace larder::devices
