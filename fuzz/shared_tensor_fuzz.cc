// Any bytes as a tensor handle: what is read names one segment and nothing else, lies inside its
// memory, and any plan made of it copies from inside of the tensor. The first byte chooses how the
// tensor is registered.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "devices/shared_tensor.h"
#include "geometry/block_lists.h"
#include "geometry/copy_runs.h"

namespace {

using larder::devices::CudaMemoryHandle;
using larder::devices::SharedSegmentHandle;
using larder::devices::TensorHandle;

constexpr std::uint64_t kBase = std::uint64_t{1} << 62U;
constexpr std::uint64_t kSlotsMax = 4096;  // rows and runs grow with them

bool is_segment_name(const std::string& name) {
  return name.size() > 1 && name.size() <= 255 && name[0] == '/' &&
         std::count(name.begin(), name.end(), '/') == 1 &&
         std::count(name.begin(), name.end(), '\0') == 0;
}

std::uint64_t memory_bytes(const TensorHandle& handle) {
  if (const auto* segment = std::get_if<SharedSegmentHandle>(&handle.memory); segment != nullptr) {
    LARDER_CHECK(handle.device_uuid == "cpu");
    LARDER_CHECK(segment->bytes == 0 ? segment->name.empty() : is_segment_name(segment->name));
    return segment->bytes;
  }
  const auto& cuda = std::get<CudaMemoryHandle>(handle.memory);
  LARDER_CHECK(handle.device_uuid.size() == 36);
  LARDER_CHECK(!cuda.counter || is_segment_name(cuda.counter->file_name));
  LARDER_CHECK(cuda.block_offset + cuda.storage_bytes < std::uint64_t{1} << 63U);
  return cuda.storage_bytes;
}

void check_runs(const larder::geometry::KernelGroup& group, std::uint64_t tensor_bytes) {
  const auto last = static_cast<std::int64_t>(group.blocks - 1);
  const std::vector<std::int64_t> ids(group.blocks_per_object, last);
  std::vector<larder::geometry::CopyRun> runs;
  const std::vector<std::uint64_t> bases = {kBase};
  larder::geometry::append_runs(group, bases, {ids}, runs);
  std::uint64_t copied = 0;
  for (const larder::geometry::CopyRun& run : runs) {
    const std::uint64_t more_rows = run.rows - 1;
    const std::uint64_t engine_end = run.engine + more_rows * run.engine_stride + run.bytes;
    const std::uint64_t object_end = run.object + more_rows * run.object_stride + run.bytes;
    LARDER_CHECK(run.engine >= kBase && engine_end <= kBase + tensor_bytes);
    LARDER_CHECK(object_end <= group.object_bytes);
    copied += run.bytes * run.rows;
  }
  LARDER_CHECK(copied == group.object_bytes);
}

void check_plan(const TensorHandle& handle, std::uint8_t choice) {
  larder::geometry::EngineDescription engine;
  engine.tensors = {handle.tensor};
  engine.engine_type = static_cast<larder::geometry::EngineType>(choice % 5);
  engine.is_since_055 = (choice & 8U) != 0;
  engine.on_host = (choice & 16U) != 0;
  engine.hints.kv_layout = (choice & 32U) != 0 ? "HND" : "NHD";
  engine.hints.tokens_per_block = 4;
  engine.hints.kv_heads = 2;
  engine.hints.head_size = 3;
  const auto plan = larder::geometry::plan_of(engine, {});
  if (!plan) {
    return;
  }
  for (const larder::geometry::KernelGroup& group : plan->kernel_groups) {
    const std::uint64_t rows = std::uint64_t{group.planes} * group.layers * group.heads;
    if (rows * group.blocks_per_object <= kSlotsMax) {
      check_runs(group, larder::geometry::storage_bytes(handle.tensor, 0).value());
    }
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const auto handle =
      larder::devices::read_tensor_handle(std::as_bytes(std::span(bytes, size).subspan(1)));
  if (!handle) {
    return 0;
  }
  const auto needed = larder::geometry::storage_bytes(handle->tensor, handle->storage_offset);
  LARDER_CHECK(needed && *needed <= memory_bytes(*handle));
  check_plan(*handle, bytes[0]);
  return 0;
}
