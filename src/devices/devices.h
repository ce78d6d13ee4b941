// devices.h - all kinds of engine memory that this machine has.
//
// A CUDA driver is looked for beside the start, as initialising one can take seconds on a machine
// of many devices; whoever needs the answer waits for it. Thread-safe. Outlives every EngineMemory
// it made.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "devices/copy_crew.h"
#include "devices/cuda_devices.h"
#include "devices/device.h"
#include "devices/segment_budget.h"

namespace larder::devices {

struct DevicesConfig {
  std::size_t copy_helpers = 0;  // threads that help the transfer workers with large copies
  bool looks_for_cuda = true;
  std::string cuda_driver_path = {};                    // "" for the system's
  std::size_t segments_max = segments_max_of_system();  // of engines in host memory, all together
  // So many threads at a time wait in retire(), and as many are held up by the CUDA driver.
  std::size_t blocked_max = 1;
  std::chrono::milliseconds retire_patience = std::chrono::seconds(2);
};

class Devices {
 public:
  Devices(const DevicesConfig& config, const Clock& clock);
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;
  ~Devices();  // waits for copies in flight

  // kUnsupported: memory of a kind that this machine does not have, or of several; kInvalid,
  // kNotFound and kSystem as the kind says.
  Result<std::shared_ptr<EngineMemory>> map(std::span<const TensorHandle> handles,
                                            geometry::CachePlan plan);

  // For the refusal of a request that carried this event: one that its client can use and that is
  // complete. nullopt: there is none, as its client opens CUDA events and there is no such device.
  std::optional<EventHandle> completed_event(std::span<const std::byte> engine_event);

  // Once, when all of it is backed by memory: the pool that objects lie in, for devices to know.
  void register_pool(std::span<std::byte> pool);

  // Before an engine's registration ends at its own request (EngineMemory::retire()). False: copies
  // are still under way, as they take too long, or too many threads wait here already.
  bool retire(EngineMemory& memory);

  // False: copies are still in flight after `patience`.
  bool drain(std::chrono::milliseconds patience);

  // For the status: "CUDA 13.0, 8 devices", or why there is none.
  std::string cuda_text() const;

 private:
  void look_for_cuda(const std::string& driver_path, const Clock& clock);
  // Waits until it was looked for; nullptr when there is none.
  CudaDevices* cuda() LARDER_EXCLUDES(mutex_);

  const std::size_t blocked_max_;
  const std::chrono::milliseconds retire_patience_;
  std::atomic<std::size_t> retirements_{0};
  CopyCrew crew_;
  SegmentBudget budget_;
  mutable Mutex mutex_;
  ConditionVariable looked_changed_;
  bool has_looked_ LARDER_GUARDED_BY(mutex_) = false;
  std::string cuda_text_ LARDER_GUARDED_BY(mutex_) = "being looked for";
  std::unique_ptr<CudaDevices> cuda_ LARDER_GUARDED_BY(mutex_);  // does not change once looked for
  std::span<std::byte> pool_ LARDER_GUARDED_BY(mutex_);
  std::thread looking_;
};

}  // namespace larder::devices
