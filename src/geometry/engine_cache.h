// engine_cache.h - an engine's paged KV cache: what its registration says, and the plan of how
// chunks of it become objects.
//
// Layers that are copied alike (same format, sizes, dtype and engine group) form a kernel group;
// STORE and RETRIEVE carry one list of block ids for each. Kernel groups whose layers are needed
// for the same tokens form an object group; a chunk is stored as one object for each of these. An
// object's bytes are its kernel groups one after the other, each a dense
// [planes, layers, slots, heads * head size], without padding.
//
// Sources: LMCache 0.5.2 to 0.5.6, whose clients choose the formats and the order of the lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "geometry/kv_format.h"
#include "tensors/dtype.h"
#include "tensors/layout.h"

namespace larder::geometry {

// A tensor as registered: dimensions in physical order (by decreasing stride), strides in elements.
struct EngineTensor {
  tensors::Dtype dtype{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;
};

// Bytes from the storage's start to the end of the last element: what the storage must have. 0 for
// a tensor without elements. kInvalid: dimensions or strides that are negative or differ in number;
// kTooLarge: beyond 62 bits.
Result<std::size_t> storage_bytes(const EngineTensor& tensor, std::int64_t storage_offset);

enum class EngineType : std::uint8_t { kVllm, kSglang, kTrtllm, kMock, kAtom };

struct LayoutHints {
  std::string kv_layout;       // "NHD", "HND", "BLHNC", "BLNHC"; "" when absent
  std::string kv_list_layout;  // SGLang from 0.5.5 on: "k_v", "unified"; "" when absent
  std::optional<std::int64_t> kv_heads;
  std::optional<std::int64_t> tokens_per_block;
  std::optional<std::int64_t> head_size;
};

// The engine's own grouping of layers; layers in no group are not cached.
struct LayerGroup {
  std::int64_t engine_group_id = 0;
  std::vector<std::int64_t> layer_indices;
  std::int64_t tokens_per_block = 0;        // 0: as the tensor's blocks
  std::int64_t sliding_window_tokens = -1;  // -1: full attention
  std::int64_t object_group_tag = 0;        // other than 0: an object group of its own
  bool is_recurrent = false;
};

struct EngineDescription {
  std::vector<EngineTensor> tensors;  // one a layer, or as the engine type has it
  EngineType engine_type = EngineType::kVllm;
  LayoutHints hints;
  std::vector<LayerGroup> groups;  // empty: one group of all layers
  bool on_host = false;            // the tensors lie in host memory
  bool is_since_055 = false;  // how clients from 0.5.5 on are read: the hint counts on the host too
};

struct GroupingRules {
  std::uint32_t chunk_tokens = 256;
  bool separate_object_groups = true;  // --separate-object-groups; off: one object a chunk
};

struct KernelGroup {
  KvFormat format{};
  tensors::Dtype dtype{};
  std::uint32_t planes = 0;
  std::uint32_t layers = 0;       // in this group; formats 0 and 8: all of the tensor's
  std::uint64_t blocks = 0;       // valid ids are [0, blocks)
  std::uint32_t block_slots = 0;  // rows of a block
  std::uint32_t heads = 0;
  std::uint32_t head_size = 0;   // values; fused formats: of K and V together
  std::uint64_t block_step = 0;  // elements from one block to the next where the format allows
                                 // padding (3 and 12 to 14), else 0
  std::int64_t engine_group_id = 0;
  std::vector<std::uint32_t> layer_indices;
  std::vector<std::uint32_t> tensors;  // index of the tensor behind each base pointer: one a layer,
                                       // one in all (0, 8), or all K then all V (9)
  std::uint32_t tokens_per_block = 0;  // what one block id stands for
  std::optional<std::uint32_t> window_tokens;  // sliding window

  // Of one chunk.
  std::uint32_t blocks_per_chunk = 0;  // ids of the list
  std::uint32_t blocks_per_object =
      0;  // of them the last ones are stored: fewer when the window is shorter
  std::uint32_t slots_per_object = 0;

  std::uint32_t object_group = 0;
  std::size_t object_offset = 0;  // bytes from the object's start
  std::size_t object_bytes = 0;   // of this group's part
};

struct ObjectGroup {
  std::vector<std::uint32_t> kernel_groups;
  std::optional<std::uint32_t> window_chunks;  // a hit needs only the last so many chunks
  bool may_be_vacant = false;  // its chunks may name blocks that hold nothing (uses_block())
  tensors::Layout layout;      // of an object; never that of an engine that copies its own blocks
};

struct CachePlan {
  std::vector<KernelGroup> kernel_groups;  // in the order of the lists of block ids
  std::vector<ObjectGroup> object_groups;
};

// kUnsupported: a format that is not served, the detail says which and why. kInvalid: tensors,
// groups or sizes that do not fit each other.
Result<CachePlan> plan_of(const EngineDescription& engine, const GroupingRules& rules);

}  // namespace larder::geometry
