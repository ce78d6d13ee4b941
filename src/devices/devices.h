// devices.h - all kinds of engine memory that this machine has.
//
// Thread-safe. Outlives every EngineMemory it made.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "devices/copy_crew.h"
#include "devices/device.h"

namespace larder::devices {

class Devices {
 public:
  // copy_helpers: threads that help the transfer workers with large copies.
  explicit Devices(std::size_t copy_helpers) : crew_(copy_helpers) {}

  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  ~Devices() = default;

  // kUnsupported: memory of a kind that this machine does not have, or of several; kInvalid and
  // kNotFound as the kind says.
  Result<std::shared_ptr<EngineMemory>> map(std::span<const TensorHandle> handles,
                                            geometry::CachePlan plan);

  // For the refusal of a request that carried this event: one that its client can use and that is
  // complete. nullopt: there is none, as its client opens CUDA events and there is no such device.
  std::optional<EventHandle> completed_event(std::span<const std::byte> engine_event);

 private:
  CopyCrew crew_;
};

}  // namespace larder::devices
