// host_memory.h - KV tensors in POSIX shared memory: the engine runs on the CPU, or keeps its cache
// in host memory.
//
// Everything is done when start() returns: what the engine did before its request is in memory
// already, and nobody waits for events. The event in both directions is a literal that LMCache's
// CPU clients send and expect.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "devices/copy_crew.h"
#include "devices/device.h"
#include "devices/fault_guard.h"
#include "devices/segment_budget.h"
#include "devices/shared_segment.h"

namespace larder::devices {

inline constexpr std::string_view kHostEvent = "stub_ipc_handle";

EventHandle host_event();

class HostMemory final : public EngineMemory {
 public:
  // What all engines in host memory share; outlives them.
  struct Shared {
    CopyCrew& crew;
    SegmentBudget& budget;
  };

  // Maps the tensors' segments, each of them once. kTooLarge: more than may be mapped. REQUIRES:
  // every handle is of a shared segment.
  static Result<std::shared_ptr<EngineMemory>> map(std::span<const TensorHandle> handles,
                                                   geometry::CachePlan plan,
                                                   const Shared& shared);

  EventHandle completed_event() override { return host_event(); }

  std::string_view device_name() const override { return "cpu"; }

 private:
  struct Mapped {
    SegmentBudget::Lease lease;
    std::vector<SharedSegment> segments;
    std::vector<std::uint64_t> bases;  // of each tensor's first element
  };

  static Result<Mapped> map_segments(std::span<const TensorHandle> handles, SegmentBudget& budget);

  HostMemory(geometry::CachePlan plan, Mapped mapped, CopyCrew& crew);

  Started do_start(CopyJob job) override;
  void copy(const CopyJob& job, const ObjectCopy& object);

  const Mapped mapped_;
  GuardedRanges ranges_;
  CopyCrew& crew_;
};

// Copies runs between addresses of this process.
void copy_runs(std::span<const geometry::CopyRun> runs, Direction direction);

}  // namespace larder::devices
