#include "devices/devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "devices/host_memory.h"

namespace larder::devices {
namespace {

// 13020 is CUDA 13.2.
constexpr int kVersionMajor = 1000;
constexpr int kVersionMinor = 10;

template <typename Memory>
bool all_of_kind(std::span<const TensorHandle> handles) {
  return std::all_of(handles.begin(), handles.end(), [](const TensorHandle& handle) {
    return std::holds_alternative<Memory>(handle.memory);
  });
}

std::string describe(const CudaDevices& cuda) {
  const int version = cuda.driver_version();
  return fmt::format("CUDA {}.{}, {} device{}",
                     version / kVersionMajor,
                     version % kVersionMajor / kVersionMinor,
                     cuda.device_count(),
                     cuda.device_count() == 1 ? "" : "s");
}

}  // namespace

Devices::Devices(const DevicesConfig& config, const Clock& clock)
    : blocked_max_(config.blocked_max),
      retire_patience_(config.retire_patience),
      crew_(config.copy_helpers),
      budget_(config.segments_max) {
  if (config.looks_for_cuda) {
    looking_ =
        std::thread([this, path = config.cuda_driver_path, &clock] { look_for_cuda(path, clock); });
    return;
  }
  const MutexLock lock(mutex_);
  has_looked_ = true;
  cuda_text_ = "not looked for";
}

Devices::~Devices() {
  if (looking_.joinable()) {
    looking_.join();
  }
}

void Devices::look_for_cuda(const std::string& driver_path, const Clock& clock) {
  Result<std::unique_ptr<CudaDevices>> found = CudaDevices::load(driver_path, clock, blocked_max_);
  const MutexLock lock(mutex_);
  if (found) {
    cuda_ = std::move(*found);
    cuda_text_ = describe(*cuda_);
    log::info("engines on GPUs are served: {}", cuda_text_);
    if (!pool_.empty()) {
      cuda_->register_pool(pool_);
    }
  } else {
    cuda_text_ = found.error().detail;
    log::debug("engines on GPUs are not served: {}", cuda_text_);
  }
  has_looked_ = true;
  looked_changed_.notify_all();
}

CudaDevices* Devices::cuda() {
  const MutexLock lock(mutex_);
  while (!has_looked_) {
    looked_changed_.wait(mutex_);
  }
  return cuda_.get();
}

Result<std::shared_ptr<EngineMemory>> Devices::map(std::span<const TensorHandle> handles,
                                                   geometry::CachePlan plan) {
  if (all_of_kind<SharedSegmentHandle>(handles)) {
    return HostMemory::map(handles, std::move(plan), {crew_, budget_});
  }
  if (!all_of_kind<CudaMemoryHandle>(handles)) {
    return Error{Code::kUnsupported, "tensors on several kinds of devices"};
  }
  if (CudaDevices* const found = cuda()) {
    return found->map(handles, std::move(plan));
  }
  return Error{Code::kUnsupported, fmt::format("CUDA memory, but here: {}", cuda_text())};
}

std::optional<EventHandle> Devices::completed_event(std::span<const std::byte> engine_event) {
  if (engine_event.size() != kIpcHandleBytes) {
    return host_event();
  }
  CudaDevices* const found = cuda();
  if (found == nullptr) {
    return std::nullopt;
  }
  Result<EventHandle> event = found->completed_event();
  return event ? std::optional(std::move(*event)) : std::nullopt;
}

void Devices::register_pool(std::span<std::byte> pool) {
  const MutexLock lock(mutex_);
  if (!pool_.empty()) {
    return;
  }
  pool_ = pool;
  if (cuda_ != nullptr) {
    cuda_->register_pool(pool);
  }
}

bool Devices::retire(EngineMemory& memory) {
  const bool may_wait = retirements_.fetch_add(1) < blocked_max_;
  const bool is_idle =
      memory.retire(may_wait ? retire_patience_ : std::chrono::milliseconds::zero());
  retirements_ -= 1;
  return is_idle;
}

bool Devices::drain(std::chrono::milliseconds patience) {
  CudaDevices* const found = cuda();
  return found == nullptr || found->drain(patience);
}

std::string Devices::cuda_text() const {
  const MutexLock lock(mutex_);
  return cuda_text_;
}

}  // namespace larder::devices
