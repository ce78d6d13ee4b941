// pinned_pool.h - the pool, made known to the CUDA driver so that devices reach it directly.
//
// Registering locks every page of the pool, which takes seconds for a large one, so it runs on a
// thread of its own, in one call: a copy that crosses the border of two registrations fails. Until
// it is done, and for ever if the driver refuses, copies go through the driver's own staging
// buffers: slower, the same bytes. It needs a context, so it begins with the first device that an
// engine uses. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "devices/cuda_driver.h"

namespace larder::devices {

class PinnedPool {
 public:
  explicit PinnedPool(const CudaDriver& driver) : driver_(driver) {}

  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  // Waits for a registration that runs. REQUIRES: no copy is in flight.
  ~PinnedPool();

  // Once; `pool` stays mapped and backed by memory longer than this.
  void set(std::span<std::byte> pool) LARDER_EXCLUDES(mutex_);

  // The first device in use; its context lives longer than this.
  void use_context(CuContext context) LARDER_EXCLUDES(mutex_);

  bool is_registered() const { return registered_.load(std::memory_order_acquire); }

  // Whether a device can be given addresses of these bytes.
  bool covers(std::span<const std::byte> bytes) const;

  // What to add to an address in the pool to get the device's address of it; the same on every
  // device. REQUIRES: is_registered().
  std::uint64_t device_shift() const { return device_shift_; }

 private:
  void begin_if_ready() LARDER_REQUIRES(mutex_);
  Result<void> register_now(std::span<std::byte> pool, CuContext context);

  const CudaDriver& driver_;
  std::atomic<bool> registered_{false};
  std::span<std::byte> registered_bytes_;  // written before registered_
  std::uint64_t device_shift_ = 0;         // as is this

  Mutex mutex_;
  std::optional<std::span<std::byte>> pool_ LARDER_GUARDED_BY(mutex_);
  CuContext context_ LARDER_GUARDED_BY(mutex_) = nullptr;
  std::thread thread_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::devices
