#include "devices/devices.h"

#include <algorithm>

#include "devices/host_memory.h"

namespace larder::devices {
namespace {

template <typename Memory>
bool all_of_kind(std::span<const TensorHandle> handles) {
  return std::all_of(handles.begin(), handles.end(), [](const TensorHandle& handle) {
    return std::holds_alternative<Memory>(handle.memory);
  });
}

}  // namespace

Result<std::shared_ptr<EngineMemory>> Devices::map(std::span<const TensorHandle> handles,
                                                   geometry::CachePlan plan) {
  if (all_of_kind<SharedSegmentHandle>(handles)) {
    return HostMemory::map(handles, std::move(plan), crew_);
  }
  if (all_of_kind<CudaMemoryHandle>(handles)) {
    return Error{Code::kUnsupported, "CUDA memory, and no CUDA driver was found"};
  }
  return Error{Code::kUnsupported, "tensors on several kinds of devices"};
}

std::optional<EventHandle> Devices::completed_event(std::span<const std::byte> engine_event) {
  if (engine_event.size() == kIpcHandleBytes) {
    return std::nullopt;
  }
  return host_event();
}

}  // namespace larder::devices
