#include "devices/pinned_pool.h"

#include <bit>
#include <functional>

#include "base/check.h"
#include "base/log.h"

namespace larder::devices {

PinnedPool::~PinnedPool() {
  const MutexLock lock(mutex_);
  if (thread_.joinable()) {
    thread_.join();
  }
  if (is_registered()) {
    driver_.context_set_current(context_);
    driver_.mem_host_unregister(registered_bytes_.data());
  }
}

void PinnedPool::set(std::span<std::byte> pool) {
  const MutexLock lock(mutex_);
  LARDER_CHECK(!pool_.has_value());
  pool_ = pool;
  begin_if_ready();
}

void PinnedPool::use_context(CuContext context) {
  const MutexLock lock(mutex_);
  if (context_ == nullptr) {
    context_ = context;
    begin_if_ready();
  }
}

void PinnedPool::begin_if_ready() {
  if (!pool_.has_value() || pool_->empty() || context_ == nullptr) {
    return;
  }
  thread_ = std::thread([this, pool = *pool_, context = context_] {
    if (auto registered = register_now(pool, context); !registered) {
      log::warning("the pool could not be registered with the CUDA driver, copies are slower: {}",
                   registered.error().detail);
    }
  });
}

Result<void> PinnedPool::register_now(std::span<std::byte> pool, CuContext context) {
  auto current = driver_.check(driver_.context_set_current(context), "cuCtxSetCurrent");
  if (!current) {
    return current;
  }
  auto registered = driver_.check(
      driver_.mem_host_register(
          pool.data(), pool.size(), kCuHostRegisterPortable | kCuHostRegisterDeviceMap),
      "cuMemHostRegister");
  if (!registered) {
    return registered;
  }
  CuAddress on_device = 0;
  auto mapped = driver_.check(driver_.mem_host_get_device_pointer(&on_device, pool.data(), 0),
                              "cuMemHostGetDevicePointer");
  if (!mapped) {
    driver_.mem_host_unregister(pool.data());
    return mapped;
  }
  registered_bytes_ = pool;
  device_shift_ = on_device - std::bit_cast<std::uint64_t>(pool.data());
  registered_.store(true, std::memory_order_release);
  log::info("the pool is registered with the CUDA driver");
  return {};
}

bool PinnedPool::covers(std::span<const std::byte> bytes) const {
  if (!is_registered()) {
    return false;
  }
  const std::less_equal<> not_after;
  return not_after(registered_bytes_.data(), bytes.data()) &&
         not_after(bytes.data() + bytes.size(),
                   registered_bytes_.data() + registered_bytes_.size());
}

}  // namespace larder::devices
