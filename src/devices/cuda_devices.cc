#include "devices/cuda_devices.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "devices/copy_kernel_image.h"

namespace larder::devices {

namespace {

constexpr std::string_view kUuidPrefix = "GPU-";
constexpr int kHexBase = 16;

}  // namespace

Result<CuUuid> parse_uuid(std::string_view text) {
  const Error invalid{Code::kInvalid, fmt::format("'{}' is no device UUID", text)};
  if (text.starts_with(kUuidPrefix)) {
    text.remove_prefix(kUuidPrefix.size());
  }
  std::string digits(text);
  std::erase(digits, '-');
  CuUuid uuid{};
  if (digits.size() != 2 * uuid.size()) {
    return invalid;
  }
  const char* at = digits.data();
  for (std::byte& byte : uuid) {
    unsigned value = 0;
    const auto parsed = std::from_chars(at, at + 2, value, kHexBase);
    if (parsed.ec != std::errc() || parsed.ptr != at + 2) {
      return invalid;
    }
    byte = static_cast<std::byte>(value);
    at += 2;
  }
  return uuid;
}

Result<std::unique_ptr<CudaDevices>> CudaDevices::load(const std::string& driver_path,
                                                       const Clock& clock,
                                                       std::size_t blocked_max) {
  auto driver = CudaDriver::load(driver_path);
  if (!driver) {
    return driver.error();
  }
  return create(*driver, copy_kernel_image(), clock, blocked_max);
}

Result<std::unique_ptr<CudaDevices>> CudaDevices::create(const CudaDriver& driver,
                                                         std::span<const std::byte> kernel_image,
                                                         const Clock& clock,
                                                         std::size_t blocked_max) {
  auto devices = std::make_unique<CudaDevices>(driver, kernel_image, clock, blocked_max);
  if (auto found = devices->find_devices(); !found) {
    return Error{Code::kUnsupported, "no usable CUDA device: " + found.error().detail};
  }
  return devices;
}

CudaDevices::CudaDevices(const CudaDriver& driver,
                         std::span<const std::byte> kernel_image,
                         const Clock& clock,
                         std::size_t blocked_max)
    : driver_(driver),
      kernel_image_(kernel_image),
      pool_(driver_),
      completions_(driver_),
      shared_{
          .completions = completions_, .pool = pool_, .clock = clock, .blocked_max = blocked_max} {}

CudaDevices::~CudaDevices() {
  while (!completions_.drain(std::chrono::seconds(1))) {
    log::warning("CUDA copies in flight: {}", shared_.copies_in_flight.load());
  }
  LARDER_CHECK(shared_.engines == 0);
}

Result<void> CudaDevices::find_devices() {
  auto known = driver_.check(driver_.driver_get_version(&driver_version_), "cuDriverGetVersion");
  int count = 0;
  if (known) {
    known = driver_.check(driver_.device_get_count(&count), "cuDeviceGetCount");
  }
  if (known && count <= 0) {
    known = Error{Code::kUnsupported, "the driver counts none"};
  }
  for (int ordinal = 0; known && ordinal < count; ++ordinal) {
    CuOrdinal device = 0;
    Slot slot;
    known = driver_.check(driver_.device_get(&device, ordinal), "cuDeviceGet");
    if (known) {
      known = driver_.check(driver_.device_get_uuid(&slot.uuid, device), "cuDeviceGetUuid");
    }
    slots_.push_back(std::move(slot));
  }
  return known;
}

Result<std::shared_ptr<EngineMemory>> CudaDevices::map(std::span<const TensorHandle> handles,
                                                       geometry::CachePlan plan) {
  const auto index = index_of(handles);
  if (!index) {
    return index.error();
  }
  const auto device = open_device(*index);
  if (!device) {
    return device.error();
  }
  auto memory = CudaMemory::map(**device, shared_, handles, std::move(plan));
  if (!memory) {
    return memory.error();
  }
  return std::shared_ptr<EngineMemory>(std::move(*memory));
}

Result<std::size_t> CudaDevices::index_of(std::span<const TensorHandle> handles) const {
  if (handles.empty()) {
    return Error{Code::kInvalid, "no tensors"};
  }
  const auto uuid = parse_uuid(handles.front().device_uuid);
  if (!uuid) {
    return uuid.error();
  }
  for (const TensorHandle& handle : handles) {
    const auto other = parse_uuid(handle.device_uuid);
    if (!other || *other != *uuid) {
      return Error{Code::kInvalid, "tensors on different devices"};
    }
  }
  const auto slot = std::ranges::find(slots_, *uuid, &Slot::uuid);
  if (slot == slots_.end()) {
    return Error{Code::kNotFound,
                 fmt::format("device {} is not among the {} of this server",
                             handles.front().device_uuid,
                             slots_.size())};
  }
  return static_cast<std::size_t>(slot - slots_.begin());
}

Result<CudaDevice*> CudaDevices::open_device(std::size_t index) {
  const MutexLock lock(mutex_);
  auto& device = slots_[index].device;
  if (device == nullptr) {
    auto opened = CudaDevice::open(driver_, static_cast<int>(index), kernel_image_);
    if (!opened) {
      return opened.error();
    }
    device = std::move(*opened);
    pool_.use_context(device->context());
  }
  return device.get();
}

Result<EventHandle> CudaDevices::completed_event() {
  const auto device = open_device(0);
  if (!device) {
    return device.error();
  }
  return (*device)->completed_event();
}

CudaDevices::Counts CudaDevices::counts() const {
  Counts counts{.engines = shared_.engines,
                .copies_in_flight = shared_.copies_in_flight,
                .is_pool_registered = pool_.is_registered()};
  const MutexLock lock(mutex_);
  for (const Slot& slot : slots_) {
    if (slot.device != nullptr) {
      counts.open_blocks += slot.device->blocks().open_count();
      counts.exported_events += slot.device->events().size();
    }
  }
  return counts;
}

}  // namespace larder::devices
