#include "geometry/copy_runs.h"

#include "base/check.h"
#include "tensors/dtype.h"

namespace larder::geometry {
namespace {

// Rows of vLLM's indexer cache: values and their scale, apart in the block, together in the object.
constexpr std::uint64_t kIndexerValueBytes = 128;
constexpr std::uint64_t kIndexerScaleBytes = 4;
constexpr std::uint64_t kIndexerRowBytes = kIndexerValueBytes + kIndexerScaleBytes;

// Where a block of a plane of a layer starts: the base of (plane, layer) + offset + block * step.
struct Placement {
  std::uint64_t step = 0;          // bytes
  std::uint64_t plane_offset = 0;  // of the second plane, where it shares the first one's tensor
  std::uint64_t layer_offset = 0;  // of each next layer, where all share one tensor
  bool has_one_tensor = false;     // of all layers
  bool has_plane_tensors = false;  // K's and V's
};

Placement placement_of(const KernelGroup& group, std::uint64_t block_bytes) {
  Placement placement;
  switch (group.format) {
    case KvFormat::kNbNlTwoBsNhHs:
    case KvFormat::kNbNlTwoNhBsHs:
      placement.step = 2 * group.layers * block_bytes;
      placement.plane_offset = block_bytes;
      placement.layer_offset = 2 * block_bytes;
      placement.has_one_tensor = true;
      return placement;
    case KvFormat::kNlXTwoNbBsNhHs:
    case KvFormat::kNlXTwoNbNhBsHs:
      placement.step = block_bytes;
      placement.plane_offset = group.blocks * block_bytes;
      return placement;
    case KvFormat::kNlXNbTwoBsNhHs:
    case KvFormat::kNlXNbTwoNhBsHs:
      placement.step = 2 * block_bytes;
      placement.plane_offset = block_bytes;
      return placement;
    case KvFormat::kTwoXNlXNbbsNhHs:
    case KvFormat::kTwoXNlXNbBsNhHs:
      placement.step = block_bytes;
      placement.has_plane_tensors = true;
      return placement;
    case KvFormat::kNlXNbBsHs:
    case KvFormat::kNlXNbbsOneHs:
    case KvFormat::kNlXNbNhBsTwoHs:
    case KvFormat::kNlXNbBsNhTwoHs:
    case KvFormat::kNlXNbNhBsCs:
    case KvFormat::kNlXNbBsNhCs:
    case KvFormat::kNlXNbBsvBss:
      placement.step =
          group.block_step != 0 ? group.block_step * tensors::item_bytes(group.dtype) : block_bytes;
      return placement;
  }
  LARDER_CHECK(false);
  return placement;
}

enum class BlockForm : std::uint8_t { kPlain, kHeadMajor, kIndexer };

// With one head or one slot there is nothing to transpose.
BlockForm form_of(const KernelGroup& group) {
  if (group.format == KvFormat::kNlXNbBsvBss) {
    return BlockForm::kIndexer;
  }
  return is_head_major(group.format) && group.heads > 1 && group.block_slots > 1
             ? BlockForm::kHeadMajor
             : BlockForm::kPlain;
}

std::uint64_t runs_per_block(const KernelGroup& group) {
  switch (form_of(group)) {
    case BlockForm::kHeadMajor:
      return group.heads;
    case BlockForm::kIndexer:
      return 2;
    case BlockForm::kPlain:
      break;
  }
  return 1;
}

class RunWriter {
 public:
  RunWriter(const KernelGroup& group, std::vector<CopyRun>& runs)
      : slots_(group.block_slots),
        heads_(group.heads),
        head_bytes_(group.head_size * tensors::item_bytes(group.dtype)),
        placement_(placement_of(group, block_bytes())),
        form_(form_of(group)),
        runs_(runs) {}

  std::uint64_t block_bytes() const { return slots_ * heads_ * head_bytes_; }

  const Placement& placement() const { return placement_; }

  // The blocks of one plane of one layer. `engine`: of block 0; `object`: of the first id's place.
  void write(std::uint64_t engine, std::uint64_t object, std::span<const std::int64_t> ids) {
    for (std::size_t i = 0; i < ids.size();) {
      const std::size_t count = form_ == BlockForm::kPlain ? neighbours(ids.subspan(i)) : 1;
      const std::uint64_t from = engine + static_cast<std::uint64_t>(ids[i]) * placement_.step;
      const std::uint64_t to = object + i * block_bytes();
      switch (form_) {
        case BlockForm::kPlain:
          add({from, to, block_bytes(), rows(count), placement_.step, block_bytes()});
          break;
        case BlockForm::kHeadMajor:
          add_heads(from, to);
          break;
        case BlockForm::kIndexer:
          add({from, to, kIndexerValueBytes, slots_, kIndexerValueBytes, kIndexerRowBytes});
          add({from + slots_ * kIndexerValueBytes,
               to + kIndexerValueBytes,
               kIndexerScaleBytes,
               slots_,
               kIndexerScaleBytes,
               kIndexerRowBytes});
          break;
      }
      i += count;
    }
  }

 private:
  static std::uint32_t rows(std::size_t count) { return static_cast<std::uint32_t>(count); }

  // How many ids from the first on follow each other.
  static std::size_t neighbours(std::span<const std::int64_t> ids) {
    std::size_t count = 1;
    while (count < ids.size() && ids[count] == ids[count - 1] + 1) {
      ++count;
    }
    return count;
  }

  void add_heads(std::uint64_t engine, std::uint64_t object) {
    for (std::uint64_t head = 0; head < heads_; ++head) {
      add({engine + head * slots_ * head_bytes_,
           object + head * head_bytes_,
           head_bytes_,
           slots_,
           head_bytes_,
           heads_ * head_bytes_});
    }
  }

  // Rows that touch on both sides are one piece.
  void add(CopyRun run) {
    if (run.engine_stride == run.bytes && run.object_stride == run.bytes) {
      run.bytes *= run.rows;
      run.rows = 1;
    }
    if (run.rows == 1) {
      run.engine_stride = 0;
      run.object_stride = 0;
    }
    runs_.push_back(run);
  }

  std::uint32_t slots_;
  std::uint64_t heads_;
  std::uint64_t head_bytes_;
  Placement placement_;
  BlockForm form_;
  std::vector<CopyRun>& runs_;
};

}  // namespace

void append_runs(const KernelGroup& group,
                 std::span<const std::uint64_t> bases,
                 const ObjectBlocks& blocks,
                 std::vector<CopyRun>& runs) {
  LARDER_CHECK(blocks.skipped <= blocks.ids.size());
  RunWriter writer(group, runs);
  const Placement& placement = writer.placement();
  const std::uint64_t layer_bytes =
      group.slots_per_object / group.block_slots * writer.block_bytes();
  std::uint64_t to = blocks.object + group.object_offset + blocks.skipped * writer.block_bytes();
  for (std::size_t plane = 0; plane < group.planes; ++plane) {
    for (std::size_t layer = 0; layer < group.layers; ++layer) {
      const std::size_t list = placement.has_plane_tensors ? plane * group.layers : 0;
      const std::size_t pointer = placement.has_one_tensor ? 0 : list + layer;
      const std::uint64_t from = bases[group.tensors[pointer]] + plane * placement.plane_offset +
                                 layer * placement.layer_offset;
      writer.write(from, to, blocks.ids.subspan(blocks.skipped));
      to += layer_bytes;
    }
  }
}

std::uint64_t runs_max(const KernelGroup& group) {
  // Sizes of an object whose bytes are limited: no product comes near an overflow.
  return std::uint64_t{group.planes} * group.layers * group.blocks_per_object *
         runs_per_block(group);
}

}  // namespace larder::geometry
