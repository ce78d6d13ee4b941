#include "devices/run_submitter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

namespace larder::devices {

namespace {

using geometry::CopyRun;

// A run whose rows touch on both sides is one row.
CopyRun joined(const CopyRun& run) {
  if (run.rows > 1 && run.engine_stride == run.bytes && run.object_stride == run.bytes) {
    return {.engine = run.engine, .object = run.object, .bytes = run.bytes * run.rows};
  }
  return run;
}

// Nothing when it has more units than the kernel counts.
std::optional<CopyRectangle> rectangle_of(const CopyRun& run, std::uint64_t object_shift) {
  const std::uint64_t object = run.object + object_shift;
  const std::uint32_t unit =
      unit_bytes_of(run.engine | object | run.bytes | run.engine_stride | run.object_stride);
  const std::uint64_t row_units = run.bytes / unit;
  if (row_units > kUnitsPerRectangleMax || run.rows > kUnitsPerRectangleMax / row_units) {
    return std::nullopt;
  }
  return CopyRectangle{.engine = run.engine,
                       .object = object,
                       .engine_stride = run.engine_stride,
                       .object_stride = run.object_stride,
                       .rows = run.rows,
                       .row_units = static_cast<std::uint32_t>(row_units),
                       .unit_bytes = unit};
}

std::uint32_t blocks_for(const CopyLaunch& launch) {
  std::uint32_t units_max = 1;
  for (std::uint32_t i = 0; i < launch.count; ++i) {
    const CopyRectangle& rectangle = launch.rectangles[i];
    units_max = std::max(units_max, rectangle.rows * rectangle.row_units);
  }
  const std::uint32_t blocks = ((units_max - 1) / kThreadsPerBlock) + 1;
  return std::min(blocks, kBlocksPerRectangleMax);
}

}  // namespace

Result<void> RunSubmitter::submit(const Object& object, CuStream stream) {
  direction_ = object.direction;
  stream_ = stream;
  is_pinned_ = pool_.covers(object.bytes);
  clear_batch();  // a failure may have left something
  launch_.count = 0;
  launch_.to_engine = direction_ == Direction::kRetrieve ? 1 : 0;
  for (const CopyRun& unjoined : object.runs) {
    const CopyRun run = joined(unjoined);
    if (run.rows == 0 || run.bytes == 0) {
      continue;
    }
    auto submitted = run.rows == 1 ? submit_row(run) : submit_rows(run);
    if (!submitted) {
      return submitted;
    }
  }
  if (auto flushed = flush_batch(); !flushed) {
    return flushed;
  }
  return flush_kernel();
}

Result<void> RunSubmitter::submit_row(const CopyRun& run) {
  const bool is_store = direction_ == Direction::kStore;
  const CuAddress target = is_store ? run.object : run.engine;
  const CuAddress source = is_store ? run.engine : run.object;
  if (!is_pinned_ || !has_batches()) {
    return driver_.check(driver_.copy(target, source, run.bytes, stream_), "cuMemcpyAsync");
  }
  batch_.targets.push_back(target);
  batch_.sources.push_back(source);
  batch_.bytes.push_back(run.bytes);
  return batch_.bytes.size() < kBatchMax ? Result<void>() : flush_batch();
}

Result<void> RunSubmitter::flush_batch() {
  const std::size_t count = batch_.bytes.size();
  if (count == 0) {
    return {};
  }
  CuBatchAttributes attributes;
  std::size_t first = 0;
  CuResult result = kCuSuccess;
  if (driver_.copy_batch != nullptr) {
    result = driver_.copy_batch(batch_.targets.data(),
                                batch_.sources.data(),
                                batch_.bytes.data(),
                                count,
                                &attributes,
                                &first,
                                1,
                                stream_);
  } else {
    std::size_t failed = 0;
    result = driver_.copy_batch_128(batch_.targets.data(),
                                    batch_.sources.data(),
                                    batch_.bytes.data(),
                                    count,
                                    &attributes,
                                    &first,
                                    1,
                                    &failed,
                                    stream_);
  }
  clear_batch();
  return driver_.check(result, "cuMemcpyBatchAsync");
}

void RunSubmitter::clear_batch() {
  batch_.targets.clear();
  batch_.sources.clear();
  batch_.bytes.clear();
}

bool RunSubmitter::has_batches() const {
  return driver_.copy_batch != nullptr || driver_.copy_batch_128 != nullptr;
}

Result<void> RunSubmitter::submit_each_row(const CopyRun& run) {
  Result<void> submitted;
  for (std::uint32_t row = 0; submitted && row < run.rows; ++row) {
    submitted = submit_row({.engine = run.engine + (row * run.engine_stride),
                            .object = run.object + (row * run.object_stride),
                            .bytes = run.bytes});
  }
  return submitted;
}

Result<void> RunSubmitter::submit_rows(const CopyRun& run) {
  const bool is_long = run.bytes >= kLongRowBytes;
  if (is_pinned_ && is_long && has_batches()) {
    return submit_each_row(run);
  }
  if (!is_pinned_ || is_long || kernel_ == nullptr) {
    return copy_rows_2d(run);
  }
  const auto rectangle = rectangle_of(run, pool_.device_shift());
  if (!rectangle) {
    return copy_rows_2d(run);
  }
  launch_.rectangles[launch_.count] = *rectangle;
  launch_.count += 1;
  return launch_.count < kRectanglesPerLaunch ? Result<void>() : flush_kernel();
}

Result<void> RunSubmitter::flush_kernel() {
  if (launch_.count == 0) {
    return {};
  }
  std::array<void*, 1> parameters{&launch_};
  const CuResult result = driver_.launch_kernel(kernel_,
                                                blocks_for(launch_),
                                                launch_.count,
                                                1,
                                                kThreadsPerBlock,
                                                1,
                                                1,
                                                0,
                                                stream_,
                                                parameters.data(),
                                                nullptr);
  launch_.count = 0;
  return driver_.check(result, "cuLaunchKernel");
}

Result<void> RunSubmitter::copy_rows_2d(const CopyRun& run) const {
  CuCopy2d copy;
  copy.width = run.bytes;
  copy.height = run.rows;
  if (direction_ == Direction::kStore) {
    copy.source_memory = kCuMemoryDevice;
    copy.source_device = run.engine;
    copy.source_pitch = run.engine_stride;
    copy.target_memory = kCuMemoryHost;
    copy.target_host = std::bit_cast<void*>(run.object);
    copy.target_pitch = run.object_stride;
  } else {
    copy.source_memory = kCuMemoryHost;
    copy.source_host = std::bit_cast<const void*>(run.object);
    copy.source_pitch = run.object_stride;
    copy.target_memory = kCuMemoryDevice;
    copy.target_device = run.engine;
    copy.target_pitch = run.engine_stride;
  }
  return driver_.check(driver_.copy_2d(&copy, stream_), "cuMemcpy2DAsync");
}

}  // namespace larder::devices
