// Goal: registrations find their device or are refused with a reason, blocks are opened once, and
// whatever fails on the way leaves nothing open.
// Method: the fake driver as the server's, a second copy of it as the engine's, in one process.
#include "devices/cuda_devices.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "devices/copy_kernel_image.h"
#include "devices/test_cuda_engine.h"

namespace larder::devices {
namespace {

class CudaDevicesTest : public testing::Test {
 protected:
  CudaDevicesTest() : server_(LARDER_FAKE_CUDA), cache_(engine_, false) {}

  ~CudaDevicesTest() override {
    devices_.reset();
    const FakeCudaCounts left = server_.counts();
    EXPECT_EQ(left.contexts + left.streams + left.events + left.blocks, 0U);
    EXPECT_EQ(left.registrations + left.modules, 0U);
    EXPECT_EQ(left.violations, 0U);
  }

  void load() {
    auto devices = CudaDevices::load(LARDER_FAKE_CUDA, clock_);
    ASSERT_TRUE(devices.has_value()) << devices.error().detail;
    devices_ = std::move(*devices);
  }

  void expect_not_mapped(Code code, const std::string& detail) {
    const auto mapped = devices_->map(cache_.handles(), cache_.plan());
    ASSERT_FALSE(mapped.has_value());
    EXPECT_EQ(mapped.error().code, code);
    EXPECT_EQ(mapped.error().detail, detail);
    EXPECT_EQ(devices_->counts().open_blocks, 0U);
    EXPECT_EQ(devices_->counts().engines, 0U);
  }

  CudaMemoryHandle& memory(std::size_t tensor) {
    return std::get<CudaMemoryHandle>(cache_.handles()[tensor].memory);
  }

  SteadyClock clock_;
  const FakeLibrary server_;
  FakeEngine engine_;
  PagedCache cache_;
  std::unique_ptr<CudaDevices> devices_;
};

TEST_F(CudaDevicesTest, TakeNoContextBeforeAnEngineComes) {
  load();
  EXPECT_EQ(devices_->device_count(), 2U);
  EXPECT_EQ(devices_->driver_version(), 13000);
  EXPECT_EQ(server_.counts().contexts, 0U);
  EXPECT_TRUE(devices_->map(cache_.handles(), cache_.plan()).has_value());
  EXPECT_EQ(server_.counts().contexts, 1U);
}

TEST_F(CudaDevicesTest, AreAbsentWithoutADriverOrADevice) {
  EXPECT_EQ(CudaDevices::load("/nowhere/libcuda.so.1", clock_).error().code, Code::kUnsupported);
  server_.fail("cuDeviceGetCount", 0, 100);
  const auto none = CudaDevices::load(LARDER_FAKE_CUDA, clock_);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::kUnsupported);
  EXPECT_EQ(none.error().detail, "no usable CUDA device: cuDeviceGetCount: CUDA_ERROR_NO_DEVICE");
}

TEST_F(CudaDevicesTest, OpenABlockOnceForAllItsLayers) {
  load();
  const auto opened = server_.calls("cuIpcOpenMemHandle_v2");
  const auto mapped = devices_->map(cache_.handles(), cache_.plan());
  ASSERT_TRUE(mapped.has_value()) << mapped.error().detail;
  EXPECT_EQ(server_.calls("cuIpcOpenMemHandle_v2"), opened + 2);
  EXPECT_EQ(devices_->counts().open_blocks, 2U);
  EXPECT_EQ((*mapped)->device_name(), "cuda:0");
}

TEST_F(CudaDevicesTest, KnowADeviceByItsUuidHoweverItIsWritten) {
  load();
  for (const char* uuid : {"facef00d-0000-0000-0000-000000000000",
                           "GPU-facef00d-0000-0000-0000-000000000000",
                           "FACEF00D000000000000000000000000"}) {
    for (TensorHandle& handle : cache_.handles()) {
      handle.device_uuid = uuid;
    }
    EXPECT_TRUE(devices_->map(cache_.handles(), cache_.plan()).has_value()) << uuid;
  }
}

TEST_F(CudaDevicesTest, AreUsedEachWithItsOwnContext) {
  load();
  const auto first = devices_->map(cache_.handles(), cache_.plan());
  ASSERT_TRUE(first.has_value());
  PagedCache other(engine_, false);
  for (TensorHandle& handle : other.handles()) {
    handle.device_uuid = "facef00d-0000-0000-0000-000000000001";
  }
  const auto second = devices_->map(other.handles(), other.plan());
  ASSERT_TRUE(second.has_value()) << second.error().detail;
  EXPECT_EQ((*second)->device_name(), "cuda:1");
  EXPECT_EQ(server_.counts().contexts, 2U);
  EXPECT_EQ(devices_->counts().open_blocks, 4U);
  EXPECT_TRUE(engine_.can_open((*second)->completed_event()));
}

TEST_F(CudaDevicesTest, RefuseADeviceThatIsNotTheirs) {
  load();
  for (TensorHandle& handle : cache_.handles()) {
    handle.device_uuid = "facef00d-0000-0000-0000-000000000002";
  }
  expect_not_mapped(
      Code::kNotFound,
      "device facef00d-0000-0000-0000-000000000002 is not among the 2 of this server");
  cache_.handles()[1].device_uuid = kFirstDevice;
  expect_not_mapped(Code::kInvalid, "tensors on different devices");
  cache_.handles()[0].device_uuid = "cpu";
  expect_not_mapped(Code::kInvalid, "'cpu' is no device UUID");
  cache_.handles()[0].device_uuid = "facef00d-0000-0000-0000-00000000000g";
  expect_not_mapped(Code::kInvalid, "'facef00d-0000-0000-0000-00000000000g' is no device UUID");
  cache_.handles().clear();
  expect_not_mapped(Code::kInvalid, "no tensors");
}

TEST_F(CudaDevicesTest, RefuseATensorBeyondItsBlock) {
  load();
  memory(3).storage_bytes += 1;
  const std::size_t block = 2 * (PagedCache::kGap + PagedCache::kLayerBytes);
  expect_not_mapped(Code::kInvalid,
                    "a tensor ends at byte " + std::to_string(block + 1) + " of a block of " +
                        std::to_string(block));
  memory(3).block_offset = ~std::uint64_t{0};
  expect_not_mapped(Code::kInvalid, "a tensor beyond the address space");
  memory(3).block.fill(std::byte{7});
  memory(3).block_offset = 0;
  expect_not_mapped(Code::kSystem, "cuIpcOpenMemHandle: CUDA_ERROR_MAP_FAILED");
}

TEST_F(CudaDevicesTest, LeaveNothingOpenWhateverFails) {
  for (const char* function : {"cuDevicePrimaryCtxRetain",
                               "cuCtxSetCurrent",
                               "cuStreamCreate",
                               "cuEventCreate",
                               "cuEventRecord",
                               "cuIpcOpenMemHandle_v2"}) {
    SCOPED_TRACE(function);
    load();
    server_.fail(function, 0, 2);
    EXPECT_FALSE(devices_->map(cache_.handles(), cache_.plan()).has_value());
    EXPECT_EQ(devices_->counts().open_blocks, 0U);
    EXPECT_TRUE(devices_->map(cache_.handles(), cache_.plan()).has_value());
    devices_.reset();
  }
}

TEST_F(CudaDevicesTest, DoWithoutAKernelThatDoesNotLoad) {
  server_.fail("cuModuleLoadData", 0, 2);
  const std::array<std::byte, 16> image{};
  auto devices = CudaDevices::create(fake_driver(), image, clock_);
  ASSERT_TRUE(devices.has_value());
  EXPECT_TRUE((*devices)->map(cache_.handles(), cache_.plan()).has_value());
}

TEST_F(CudaDevicesTest, WaitForTheEventOfATensorThatIsNotReady) {
  load();
  const EngineEvent ready(engine_.driver());
  ready.record(engine_.stream());
  IpcHandle handle{};
  std::ranges::copy(ready.handle(), handle.begin());
  memory(1).ready = handle;
  const auto waits = server_.calls("cuStreamWaitEvent");
  EXPECT_TRUE(devices_->map(cache_.handles(), cache_.plan()).has_value());
  EXPECT_EQ(server_.calls("cuStreamWaitEvent"), waits + 1);
  EXPECT_TRUE(eventually([this] { return devices_->counts().engines == 0; }));
  memory(1).ready = IpcHandle{};
  expect_not_mapped(Code::kSystem, "cuIpcOpenEventHandle: CUDA_ERROR_MAP_FAILED");
}

TEST_F(CudaDevicesTest, TellTorchWhenAStorageIsLeft) {
  load();
  const std::string name = "/torch_" + std::to_string(::getpid()) + "_devices_test";
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(fd, 0);
  std::int64_t count = 5;
  EXPECT_EQ(::pwrite(fd, &count, sizeof(count), 0), ssize_t{sizeof(count)});
  memory(0).counter = StorageCounter{.file_name = name, .index = 0};
  auto mapped = devices_->map(cache_.handles(), cache_.plan());
  ASSERT_TRUE(mapped.has_value());
  EXPECT_EQ(::pread(fd, &count, sizeof(count), 0), ssize_t{sizeof(count)});
  EXPECT_EQ(count, 5);
  mapped->reset();
  EXPECT_EQ(::pread(fd, &count, sizeof(count), 0), ssize_t{sizeof(count)});
  EXPECT_EQ(count, 4);
  ::close(fd);
  ::shm_unlink(name.c_str());
}

TEST_F(CudaDevicesTest, AnswerUnknownEnginesWithAnEventThatIsComplete) {
  load();
  const auto event = devices_->completed_event();
  ASSERT_TRUE(event.has_value()) << event.error().detail;
  EXPECT_TRUE(eventually([&] { return engine_.is_complete(*event); }));
}

TEST_F(CudaDevicesTest, SayWhenNoEventCanBeMade) {
  load();
  server_.fail("cuDevicePrimaryCtxRetain", 0, 2);
  const auto event = devices_->completed_event();
  ASSERT_FALSE(event.has_value());
  EXPECT_EQ(event.error().detail, "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY");
}

TEST_F(CudaDevicesTest, GoOnWithAPoolThatCannotBeRegistered) {
  load();
  std::vector<std::byte> pool(2 * PagedCache::kObjectBytes);
  server_.fail("cuMemHostRegister_v2", 0, 2);
  const auto tried = server_.calls("cuMemHostRegister_v2");
  devices_->register_pool(pool);
  auto mapped = devices_->map(cache_.handles(), cache_.plan());
  ASSERT_TRUE(mapped.has_value());
  ASSERT_TRUE(eventually([&] { return server_.calls("cuMemHostRegister_v2") == tried + 1; }));
  const EngineEvent event(engine_.driver());
  event.record(engine_.stream());
  Outcome outcome;
  const std::vector<std::int64_t> ids{1, 2, 3};
  (*mapped)->start({.direction = Direction::kStore,
                    .block_ids = {ids},
                    .objects = {{.object_group = 0,
                                 .chunk = 0,
                                 .bytes = std::span(pool).first(PagedCache::kObjectBytes)}},
                    .skipped_ids = {},
                    .engine_event = event.handle(),
                    .done = outcome.done()});
  ASSERT_TRUE(eventually([&] { return outcome.calls == 1; }));
  EXPECT_TRUE(outcome.copied);
  EXPECT_TRUE(
      std::ranges::equal(cache_.object_of(ids), std::span(pool).first(PagedCache::kObjectBytes)));
}

}  // namespace
}  // namespace larder::devices
