// cuda_devices.h - CUDA as the rest of the server sees it: a driver, and engines' memory on its
// devices.
//
// One for the process, or none where load() finds no driver. The driver is initialised at once, a
// device's context only when the first engine registers memory on it. Thread-safe. To end: drop
// every EngineMemory, then this; the destructor waits for the copies in flight. A copy behind an
// event that its engine never reaches does not end, so a server that must stop asks drain() first.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "devices/completions.h"
#include "devices/cuda_device.h"
#include "devices/cuda_driver.h"
#include "devices/cuda_memory.h"
#include "devices/device.h"
#include "devices/pinned_pool.h"
#include "geometry/engine_cache.h"

namespace larder::devices {

class CudaDevices {
 public:
  // `driver_path`: "" for the system's. `blocked_max`: so many threads at a time may be held up by
  // the driver (cuda_memory.h). kUnsupported: no driver, or no device; the detail says why.
  static Result<std::unique_ptr<CudaDevices>> load(const std::string& driver_path,
                                                   const Clock& clock,
                                                   std::size_t blocked_max = 1);

  // load() with a driver and a kernel that the caller brings, for tests.
  static Result<std::unique_ptr<CudaDevices>> create(const CudaDriver& driver,
                                                     std::span<const std::byte> kernel_image,
                                                     const Clock& clock,
                                                     std::size_t blocked_max = 1);

  CudaDevices(const CudaDriver& driver,
              std::span<const std::byte> kernel_image,
              const Clock& clock,
              std::size_t blocked_max);
  CudaDevices(const CudaDevices&) = delete;
  CudaDevices& operator=(const CudaDevices&) = delete;
  ~CudaDevices();

  // Once: has the pool registered with the driver, beside everything else, as soon as a device is
  // in use. Objects elsewhere are copied too, more slowly. REQUIRES: every page of the pool is
  // backed by memory, and stays mapped longer than this.
  void register_pool(std::span<std::byte> pool) { pool_.set(pool); }

  // kNotFound: a device that this machine (or container) does not have; kInvalid: no tensors, or
  // on different devices, or beyond their blocks; kSystem: the driver refused.
  Result<std::shared_ptr<EngineMemory>> map(std::span<const TensorHandle> handles,
                                            geometry::CachePlan plan);

  // An event that is complete, for refusing requests of unknown engines; of device 0. kSystem: that
  // device cannot be used at all.
  Result<EventHandle> completed_event();

  // False: copies are still in flight after `patience`.
  bool drain(std::chrono::milliseconds patience) { return completions_.drain(patience); }

  int driver_version() const { return driver_version_; }  // 13000 is CUDA 13.0

  std::size_t device_count() const { return slots_.size(); }

  struct Counts {
    std::size_t engines = 0;
    std::size_t copies_in_flight = 0;
    std::size_t open_blocks = 0;
    std::size_t exported_events = 0;
    bool is_pool_registered = false;
  };

  Counts counts() const LARDER_EXCLUDES(mutex_);

 private:
  struct Slot {
    CuUuid uuid{};
    std::unique_ptr<CudaDevice> device;  // guarded by mutex_; null until in use
  };

  Result<void> find_devices();
  Result<std::size_t> index_of(std::span<const TensorHandle> handles) const;
  Result<CudaDevice*> open_device(std::size_t index) LARDER_EXCLUDES(mutex_);

  const CudaDriver driver_;
  const std::span<const std::byte> kernel_image_;
  int driver_version_ = 0;
  mutable Mutex mutex_;
  std::vector<Slot> slots_;  // as many as there are devices, from the start
  PinnedPool pool_;
  Completions completions_;
  CudaShared shared_;
};

// "GPU-" and dashes may be there or not; kInvalid when it is not 16 bytes in hex.
Result<CuUuid> parse_uuid(std::string_view text);

}  // namespace larder::devices
