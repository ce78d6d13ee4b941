// run_submitter.h - puts the runs of an object on a stream, in the fewest calls that the driver and
// the memory allow.
//
// One-row runs go as one batch where the driver has batches, else one by one. Runs with rows go to
// the copy kernel, thousands of small pieces a launch, else as 2-D copies; long rows go the way of
// one-row runs, as the device's copy engines take them without slowing the engine's own kernels.
// Batches and the kernel reach the pool directly, so they are used only for objects in the pinned
// pool; other memory goes through the driver's staging, which the plain calls do. One owner at a
// time; the device's context is current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "devices/cuda_copy_index.h"
#include "devices/cuda_driver.h"
#include "devices/device.h"
#include "devices/pinned_pool.h"
#include "geometry/copy_runs.h"

namespace larder::devices {

class RunSubmitter {
 public:
  static constexpr std::size_t kBatchMax = 4096;  // copies of one call
  static constexpr std::uint64_t kLongRowBytes = std::uint64_t{16}
                                                 << 10;  // too long for the kernel

  // `kernel` may be null.
  RunSubmitter(const CudaDriver& driver, CuFunction kernel, const PinnedPool& pool)
      : driver_(driver), kernel_(kernel), pool_(pool) {}

  struct Object {
    Direction direction = Direction::kStore;
    std::span<const std::byte> bytes;  // the runs stay within
    std::span<const geometry::CopyRun> runs;
  };

  // kSystem: the driver refused one; those before it are on the stream.
  Result<void> submit(const Object& object, CuStream stream);

 private:
  struct Batch {
    std::vector<CuAddress> targets;
    std::vector<CuAddress> sources;
    std::vector<std::size_t> bytes;
  };

  Result<void> submit_row(const geometry::CopyRun& run);
  bool has_batches() const;
  Result<void> submit_each_row(const geometry::CopyRun& run);
  Result<void> submit_rows(const geometry::CopyRun& run);
  Result<void> copy_rows_2d(const geometry::CopyRun& run) const;
  Result<void> flush_batch();
  void clear_batch();
  Result<void> flush_kernel();

  const CudaDriver& driver_;
  CuFunction kernel_;
  const PinnedPool& pool_;

  // Of the object being submitted.
  Direction direction_ = Direction::kStore;
  CuStream stream_ = nullptr;
  bool is_pinned_ = false;
  Batch batch_;
  CopyLaunch launch_{};
};

}  // namespace larder::devices
