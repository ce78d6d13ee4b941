#include "devices/cuda_device.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "devices/cuda_copy_index.h"

namespace larder::devices {

EventHandle bytes_of(const IpcHandle& handle) {
  return {handle.begin(), handle.end()};
}

Result<IpcHandle> ipc_handle_of(std::span<const std::byte> bytes) {
  IpcHandle handle{};
  if (bytes.size() != handle.size()) {
    return Error{Code::kInvalid, fmt::format("an event of {} bytes", bytes.size())};
  }
  std::ranges::copy(bytes, handle.begin());
  return handle;
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(const CudaDriver& driver,
                                                     int ordinal,
                                                     std::span<const std::byte> kernel_image) {
  auto context = PrimaryContext::retain(driver, ordinal);
  if (!context) {
    return context.error();
  }
  auto opened = std::make_unique<CudaDevice>(driver, std::move(*context), ordinal);
  if (auto prepared = opened->prepare(); !prepared) {
    return prepared.error();
  }
  opened->load_kernel(kernel_image);
  return opened;
}

CudaDevice::CudaDevice(const CudaDriver& driver, PrimaryContext context, int ordinal)
    : driver_(driver),
      context_(std::move(context)),
      name_(fmt::format("cuda:{}", ordinal)),
      blocks_(driver),
      events_(driver) {}

CudaDevice::~CudaDevice() {
  driver_.context_set_current(context());
  if (module_ != nullptr) {
    driver_.module_unload(module_);
  }
  if (idle_stream_ != nullptr) {
    driver_.stream_destroy(idle_stream_);
  }
}

Result<void> CudaDevice::prepare() {
  if (auto current = make_current(); !current) {
    return current;
  }
  auto stream = create_stream();
  if (!stream) {
    return stream.error();
  }
  idle_stream_ = *stream;
  auto event = record_completed();
  if (!event) {
    return event.error();
  }
  first_event_ = std::move(*event);
  // It has to be complete when the device is not able to complete anything any more.
  return driver_.check(driver_.stream_synchronize(idle_stream_), "cuStreamSynchronize");
}

void CudaDevice::load_kernel(std::span<const std::byte> image) {
  if (image.empty()) {
    return;
  }
  auto loaded = driver_.check(driver_.module_load_data(&module_, image.data()), "cuModuleLoadData");
  if (!loaded) {
    module_ = nullptr;
  } else {
    loaded = driver_.check(driver_.module_get_function(&copy_kernel_, module_, kCopyKernelName),
                           "cuModuleGetFunction");
  }
  if (!loaded) {
    copy_kernel_ = nullptr;
    log::warning("{}: the copy kernel does not load, head-major caches are copied more slowly: {}",
                 name_,
                 loaded.error().detail);
  }
}

Result<void> CudaDevice::make_current() const {
  return driver_.check(driver_.context_set_current(context()), "cuCtxSetCurrent");
}

Result<CuStream> CudaDevice::create_stream() const {
  CuStream stream = nullptr;
  auto created =
      driver_.check(driver_.stream_create(&stream, kCuStreamNonBlocking), "cuStreamCreate");
  if (!created) {
    return created.error();
  }
  return stream;
}

Result<void> CudaDevice::wait_for(const IpcHandle& engine_event, CuStream stream) const {
  CuEvent event = nullptr;
  auto opened =
      driver_.check(driver_.ipc_open_event_handle(&event, engine_event), "cuIpcOpenEventHandle");
  if (!opened) {
    return opened;
  }
  auto waits = driver_.check(driver_.stream_wait_event(stream, event, 0), "cuStreamWaitEvent");
  driver_.event_destroy(event);
  return waits;
}

EventHandle CudaDevice::completed_event() {
  auto recorded = record_completed();
  return recorded ? std::move(*recorded) : first_event_;
}

Result<EventHandle> CudaDevice::record_completed() {
  if (auto current = make_current(); !current) {
    return current.error();
  }
  auto exported = events_.take();
  if (!exported) {
    return exported.error();
  }
  auto recorded =
      driver_.check(driver_.event_record(exported->event, idle_stream_), "cuEventRecord");
  if (!recorded) {
    return recorded.error();
  }
  events_.give_back(*exported);
  return bytes_of(exported->handle);
}

}  // namespace larder::devices
