// cuda_memory.h - one engine's tensors on a CUDA device, and the copies of its STOREs and
// RETRIEVEs.
//
// Each engine has a stream of its own: its copies wait for its own event, and an engine whose event
// never comes holds up nobody else. Copies of one engine run in the order they were started. A copy
// keeps the CudaMemory alive to its end, so the engine's blocks are closed after the last one; the
// wait for the tensors' own events after the registration does so too, and nothing waits in the
// destructor.
//
// As long as the pool is not registered with the driver, starting a copy may take as long as the
// engine's event, since the driver copies through buffers of its own then. So at most
// CudaShared::blocked_max threads start copies at that time; others are refused.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/result.h"
#include "devices/completions.h"
#include "devices/cuda_device.h"
#include "devices/device.h"
#include "devices/pinned_pool.h"
#include "devices/run_submitter.h"

namespace larder::devices {

// What all engines on CUDA devices share; outlives them.
struct CudaShared {
  Completions& completions;
  const PinnedPool& pool;
  const Clock& clock;
  const std::size_t blocked_max;
  log::LogLimiter failed_copies{};
  std::atomic<std::size_t> engines{0};
  std::atomic<std::size_t> copies_in_flight{0};
  std::atomic<std::size_t> blocked{0};  // threads that start copies of a pool that is not pinned
};

class CudaMemory final : public EngineMemory, public std::enable_shared_from_this<CudaMemory> {
 public:
  // More wait behind an engine's event only if the engine hangs.
  static constexpr std::size_t kCopiesInFlightMax = 512;

  // REQUIRES: all handles are of memory on `device`. kInvalid: a tensor beyond its block; kSystem:
  // the driver refused.
  static Result<std::shared_ptr<CudaMemory>> map(CudaDevice& device,
                                                 CudaShared& shared,
                                                 std::span<const TensorHandle> handles,
                                                 geometry::CachePlan plan);

  CudaMemory(CudaDevice& device, CudaShared& shared, geometry::CachePlan plan);
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;
  ~CudaMemory() override;

  Result<void> check_event(std::span<const std::byte> engine_event) override;

  EventHandle completed_event() override { return device_.completed_event(); }

  std::string_view device_name() const override { return device_.name(); }

 private:
  Result<void> map_tensors(std::span<const TensorHandle> handles);
  Started do_start(CopyJob job) override;

  Result<void> map_tensor(const TensorHandle& tensor, const CudaMemoryHandle& memory);
  Result<ExportedEvents::Exported> submit(CopyJob& job) LARDER_EXCLUDES(mutex_);
  Result<ExportedEvents::Exported> submit_unpinned(CopyJob& job) LARDER_EXCLUDES(mutex_);
  Result<void> submit_copies(const CopyJob& job) LARDER_REQUIRES(mutex_);
  // Keeps the memory until the stream has got past the tensors' own events.
  void watch_readiness();
  void watch(CopyJob& job, const ExportedEvents::Exported& exported) LARDER_REQUIRES(mutex_);
  Started refuse(CopyJob& job, const Error& error);

  CudaDevice& device_;
  CudaShared& shared_;
  std::vector<StorageCounter> counters_;
  std::vector<IpcBlockLease> blocks_;
  std::vector<std::uint64_t> bases_;  // by tensor
  CuStream stream_ = nullptr;
  bool waits_for_readiness_ = false;
  std::atomic<std::size_t> in_flight_{0};
  std::atomic<bool> has_said_event_{false};

  Mutex mutex_;  // one copy at a time is put on the stream
  RunSubmitter submitter_ LARDER_GUARDED_BY(mutex_);
  std::vector<geometry::CopyRun> runs_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::devices
