// primary_context.h - holds one device's primary context, the one that every library in the process
// shares. Retained once, released when it is destroyed.
#pragma once

#include <utility>

#include "base/result.h"
#include "devices/cuda_driver.h"

namespace larder::devices {

class PrimaryContext {
 public:
  // kSystem when the driver refuses. `driver` outlives the result.
  static Result<PrimaryContext> retain(const CudaDriver& driver, int ordinal) {
    CuOrdinal device = 0;
    if (auto found = driver.check(driver.device_get(&device, ordinal), "cuDeviceGet"); !found) {
      return found.error();
    }
    CuContext context = nullptr;
    auto retained =
        driver.check(driver.primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    if (!retained) {
      return retained.error();
    }
    return PrimaryContext(driver, device, context);
  }

  PrimaryContext(PrimaryContext&& other) noexcept
      : driver_(other.driver_),
        device_(other.device_),
        context_(std::exchange(other.context_, nullptr)) {}

  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  PrimaryContext& operator=(PrimaryContext&&) = delete;

  ~PrimaryContext() {
    if (context_ != nullptr) {
      driver_.context_set_current(nullptr);
      driver_.primary_context_release(device_);
    }
  }

  CuContext get() const { return context_; }

 private:
  PrimaryContext(const CudaDriver& driver, CuOrdinal device, CuContext context)
      : driver_(driver), device_(device), context_(context) {}

  const CudaDriver& driver_;
  CuOrdinal device_;
  CuContext context_;
};

}  // namespace larder::devices
