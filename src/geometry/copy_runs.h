// copy_runs.h - the plan compiler: which bytes of the engine's tensors are which bytes of an
// object.
//
// A run is a rectangle: `rows` pieces of `bytes` each, at a stride on either side. Token-major
// formats move a whole block in one piece, and neighbouring blocks of a layer coalesce into one;
// head-major formats need a run for each head of a block, with one row a slot. Every backend copies
// the same runs: the host with memcpy, CUDA as batch, 2-D copies or a kernel. Addresses are
// numbers, as device memory cannot be pointed into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "geometry/engine_cache.h"

namespace larder::geometry {

struct CopyRun {
  std::uint64_t engine = 0;  // address of the first piece
  std::uint64_t object = 0;
  std::uint64_t bytes = 0;  // of one piece
  std::uint32_t rows = 1;
  std::uint64_t engine_stride = 0;  // bytes from one piece to the next; unused with one row
  std::uint64_t object_stride = 0;

  bool operator==(const CopyRun&) const = default;
};

// One kernel group's part of one object.
struct ObjectBlocks {
  std::span<const std::int64_t> ids;  // of this object (ids_of())
  std::size_t skipped = 0;   // so many of the first are left out; the rest keep their places
  std::uint64_t object = 0;  // address of the object's first byte
};

// Appends the runs of these blocks. bases: addresses of the plan's tensors' first elements, by
// tensor index. REQUIRES: ids in [0, group.blocks), skipped <= ids.size().
void append_runs(const KernelGroup& group,
                 std::span<const std::uint64_t> bases,
                 const ObjectBlocks& blocks,
                 std::vector<CopyRun>& runs);

// No object has more runs of this group.
std::uint64_t runs_max(const KernelGroup& group);

}  // namespace larder::geometry
