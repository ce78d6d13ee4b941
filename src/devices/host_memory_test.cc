// Goal: copies between an engine's segments and objects move the right bytes, and an engine that
// takes its memory away fails its own copies only. Method: segments made here as LMCache's CPU
// client makes them. That every format is moved rightly is shown in the geometry room; here it is
// one token-major and one head-major plan, whole and skipped.
#include "devices/host_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "devices/devices.h"

namespace larder::devices {
namespace {

constexpr std::int64_t kBlocks = 16;
constexpr std::int64_t kSlots = 4;
constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kHeadSize = 128;
constexpr std::int64_t kElements = 2 * kBlocks * kSlots * kHeads * kHeadSize;
constexpr std::uint32_t kChunkTokens = 8;

// A segment as an engine creates it; unlinked at the end.
class EngineSegment {
 public:
  explicit EngineSegment(std::size_t bytes) : bytes_(bytes) {
    static int count = 0;
    name_ = fmt::format("/lmcache_kv_{}_{}", ::getpid(), ++count);
    file_ = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    EXPECT_GE(file_, 0);
    EXPECT_EQ(::ftruncate(file_, static_cast<off_t>(bytes)), 0);
    memory_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
  }

  EngineSegment(const EngineSegment&) = delete;
  EngineSegment& operator=(const EngineSegment&) = delete;

  ~EngineSegment() {
    ::munmap(memory_, bytes_);
    ::close(file_);
    ::shm_unlink(name_.c_str());
  }

  void cut(std::size_t bytes) { ASSERT_EQ(::ftruncate(file_, static_cast<off_t>(bytes)), 0); }

  const std::string& name() const { return name_; }

  std::span<std::byte> bytes() const { return {memory_, bytes_}; }

 private:
  std::size_t bytes_;
  std::string name_;
  int file_ = -1;
  std::byte* memory_ = nullptr;
};

class HostMemoryTest : public testing::Test {
 protected:
  static constexpr std::size_t kSegmentBytes = kElements * 2;

  // head_major: [2, blocks, heads, slots, size] instead of [2, blocks, slots, heads, size].
  Result<std::shared_ptr<EngineMemory>> map(bool head_major) {
    geometry::EngineDescription engine;
    std::vector<TensorHandle> handles;
    for (const EngineSegment* segment : {&first_, &second_}) {
      TensorHandle handle;
      const std::vector<std::int64_t> shape =
          head_major ? std::vector<std::int64_t>{2, kBlocks, kHeads, kSlots, kHeadSize}
                     : std::vector<std::int64_t>{2, kBlocks, kSlots, kHeads, kHeadSize};
      handle.tensor = {tensors::Dtype::kBfloat16, shape, {}};
      std::int64_t stride = kElements;
      for (const std::int64_t size : shape) {
        stride /= size;
        handle.tensor.stride.push_back(stride);
      }
      handle.device_uuid = "cpu";
      handle.memory = SharedSegmentHandle{segment->name(), kSegmentBytes};
      engine.tensors.push_back(handle.tensor);
      handles.push_back(std::move(handle));
    }
    engine.hints.kv_layout = head_major ? "HND" : "NHD";
    engine.on_host = true;
    engine.is_since_055 = true;
    Result<geometry::CachePlan> plan = geometry::plan_of(engine, {kChunkTokens, true});
    if (!plan) {
      return plan.error();
    }
    object_bytes_ = *tensors::bytes_of(plan->object_groups.at(0).layout);
    return devices_.map(handles, std::move(*plan));
  }

  CopyJob job(Direction direction, std::span<std::byte> object, std::vector<std::int64_t> ids) {
    CopyJob job;
    job.direction = direction;
    job.block_ids = {std::move(ids)};
    job.objects = {{0, 0, object}};
    job.done = [this](bool copied) {
      EXPECT_FALSE(outcome_.has_value()) << "called once";
      outcome_ = copied;
    };
    return job;
  }

  void fill() {
    for (const EngineSegment* segment : {&first_, &second_}) {
      std::uint8_t value = segment == &first_ ? 1 : 101;
      for (std::byte& byte : segment->bytes()) {
        byte = static_cast<std::byte>(value);
        value = static_cast<std::uint8_t>(value * 5 + 3);
      }
    }
  }

  static void wipe(const EngineSegment& segment) {
    std::memset(segment.bytes().data(), 0, segment.bytes().size());
  }

  const SteadyClock clock_;
  Devices devices_{{.copy_helpers = 1, .looks_for_cuda = false}, clock_};
  EngineSegment first_{kSegmentBytes};
  EngineSegment second_{kSegmentBytes};
  std::size_t object_bytes_ = 0;
  std::optional<bool> outcome_;
};

TEST_F(HostMemoryTest, BlocksComeBackIntoOtherPlaces) {
  for (const bool head_major : {false, true}) {
    SCOPED_TRACE(head_major);
    fill();
    const auto memory = map(head_major);
    ASSERT_TRUE(memory.has_value()) << memory.error().detail;
    EXPECT_EQ((*memory)->device_name(), "cpu");
    std::vector<std::byte> object(object_bytes_);
    const EngineMemory::Started stored = (*memory)->start(job(Direction::kStore, object, {5, 2}));
    EXPECT_TRUE(stored.started);
    EXPECT_EQ(stored.event, host_event());
    EXPECT_EQ(outcome_, true) << "before start() returned";
    outcome_.reset();

    const std::vector<std::byte> before(second_.bytes().begin(), second_.bytes().end());
    wipe(first_);
    wipe(second_);
    EXPECT_TRUE((*memory)->start(job(Direction::kRetrieve, object, {7, 0})).started);
    outcome_.reset();
    const std::size_t block = kSlots * kHeads * kHeadSize * 2;
    const std::size_t plane = kBlocks * block;
    for (std::size_t at = 0; at < before.size(); ++at) {
      const std::size_t id = at % plane / block;
      const std::size_t source = id == 7 ? at - 2 * block : id == 0 ? at + 2 * block : at;
      const std::byte expected = id == 7 || id == 0 ? before[source] : std::byte{0};
      ASSERT_EQ(second_.bytes()[at], expected) << "byte " << at;
    }
  }
}

TEST_F(HostMemoryTest, SkippedBlocksAreNotWritten) {
  fill();
  const auto memory = map(true);
  ASSERT_TRUE(memory.has_value());
  std::vector<std::byte> object(object_bytes_);
  (*memory)->start(job(Direction::kStore, object, {1, 2}));
  outcome_.reset();
  wipe(first_);
  CopyJob partly = job(Direction::kRetrieve, object, {1, 2});
  partly.skipped_ids = {1};
  (*memory)->start(std::move(partly));
  const std::size_t block = kSlots * kHeads * kHeadSize * 2;
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  const auto first = first_.bytes().subspan(block, block);
  const auto second = first_.bytes().subspan(2 * block, block);
  EXPECT_TRUE(std::all_of(first.begin(), first.end(), is_zero));
  EXPECT_FALSE(std::all_of(second.begin(), second.end(), is_zero));
}

TEST_F(HostMemoryTest, ASegmentThatIsCutShortFailsItsCopies) {
  fill();
  const auto memory = map(false);
  ASSERT_TRUE(memory.has_value());
  std::vector<std::byte> object(object_bytes_);
  first_.cut(4096);
  EXPECT_FALSE((*memory)->start(job(Direction::kStore, object, {5, 2})).started);
  EXPECT_EQ(outcome_, false);
  outcome_.reset();
  EXPECT_FALSE((*memory)->start(job(Direction::kRetrieve, object, {5, 2})).started)
      << "what replaced the lost pages is not the engine's memory";
  EXPECT_EQ(outcome_, false);
}

TEST_F(HostMemoryTest, AnEngineThatIsGoneLeavesTheOthersAlone) {
  fill();
  const auto broken = map(false);
  ASSERT_TRUE(broken.has_value());
  std::vector<std::byte> object(object_bytes_);
  second_.cut(0);
  (*broken)->start(job(Direction::kStore, object, {0, 1}));
  EXPECT_EQ(outcome_, false);
  outcome_.reset();
  second_.cut(kSegmentBytes);
  const auto fresh = map(false);
  ASSERT_TRUE(fresh.has_value());
  EXPECT_TRUE((*fresh)->start(job(Direction::kStore, object, {0, 1})).started);
  EXPECT_EQ(outcome_, true);
}

TEST_F(HostMemoryTest, MemoryOfAnEngineThatLeftIsNotTouched) {
  fill();
  const auto memory = map(false);
  ASSERT_TRUE(memory.has_value());
  std::vector<std::byte> object(object_bytes_);
  EXPECT_TRUE(devices_.retire(**memory)) << "no copy is under way";
  const EngineMemory::Started started = (*memory)->start(job(Direction::kStore, object, {5, 2}));
  EXPECT_FALSE(started.started);
  EXPECT_EQ(outcome_, false);
  EXPECT_TRUE(std::ranges::all_of(object, [](std::byte byte) { return byte == std::byte{0}; }));
}

// Two threads stand in `done` of a copy each, so that their memories are busy.
TEST_F(HostMemoryTest, OnlySoManyThreadsWaitForCopies) {
  fill();
  DevicesConfig config{.looks_for_cuda = false};
  config.blocked_max = 1;
  config.retire_patience = std::chrono::hours(1);
  Devices devices(config, clock_);
  const auto first = map(false);
  const auto second = map(false);
  ASSERT_TRUE(first && second);
  std::array<std::vector<std::byte>, 2> objects{std::vector<std::byte>(object_bytes_),
                                                std::vector<std::byte>(object_bytes_)};
  std::atomic<int> standing = 0;
  std::atomic<bool> go_on = false;
  const auto copy = [&](EngineMemory& memory, std::vector<std::byte>& object) {
    CopyJob held = job(Direction::kStore, object, {5, 2});
    held.done = [&](bool) {
      ++standing;
      while (!go_on) {
        std::this_thread::yield();
      }
    };
    memory.start(std::move(held));
  };
  std::thread copies_first([&] { copy(**first, objects[0]); });
  std::thread copies_second([&] { copy(**second, objects[1]); });
  while (standing < 2) {
    std::this_thread::yield();
  }
  std::optional<bool> first_is_idle;
  std::thread waits([&] { first_is_idle = devices.retire(**first); });
  // Until the other thread waits, this one may be the one that does: not tried before then.
  while (true) {
    outcome_.reset();
    (*first)->start(job(Direction::kStore, objects[0], {5, 2}));
    if (outcome_ == false) {
      break;
    }
  }
  EXPECT_FALSE(devices.retire(**second)) << "does not wait for an hour";
  go_on = true;
  for (std::thread* thread : {&copies_first, &copies_second, &waits}) {
    thread->join();
  }
  EXPECT_EQ(first_is_idle, true);
}

TEST_F(HostMemoryTest, ASegmentIsMappedOnceAndCounted) {
  fill();
  const auto tensors_in_one = [this](Devices& devices) {
    TensorHandle handle;
    handle.memory = SharedSegmentHandle{first_.name(), kSegmentBytes};
    TensorHandle shorter = handle;
    shorter.memory = SharedSegmentHandle{first_.name(), kSegmentBytes / 2};
    return devices.map(std::vector<TensorHandle>{shorter, handle, shorter}, {});
  };
  Devices devices({.looks_for_cuda = false, .segments_max = 1}, clock_);
  auto one = tensors_in_one(devices);
  ASSERT_TRUE(one.has_value()) << one.error().detail;
  const auto second = tensors_in_one(devices);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kTooLarge);
  one->reset();
  EXPECT_TRUE(tensors_in_one(devices).has_value());
}

TEST(SegmentBudget, LeavesTheSystemMostOfItsMappings) {
  EXPECT_GT(segments_max_of_system(), 1000U);
  std::size_t mappings = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> mappings;
  EXPECT_EQ(segments_max_of_system(), mappings / 4);
}

TEST_F(HostMemoryTest, SegmentsThatDoNotFitAreRefused) {
  first_.cut(kSegmentBytes - 1);
  EXPECT_EQ(map(false).error().code, Code::kInvalid);
  first_.cut(kSegmentBytes);
  ::shm_unlink(second_.name().c_str());
  EXPECT_EQ(map(false).error().code, Code::kNotFound);
}

// Sizes around those at which another way of writing begins, at every alignment.
TEST(CopyRuns, MovesEveryByteOfARunAndNoOther) {
  constexpr std::size_t kRoom = 70000;
  std::vector<std::byte> from(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) {
    from[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  const auto address_of = [](const std::byte& byte) {
    return reinterpret_cast<std::uint64_t>(&byte);
  };
  for (const std::size_t bytes : {1U, 15U, 4095U, 4096U, 4097U, 4160U, 65543U}) {
    for (const std::size_t shift : {0U, 1U, 7U, 15U, 16U, 33U}) {
      for (const Direction direction : {Direction::kStore, Direction::kRetrieve}) {
        std::vector<std::byte> to(kRoom, std::byte{0xEE});
        const bool stores = direction == Direction::kStore;
        geometry::CopyRun run;
        run.engine = stores ? address_of(from[shift / 2]) : address_of(to[shift]);
        run.object = stores ? address_of(to[shift]) : address_of(from[shift / 2]);
        run.bytes = bytes;
        copy_runs({&run, 1}, direction);
        std::vector<std::byte> expected(kRoom, std::byte{0xEE});
        std::copy_n(&from[shift / 2], bytes, &expected[shift]);
        ASSERT_EQ(to, expected) << bytes << " bytes at " << shift;
      }
    }
  }
}

TEST(Devices, MemoryOfSeveralKindsIsRefused) {
  const SteadyClock clock;
  Devices devices({.looks_for_cuda = false}, clock);
  std::vector<TensorHandle> handles(2);
  handles[0].memory = SharedSegmentHandle{"/lmcache_kv_1_1", 16};
  handles[1].memory = CudaMemoryHandle{};
  EXPECT_EQ(devices.map(handles, {}).error().code, Code::kUnsupported);
}

TEST(Devices, AClientOfCudaEventsGetsNoneWhereThereIsNoDevice) {
  const SteadyClock clock;
  Devices devices({.looks_for_cuda = false}, clock);
  EXPECT_EQ(devices.completed_event(std::vector<std::byte>(64)), std::nullopt);
  EXPECT_EQ(devices.completed_event(host_event()), host_event());
}

TEST(FaultGuard, AFaultElsewhereStillEndsTheProcess) {
  EngineSegment segment(8192);  // made here, so that the process that dies need not unlink it
  const GuardedRanges ranges({});
  segment.cut(0);
  EXPECT_DEATH(std::memset(segment.bytes().data(), 1, 1), "");
}

}  // namespace
}  // namespace larder::devices
