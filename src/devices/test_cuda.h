// test_cuda.h - the fake driver (tests/fake_cuda) as the server loads it, and a second copy of it
// in which a test plays the engine.
#pragma once

#include <dlfcn.h>
#include <fake_cuda/fake_cuda.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "devices/cuda_driver.h"
#include "devices/shared_tensor.h"

namespace larder::devices {

// The fake has two devices; a test's engine is on the first.
inline constexpr const char* kFirstDevice = "facef00d-0000-0000-0000-000000000000";
inline constexpr std::chrono::seconds kTestPatience{30};

inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kTestPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

// One loaded copy of the fake; every object of the same path is the same copy.
class FakeLibrary {
 public:
  explicit FakeLibrary(const char* path) : library_(::dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(library_, nullptr) << ::dlerror();
  }

  template <typename Function>
  Function* find(const char* name) const {
    return std::bit_cast<Function*>(::dlsym(library_, name));
  }

  FakeCudaCounts counts() const {
    FakeCudaCounts counts{};
    find<decltype(fake_cuda_counts)>("fake_cuda_counts")(&counts);
    return counts;
  }

  std::uint64_t calls(const char* function) const {
    return find<decltype(fake_cuda_calls)>("fake_cuda_calls")(function);
  }

  void fail(const char* function, std::uint64_t skipped, int result) const {
    find<decltype(fake_cuda_fail)>("fake_cuda_fail")(function, skipped, result);
  }

  void hold(bool held) const { find<decltype(fake_cuda_hold)>("fake_cuda_hold")(held ? 1 : 0); }

  void break_context(bool broken) const {
    find<decltype(fake_cuda_break)>("fake_cuda_break")(broken ? 1 : 0);
  }

 private:
  void* library_;  // stays loaded, as a driver does
};

inline CudaDriver fake_driver() {
  auto driver = CudaDriver::load(LARDER_FAKE_CUDA);
  EXPECT_TRUE(driver.has_value()) << (driver ? "" : driver.error().detail);
  return std::move(driver).value();
}

// An event of the engine's, recorded on a stream of its own.
class EngineEvent {
 public:
  explicit EngineEvent(const CudaDriver& driver) : driver_(driver) {
    EXPECT_EQ(driver_.event_create(&event_, kCuEventInterprocess | kCuEventDisableTiming), 0);
    EXPECT_EQ(driver_.ipc_get_event_handle(&handle_, event_), 0);
  }

  EngineEvent(const EngineEvent&) = delete;
  EngineEvent& operator=(const EngineEvent&) = delete;

  ~EngineEvent() { driver_.event_destroy(event_); }

  void record(CuStream stream) const { EXPECT_EQ(driver_.event_record(event_, stream), 0); }

  std::vector<std::byte> handle() const { return {handle_.begin(), handle_.end()}; }

 private:
  const CudaDriver& driver_;
  CuEvent event_ = nullptr;
  IpcHandle handle_{};
};

// Plays the engine: allocates blocks, records events, opens the server's.
class FakeEngine {
 public:
  FakeEngine() : library(LARDER_FAKE_CUDA_ENGINE), driver_(load()) {
    EXPECT_EQ(driver_.primary_context_retain(&context_, 0), 0);
    EXPECT_EQ(driver_.context_set_current(context_), 0);
    EXPECT_EQ(driver_.stream_create(&stream_, kCuStreamNonBlocking), 0);
  }

  FakeEngine(const FakeEngine&) = delete;
  FakeEngine& operator=(const FakeEngine&) = delete;

  ~FakeEngine() {
    library.hold(false);
    driver_.stream_synchronize(stream_);
    for (const CuAddress block : blocks_) {
      library.find<CuResult(CuAddress)>("cuMemFree_v2")(block);
    }
    driver_.stream_destroy(stream_);
    driver_.primary_context_release(0);
  }

  std::span<std::byte> allocate(std::size_t bytes) {
    CuAddress address = 0;
    EXPECT_EQ(library.find<CuResult(CuAddress*, std::size_t)>("cuMemAlloc_v2")(&address, bytes), 0);
    blocks_.push_back(address);
    return {std::bit_cast<std::byte*>(address), bytes};
  }

  IpcHandle handle_of(std::span<const std::byte> block) const {
    IpcHandle handle{};
    const auto export_block = library.find<CuResult(IpcHandle*, CuAddress)>("cuIpcGetMemHandle");
    EXPECT_EQ(export_block(&handle, std::bit_cast<CuAddress>(block.data())), 0);
    return handle;
  }

  // What the client does with a reply's event.
  bool can_open(std::span<const std::byte> handle) const { return query(handle) >= 0; }

  bool is_complete(std::span<const std::byte> handle) const { return query(handle) == 1; }

  const CudaDriver& driver() const { return driver_; }

  CuStream stream() const { return stream_; }

  const FakeLibrary library;

 private:
  static CudaDriver load() {
    auto driver = CudaDriver::load(LARDER_FAKE_CUDA_ENGINE);
    EXPECT_TRUE(driver.has_value());
    return std::move(driver).value();
  }

  // -1: it does not open.
  int query(std::span<const std::byte> bytes) const {
    IpcHandle handle{};
    CuEvent event = nullptr;
    if (bytes.size() != handle.size()) {
      return -1;
    }
    std::ranges::copy(bytes, handle.begin());
    if (driver_.ipc_open_event_handle(&event, handle) != 0) {
      return -1;
    }
    const bool complete = driver_.event_query(event) == kCuSuccess;
    driver_.event_destroy(event);
    return complete ? 1 : 0;
  }

  CudaDriver driver_;
  CuContext context_ = nullptr;
  CuStream stream_ = nullptr;
  std::vector<CuAddress> blocks_;
};

}  // namespace larder::devices
