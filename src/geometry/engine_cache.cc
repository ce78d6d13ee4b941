#include "geometry/engine_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "geometry/checked.h"
#include "geometry/copy_runs.h"
#include "geometry/detection.h"

namespace larder::geometry {
namespace {

constexpr std::size_t kGroupsMax = 255;
constexpr std::int64_t kNoGroup = -1;

// A run takes some 50 bytes, so an object must not be cut into arbitrarily small ones. Real caches
// are far from this: one head of one token is a run of 256 bytes at worst, and has its floor.
constexpr std::uint64_t kRunsPerObjectMax = std::uint64_t{1} << 20;
constexpr std::uint64_t kRunsPerObjectFree = std::uint64_t{1} << 18;  // however small they are
constexpr std::uint64_t kRunBytesMin = 512;                           // on average, beyond that

Error invalid(std::string what) {
  return Error{Code::kInvalid, std::move(what)};
}

using Layers = std::vector<std::optional<Layer>>;

// The engine's group of each layer; kNoGroup for layers in none.
Result<std::vector<std::int64_t>> engine_groups_of(const EngineDescription& engine,
                                                   std::size_t layers) {
  std::vector<std::int64_t> groups(layers, engine.groups.empty() ? 0 : kNoGroup);
  for (const LayerGroup& group : engine.groups) {
    if (group.engine_group_id < 0) {
      return invalid("a negative engine group id");
    }
    for (const std::int64_t index : group.layer_indices) {
      if (index < 0 || static_cast<std::uint64_t>(index) >= layers) {
        return invalid("a group of layer " + std::to_string(index) + " of " +
                       std::to_string(layers));
      }
      std::int64_t& of_layer = groups[static_cast<std::size_t>(index)];
      if (of_layer != kNoGroup) {
        return invalid("layer " + std::to_string(index) + " in two groups");
      }
      of_layer = group.engine_group_id;
    }
  }
  return groups;
}

bool are_copied_alike(const KernelGroup& group, const Layer& layer, std::int64_t engine_group_id) {
  return group.format == layer.format && group.dtype == layer.dtype &&
         group.block_slots == layer.block_slots && group.heads == layer.heads &&
         group.head_size == layer.head_size && group.engine_group_id == engine_group_id;
}

KernelGroup group_of(const Layer& layer, std::int64_t engine_group_id) {
  KernelGroup group;
  group.format = layer.format;
  group.dtype = layer.dtype;
  group.planes = planes_of(layer.format);
  group.blocks = layer.blocks;
  group.block_slots = layer.block_slots;
  group.heads = layer.heads;
  group.head_size = layer.head_size;
  group.block_step = layer.block_step;
  group.engine_group_id = engine_group_id;
  return group;
}

// One block id names the same bytes of every layer, so the layers' blocks must lie alike.
Result<void> add_layer(KernelGroup& group, std::uint32_t index, const Layer& layer) {
  if (group.blocks != layer.blocks || group.block_step != layer.block_step) {
    return invalid("layer " + std::to_string(index) + " has other blocks than its group");
  }
  group.layer_indices.push_back(index);
  ++group.layers;
  return {};
}

// Of one tensor with all layers, one a layer, or all K then all V.
void set_tensors(KernelGroup& group, const Layers& layers) {
  if (group.format == KvFormat::kNbNlTwoNhBsHs) {
    group.tensors = {0};
    return;
  }
  const std::size_t lists = layers[group.layer_indices[0]]->tensors.size();
  for (std::size_t list = 0; list < lists; ++list) {
    for (const std::uint32_t index : group.layer_indices) {
      group.tensors.push_back(layers[index]->tensors[list]);
    }
  }
}

// In the order of their first layers.
Result<std::vector<KernelGroup>> kernel_groups_of(const Layers& layers,
                                                  const std::vector<std::int64_t>& engine_groups) {
  std::vector<KernelGroup> groups;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::int64_t id = engine_groups[i];
    if (id == kNoGroup) {
      continue;
    }
    auto group = std::find_if(groups.begin(), groups.end(), [&](const KernelGroup& known) {
      return are_copied_alike(known, *layers[i], id);
    });
    if (group == groups.end()) {
      if (groups.size() == kGroupsMax) {
        return Error{Code::kTooLarge, "more groups than " + std::to_string(kGroupsMax)};
      }
      group = groups.insert(groups.end(), group_of(*layers[i], id));
    }
    if (Result<void> added = add_layer(*group, static_cast<std::uint32_t>(i), *layers[i]); !added) {
      return added.error();
    }
  }
  for (KernelGroup& group : groups) {
    const bool is_of_one_tensor = group.format == KvFormat::kNbNlTwoNhBsHs;
    if (is_of_one_tensor && group.layers != layers.size()) {
      return Error{Code::kUnsupported, "groups within one tensor of all layers"};
    }
    set_tensors(group, layers);
  }
  return groups;
}

// The engine grouped its layers by the same rules; block lists are by its groups.
Result<void> check_engine_groups(const EngineDescription& engine,
                                 const std::vector<KernelGroup>& groups) {
  if (engine.groups.empty()) {
    return {};
  }
  if (engine.groups.size() != groups.size()) {
    return invalid(std::to_string(engine.groups.size()) +
                   " groups of layers where the tensors are " + std::to_string(groups.size()));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::vector<std::int64_t>& said = engine.groups[i].layer_indices;
    if (!std::equal(said.begin(),
                    said.end(),
                    groups[i].layer_indices.begin(),
                    groups[i].layer_indices.end())) {
      return invalid("group " + std::to_string(i) + " is of other layers than its tensors");
    }
  }
  return {};
}

Result<std::uint32_t> tokens_per_block_of(const KernelGroup& group, const LayerGroup& said) {
  if (said.tokens_per_block <= 0) {
    return group.block_slots;
  }
  if (said.tokens_per_block % static_cast<std::int64_t>(group.block_slots) != 0) {
    return invalid("tokens_per_block " + std::to_string(said.tokens_per_block) +
                   " is no multiple of the block's slots");
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (said.tokens_per_block > kMax) {
    return Error{Code::kTooLarge, "tokens_per_block"};
  }
  return static_cast<std::uint32_t>(said.tokens_per_block);
}

// Which tokens and blocks of a chunk are stored.
Result<void> set_tokens(KernelGroup& group, const LayerGroup& said, std::uint32_t chunk_tokens) {
  const Result<std::uint32_t> tokens_per_block = tokens_per_block_of(group, said);
  if (!tokens_per_block) {
    return tokens_per_block.error();
  }
  group.tokens_per_block = *tokens_per_block;
  if (chunk_tokens % group.tokens_per_block != 0) {
    return invalid("chunks of " + std::to_string(chunk_tokens) + " tokens in blocks of " +
                   std::to_string(group.tokens_per_block));
  }
  std::uint32_t stored_tokens = chunk_tokens;
  if (said.sliding_window_tokens > 0) {
    constexpr std::int64_t kMax = std::numeric_limits<std::uint32_t>::max();
    const auto window = static_cast<std::uint32_t>(std::min(said.sliding_window_tokens, kMax));
    group.window_tokens = window;
    stored_tokens = std::min(chunk_tokens, window);
  }
  if (stored_tokens % group.tokens_per_block != 0) {
    return invalid("a window of " + std::to_string(stored_tokens) + " tokens in blocks of " +
                   std::to_string(group.tokens_per_block));
  }
  group.blocks_per_chunk = chunk_tokens / group.tokens_per_block;
  group.blocks_per_object = stored_tokens / group.tokens_per_block;
  group.slots_per_object = group.blocks_per_object * group.block_slots;
  return {};
}

Result<std::uint64_t> bytes_of(const KernelGroup& group) {
  const std::optional<std::uint64_t> bytes = product({group.planes,
                                                      group.layers,
                                                      group.slots_per_object,
                                                      group.heads,
                                                      group.head_size,
                                                      tensors::item_bytes(group.dtype)});
  return bytes ? Result<std::uint64_t>(*bytes) : Error{Code::kTooLarge, "an object's bytes"};
}

// What is stored as one object.
struct Bucket {
  std::int64_t tag = 0;
  bool is_recurrent = false;
  std::optional<std::uint32_t> window_chunks;
  std::vector<std::uint32_t> kernel_groups;
};

std::optional<std::uint32_t> window_chunks_of(const KernelGroup& group,
                                              std::uint32_t chunk_tokens) {
  if (!group.window_tokens) {
    return std::nullopt;
  }
  return *group.window_tokens / chunk_tokens + (*group.window_tokens % chunk_tokens != 0 ? 1 : 0);
}

// By the first kernel group; those with a tag last, so that the others' numbers do not depend on
// them.
std::vector<Bucket> separate_buckets(const EngineDescription& engine,
                                     const std::vector<KernelGroup>& groups,
                                     std::uint32_t chunk_tokens) {
  std::vector<Bucket> buckets;
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    const LayerGroup said = engine.groups.empty() ? LayerGroup{} : engine.groups[i];
    const std::optional<std::uint32_t> window = window_chunks_of(groups[i], chunk_tokens);
    auto bucket = std::find_if(buckets.begin(), buckets.end(), [&](const Bucket& known) {
      return known.tag == said.object_group_tag && known.is_recurrent == said.is_recurrent &&
             known.window_chunks == window;
    });
    if (bucket == buckets.end()) {
      bucket = buckets.insert(buckets.end(),
                              Bucket{said.object_group_tag, said.is_recurrent, window, {}});
    }
    bucket->kernel_groups.push_back(i);
  }
  std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) {
    return a.tag == 0 && b.tag != 0;
  });
  return buckets;
}

Result<std::vector<Bucket>> buckets_of(const EngineDescription& engine,
                                       const std::vector<KernelGroup>& groups,
                                       const GroupingRules& rules) {
  if (rules.separate_object_groups) {
    return separate_buckets(engine, groups, rules.chunk_tokens);
  }
  // A state is kept for few chunks, and must not be promised for those that only have the rest.
  if (std::any_of(engine.groups.begin(), engine.groups.end(), [](const LayerGroup& group) {
        return group.is_recurrent;
      })) {
    return Error{Code::kUnsupported, "recurrent state without separate object groups"};
  }
  Bucket all;
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    all.kernel_groups.push_back(i);
  }
  return std::vector<Bucket>{std::move(all)};
}

// "bfloat16[planes, layers, slots, heads, head size]". The rows of the indexer's format are not
// those of a plain tensor of the same sizes.
std::string piece_of(const KernelGroup& group) {
  std::string text(tensors::name_of(group.dtype));
  text += '[';
  for (const std::uint32_t size :
       {group.planes, group.layers, group.slots_per_object, group.heads}) {
    text += std::to_string(size) + ", ";
  }
  text += group.format == KvFormat::kNlXNbBsvBss ? "128 + 4" : std::to_string(group.head_size);
  return text + ']';
}

// vLLM keeps block 0 of every group for "no KV", whatever the group says of itself: layers with a
// recurrent state have no mark of their own before LMCache 0.5.3. Other engines may name it only
// where a window or a state has moved on.
bool may_be_vacant(EngineType engine,
                   const Bucket& bucket,
                   const std::vector<KernelGroup>& groups) {
  return engine == EngineType::kVllm || bucket.is_recurrent ||
         std::any_of(bucket.kernel_groups.begin(),
                     bucket.kernel_groups.end(),
                     [&](std::uint32_t index) { return groups[index].window_tokens.has_value(); });
}

// Places the bucket's kernel groups in the object, one after the other.
Result<ObjectGroup> object_group_of(const Bucket& bucket,
                                    std::uint32_t number,
                                    std::vector<KernelGroup>& groups) {
  ObjectGroup object;
  object.kernel_groups = bucket.kernel_groups;
  object.window_chunks = bucket.window_chunks;
  std::uint64_t bytes = 0;
  for (const std::uint32_t index : bucket.kernel_groups) {
    KernelGroup& group = groups[index];
    const Result<std::uint64_t> part = bytes_of(group);
    if (!part) {
      return part.error();
    }
    group.object_group = number;
    group.object_offset = bytes;
    group.object_bytes = *part;
    bytes += *part;
    if (bytes > kSizeMax) {
      return Error{Code::kTooLarge, "an object's bytes"};
    }
    object.layout.pieces += (object.layout.pieces.empty() ? "" : " + ") + piece_of(group);
  }
  object.layout.dtype = tensors::Dtype::kUint8;
  object.layout.shape = {static_cast<std::int64_t>(bytes)};
  return object;
}

// The copies that an object comes to, at worst.
Result<void> check_runs(const CachePlan& plan, const ObjectGroup& object) {
  std::uint64_t runs = 0;
  std::uint64_t bytes = 0;
  for (const std::uint32_t index : object.kernel_groups) {
    const KernelGroup& group = plan.kernel_groups[index];
    runs += runs_max(group);
    bytes += group.object_bytes;
  }
  if (runs > kRunsPerObjectMax || (runs > kRunsPerObjectFree && bytes / runs < kRunBytesMin)) {
    return Error{
        Code::kTooLarge,
        "an object of " + std::to_string(bytes) + " bytes in " + std::to_string(runs) + " pieces"};
  }
  return {};
}

}  // namespace

Result<std::size_t> storage_bytes(const EngineTensor& tensor, std::int64_t storage_offset) {
  if (tensor.shape.size() != tensor.stride.size() || storage_offset < 0) {
    return invalid("tensor: shape, stride and offset do not fit together");
  }
  std::uint64_t end = static_cast<std::uint64_t>(storage_offset) + 1;
  bool is_empty = false;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] < 0 || tensor.stride[i] < 0) {
      return invalid("tensor: a negative size or stride");
    }
    is_empty = is_empty || tensor.shape[i] == 0;
  }
  if (is_empty) {
    return std::size_t{0};
  }
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    const std::optional<std::uint64_t> reach =
        product({static_cast<std::uint64_t>(tensor.shape[i] - 1),
                 static_cast<std::uint64_t>(tensor.stride[i])});
    if (!reach || end > kSizeMax) {
      return Error{Code::kTooLarge, "tensor: more bytes than can be counted"};
    }
    end += *reach;
  }
  const std::optional<std::uint64_t> bytes = product({end, tensors::item_bytes(tensor.dtype)});
  return bytes ? Result<std::size_t>(*bytes)
               : Error{Code::kTooLarge, "tensor: more bytes than can be counted"};
}

Result<CachePlan> plan_of(const EngineDescription& engine, const GroupingRules& rules) {
  if (rules.chunk_tokens == 0) {
    return invalid("chunks without tokens");
  }
  if (engine.groups.size() > kGroupsMax) {
    return Error{Code::kTooLarge, "more groups than " + std::to_string(kGroupsMax)};
  }
  const Result<Layers> layers = detect_layers(engine);
  if (!layers) {
    return layers.error();
  }
  const Result<std::vector<std::int64_t>> engine_groups = engine_groups_of(engine, layers->size());
  if (!engine_groups) {
    return engine_groups.error();
  }
  Result<std::vector<KernelGroup>> groups = kernel_groups_of(*layers, *engine_groups);
  if (!groups) {
    return groups.error();
  }
  if (Result<void> agreed = check_engine_groups(engine, *groups); !agreed) {
    return agreed.error();
  }
  CachePlan plan{std::move(groups).value(), {}};
  for (std::size_t i = 0; i < plan.kernel_groups.size(); ++i) {
    const LayerGroup said = engine.groups.empty() ? LayerGroup{} : engine.groups[i];
    if (Result<void> set = set_tokens(plan.kernel_groups[i], said, rules.chunk_tokens); !set) {
      return set.error();
    }
  }
  const Result<std::vector<Bucket>> buckets = buckets_of(engine, plan.kernel_groups, rules);
  if (!buckets) {
    return buckets.error();
  }
  for (const Bucket& bucket : *buckets) {
    const auto number = static_cast<std::uint32_t>(plan.object_groups.size());
    Result<ObjectGroup> object = object_group_of(bucket, number, plan.kernel_groups);
    if (!object) {
      return object.error();
    }
    object->may_be_vacant = may_be_vacant(engine.engine_type, bucket, plan.kernel_groups);
    if (Result<void> checked = check_runs(plan, *object); !checked) {
      return checked.error();
    }
    plan.object_groups.push_back(std::move(object).value());
  }
  return plan;
}

}  // namespace larder::geometry
