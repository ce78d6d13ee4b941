#include "geometry/detection.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "geometry/checked.h"

namespace larder::geometry {
namespace {

// vLLM's indexer cache of sparse attention: 128 values and a float32 scale a token.
constexpr std::int64_t kIndexerRowBytes = 132;

Error invalid(std::string what) {
  return Error{Code::kInvalid, std::move(what)};
}

Error unsupported(std::string what) {
  return Error{Code::kUnsupported, std::move(what)};
}

std::string shape_text(const EngineTensor& tensor) {
  std::string text = "[";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += std::to_string(tensor.shape[i]);
  }
  return text + "]";
}

// A tensor whose dimensions are in the order of memory and dense, but for the step of the first.
struct Physical {
  tensors::Dtype dtype{};
  std::vector<std::uint64_t> shape;
  std::uint64_t step = 0;  // elements from one index of the first dimension to the next
  bool is_padded = false;
};

// Elements of one index of dimension `first - 1`.
std::uint64_t elements_from(const std::vector<std::uint64_t>& shape, std::size_t first) {
  return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(first),
                         shape.end(),
                         std::uint64_t{1},
                         std::multiplies<>());
}

// The stride of a dimension of one element means nothing.
bool is_dense_from(const EngineTensor& tensor, std::size_t first) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > first;) {
    if (tensor.shape[i] != 1 && tensor.stride[i] != expected) {
      return false;
    }
    expected *= tensor.shape[i];
  }
  return true;
}

Result<void> check_sizes(const EngineTensor& tensor) {
  if (tensor.shape.empty() || tensor.shape.size() > tensors::kDimensionsMax ||
      tensor.shape.size() != tensor.stride.size()) {
    return invalid("tensor: number of dimensions");
  }
  const auto is_negative = [](std::int64_t number) { return number < 0; };
  if (std::any_of(tensor.stride.begin(), tensor.stride.end(), is_negative)) {
    return invalid("tensor: a negative stride");
  }
  std::uint64_t bytes = tensors::item_bytes(tensor.dtype);
  for (const std::int64_t size : tensor.shape) {
    if (size < 1) {
      return invalid("tensor without elements: " + shape_text(tensor));
    }
    const std::optional<std::uint64_t> grown = product({bytes, static_cast<std::uint64_t>(size)});
    if (!grown) {
      return Error{Code::kTooLarge, "tensor: " + shape_text(tensor)};
    }
    bytes = *grown;
  }
  return {};
}

// Clients sort dimensions by their strides before they register a tensor; one that was not, or
// whose first dimension is padded, is sorted here. Dimensions of one element go inside of their
// equals.
EngineTensor sorted_by_stride(const EngineTensor& tensor) {
  std::vector<std::size_t> order(tensor.shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&tensor](std::size_t a, std::size_t b) {
    if (tensor.stride[a] != tensor.stride[b]) {
      return tensor.stride[a] > tensor.stride[b];
    }
    return tensor.shape[a] != 1 && tensor.shape[b] == 1;
  });
  EngineTensor sorted{tensor.dtype, {}, {}};
  for (const std::size_t i : order) {
    sorted.shape.push_back(tensor.shape[i]);
    sorted.stride.push_back(tensor.stride[i]);
  }
  return sorted;
}

Result<Physical> physical(const EngineTensor& registered) {
  if (Result<void> sane = check_sizes(registered); !sane) {
    return sane.error();
  }
  const EngineTensor tensor =
      is_dense_from(registered, 0) ? registered : sorted_by_stride(registered);
  if (!is_dense_from(tensor, 1)) {
    return unsupported("tensor with gaps inside its blocks: " + shape_text(tensor));
  }
  Physical to{tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, 0, false};
  const std::uint64_t inner = elements_from(to.shape, 1);
  const auto step = static_cast<std::uint64_t>(tensor.stride[0]);
  to.step = to.shape[0] == 1 ? inner : step;
  if (to.step < inner) {
    return invalid("tensor whose blocks overlap: " + shape_text(tensor));
  }
  to.is_padded = to.step > inner;
  if (!product({to.step, to.shape[0], tensors::item_bytes(to.dtype)})) {
    return Error{Code::kTooLarge, "tensor: " + shape_text(tensor)};
  }
  return to;
}

bool allows_padding(KvFormat format) {
  return format == KvFormat::kNlXNbBsHs || format == KvFormat::kNlXNbNhBsCs ||
         format == KvFormat::kNlXNbBsNhCs || format == KvFormat::kNlXNbBsvBss;
}

struct LayerShape {
  KvFormat format{};
  std::uint64_t blocks = 0;
  std::uint64_t block_slots = 0;
  std::uint64_t heads = 0;
  std::uint64_t head_size = 0;
};

Result<Layer> layer_of(const Physical& tensor, const LayerShape& shape) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (shape.block_slots > kMax || shape.heads > kMax || shape.head_size > kMax) {
    return Error{Code::kTooLarge, "tensor: a dimension"};
  }
  if (tensor.is_padded && !allows_padding(shape.format)) {
    return unsupported(std::string(name_of(shape.format)) + " with padded blocks");
  }
  Layer layer;
  layer.format = shape.format;
  layer.dtype = tensor.dtype;
  layer.blocks = shape.blocks;
  layer.block_slots = static_cast<std::uint32_t>(shape.block_slots);
  layer.heads = static_cast<std::uint32_t>(shape.heads);
  layer.head_size = static_cast<std::uint32_t>(shape.head_size);
  layer.block_step = allows_padding(shape.format) ? tensor.step : 0;
  return layer;
}

// [..., BS, NH, HS] or [..., NH, BS, HS] from dimension `at` on.
LayerShape split_at(const Physical& tensor, KvFormat format, std::size_t at) {
  LayerShape shape;
  shape.format = format;
  const bool head_major = is_head_major(format);
  shape.block_slots = tensor.shape[head_major ? at + 1 : at];
  shape.heads = tensor.shape[head_major ? at : at + 1];
  shape.head_size = tensor.shape[at + 2];
  return shape;
}

// [NB, BS, HS]
Result<Layer> latent_layer(const Physical& tensor, KvFormat format) {
  return layer_of(tensor, {format, tensor.shape[0], tensor.shape[1], 1, tensor.shape[2]});
}

bool is_indexer(const Physical& tensor) {
  return tensor.dtype == tensors::Dtype::kUint8 && tensor.shape.back() == kIndexerRowBytes;
}

// vLLM's host backend keeps heads first whatever it says, until clients began to say the truth.
bool is_vllm_head_major(const EngineDescription& engine) {
  const std::string& hint = engine.hints.kv_layout;
  if (engine.is_since_055 && !hint.empty()) {
    return hint == "HND" || hint == "BLHNC";
  }
  return engine.on_host || hint == "HND";
}

Result<Layer> vllm_layer_of_4(const EngineDescription& engine, const Physical& tensor) {
  const bool head_major = is_vllm_head_major(engine);
  if (engine.is_since_055) {
    const std::size_t heads_at = head_major ? 1 : 2;
    if (is_indexer(tensor) && tensor.shape[heads_at] == 1) {
      const std::uint64_t slots = tensor.shape[3 - heads_at];
      return layer_of(
          tensor,
          {KvFormat::kNlXNbBsvBss, tensor.shape[0], slots, 1, std::uint64_t{kIndexerRowBytes}});
    }
  } else if (tensor.shape[3] % 2 != 0) {
    return unsupported("fused K and V of an odd width");
  }
  const KvFormat head_first =
      engine.is_since_055 ? KvFormat::kNlXNbNhBsCs : KvFormat::kNlXNbNhBsTwoHs;
  const KvFormat token_first =
      engine.is_since_055 ? KvFormat::kNlXNbBsNhCs : KvFormat::kNlXNbBsNhTwoHs;
  LayerShape shape = split_at(tensor, head_major ? head_first : token_first, 1);
  shape.blocks = tensor.shape[0];
  return layer_of(tensor, shape);
}

// With two blocks and K before V or V after K the shapes are the same; K/V first wins.
Result<Layer> vllm_layer_of_5(const EngineDescription& engine, const Physical& tensor) {
  const bool head_major = is_vllm_head_major(engine);
  if (tensor.shape[0] == 2) {
    LayerShape shape =
        split_at(tensor, head_major ? KvFormat::kNlXTwoNbNhBsHs : KvFormat::kNlXTwoNbBsNhHs, 2);
    shape.blocks = tensor.shape[1];
    return layer_of(tensor, shape);
  }
  if (tensor.shape[1] == 2) {
    LayerShape shape =
        split_at(tensor, head_major ? KvFormat::kNlXNbTwoNhBsHs : KvFormat::kNlXNbTwoBsNhHs, 2);
    shape.blocks = tensor.shape[0];
    return layer_of(tensor, shape);
  }
  return unsupported("vLLM tensor of 5 dimensions without one for K and V");
}

Result<Layer> vllm_layer(const EngineDescription& engine, const Physical& tensor) {
  switch (tensor.shape.size()) {
    case 3: {
      const bool blocked_scales = engine.is_since_055 && is_indexer(tensor);
      return latent_layer(tensor, blocked_scales ? KvFormat::kNlXNbBsvBss : KvFormat::kNlXNbBsHs);
    }
    case 4:
      return vllm_layer_of_4(engine, tensor);
    case 5:
      return vllm_layer_of_5(engine, tensor);
    default:
      return unsupported("vLLM tensor of " + std::to_string(tensor.shape.size()) + " dimensions");
  }
}

// [rows, ...] as [rows / tokens, tokens, ...].
Result<Physical> in_blocks(const Physical& tensor, std::int64_t tokens) {
  if (tensor.is_padded) {
    return unsupported("SGLang tensor with padded rows");
  }
  if (tokens < 1 || tensor.shape[0] % static_cast<std::uint64_t>(tokens) != 0) {
    return invalid("SGLang tensor whose rows are no multiple of tokens_per_block");
  }
  Physical blocks = tensor;
  blocks.shape[0] = tensor.shape[0] / static_cast<std::uint64_t>(tokens);
  blocks.shape.insert(blocks.shape.begin() + 1, static_cast<std::uint64_t>(tokens));
  blocks.step = elements_from(blocks.shape, 1);
  return blocks;
}

// [rows, 1, HS] since 0.5.5, where the hint says how many rows are a block.
Result<Layer> sglang_latent_layer(const EngineDescription& engine, const Physical& tensor) {
  if (tensor.shape.size() != 3) {
    return unsupported("SGLang tensor of " + std::to_string(tensor.shape.size()) + " dimensions");
  }
  if (!engine.is_since_055 || !engine.hints.tokens_per_block) {
    return unsupported("NL_X_NBBS_ONE_HS and other SGLang lists without block sizes");
  }
  if (tensor.shape[1] != 1) {
    return latent_layer(tensor, KvFormat::kNlXNbBsHs);
  }
  const Result<Physical> blocks = in_blocks(tensor, *engine.hints.tokens_per_block);
  if (!blocks) {
    return blocks.error();
  }
  return layer_of(*blocks,
                  {KvFormat::kNlXNbBsHs, blocks->shape[0], blocks->shape[1], 1, blocks->shape[3]});
}

Result<Layer> sglang_unified_layer(const Physical& tensor) {
  if (tensor.shape.size() != 3) {
    return unsupported("NL_X_NB_BS_NH_HS (SGLang's unified list)");
  }
  return latent_layer(tensor, KvFormat::kNlXNbBsHs);
}

Result<Layer> atom_layer(const Physical& tensor) {
  if (tensor.shape.size() != 3) {
    return unsupported("ATOM tensor of " + std::to_string(tensor.shape.size()) + " dimensions");
  }
  return latent_layer(tensor, KvFormat::kNlXNbBsHs);
}

Result<Layer> list_layer(const EngineDescription& engine, const Physical& tensor) {
  switch (engine.engine_type) {
    case EngineType::kVllm:
      return vllm_layer(engine, tensor);
    case EngineType::kSglang:
      return engine.hints.kv_list_layout == "unified" ? sglang_unified_layer(tensor)
                                                      : sglang_latent_layer(engine, tensor);
    case EngineType::kAtom:
      return atom_layer(tensor);
    case EngineType::kTrtllm:
    case EngineType::kMock:
      break;
  }
  return unsupported("an engine without known formats");
}

using Layers = std::vector<std::optional<Layer>>;

// Which tensors of a list with one a layer are asked about.
std::vector<bool> cached_layers(const EngineDescription& engine) {
  std::vector<bool> cached(engine.tensors.size(), engine.groups.empty());
  for (const LayerGroup& group : engine.groups) {
    for (const std::int64_t index : group.layer_indices) {
      if (index >= 0 && static_cast<std::uint64_t>(index) < cached.size()) {
        cached[static_cast<std::size_t>(index)] = true;
      }
    }
  }
  return cached;
}

Result<Layers> layers_of_list(const EngineDescription& engine) {
  if (engine.tensors.size() > kLayersMax) {
    return Error{Code::kTooLarge, "more layers than " + std::to_string(kLayersMax)};
  }
  const std::vector<bool> cached = cached_layers(engine);
  Layers layers(engine.tensors.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!cached[i]) {
      continue;
    }
    const Result<Physical> tensor = physical(engine.tensors[i]);
    if (!tensor) {
      return tensor.error();
    }
    Result<Layer> layer = list_layer(engine, *tensor);
    if (!layer) {
      return layer.error();
    }
    layer->tensors = {static_cast<std::uint32_t>(i)};
    layers[i] = std::move(layer).value();
  }
  return layers;
}

// Up to 0.5.4 more than one head tells K and V lists from a list of latents; then a hint does, as
// there may be one head.
bool is_sglang_pair_of_lists(const EngineDescription& engine) {
  if (engine.engine_type != EngineType::kSglang || engine.tensors.size() % 2 != 0 ||
      !engine.hints.tokens_per_block || engine.tensors[0].shape.size() != 3) {
    return false;
  }
  return engine.is_since_055 ? engine.hints.kv_list_layout == "k_v"
                             : engine.tensors[0].shape[1] > 1;
}

Result<Layers> layers_of_pair_of_lists(const EngineDescription& engine) {
  const std::size_t count = engine.tensors.size() / 2;
  Layers layers(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Result<Physical> keys = physical(engine.tensors[i]);
    const Result<Physical> values = physical(engine.tensors[count + i]);
    if (!keys || !values) {
      return keys ? values.error() : keys.error();
    }
    if (keys->shape.size() != 3 || keys->shape != values->shape || keys->dtype != values->dtype ||
        values->is_padded) {
      return invalid("SGLang layer whose K and V differ");
    }
    const Result<Physical> blocks = in_blocks(*keys, *engine.hints.tokens_per_block);
    if (!blocks) {
      return blocks.error();
    }
    LayerShape shape = split_at(*blocks, KvFormat::kTwoXNlXNbBsNhHs, 1);
    shape.blocks = blocks->shape[0];
    Result<Layer> layer = layer_of(*blocks, shape);
    if (!layer) {
      return layer.error();
    }
    layer->tensors = {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(count + i)};
    layers[i] = std::move(layer).value();
  }
  return layers;
}

// [NB, NL, 2, NH * BS * HS] as [NB, NL, 2, NH, BS, HS], by the hints.
Result<Physical> trtllm_pool(const EngineDescription& engine, Physical pool) {
  if (pool.shape.size() == 6) {
    return pool;
  }
  const LayoutHints& hints = engine.hints;
  if (pool.shape.size() != 4 || !hints.kv_heads || !hints.tokens_per_block || !hints.head_size) {
    return invalid("TRT-LLM pool without its sizes");
  }
  const std::array<std::int64_t, 3> sizes = {
      *hints.kv_heads, *hints.tokens_per_block, *hints.head_size};
  if (*std::min_element(sizes.begin(), sizes.end()) < 1) {
    return invalid("TRT-LLM pool: a hint below 1");
  }
  const std::array<std::uint64_t, 3> inner = {static_cast<std::uint64_t>(sizes[0]),
                                              static_cast<std::uint64_t>(sizes[1]),
                                              static_cast<std::uint64_t>(sizes[2])};
  if (product({inner[0], inner[1], inner[2]}) != std::optional(pool.shape[3])) {
    return invalid("TRT-LLM pool whose blocks are not what the hints say");
  }
  pool.shape.pop_back();
  pool.shape.insert(pool.shape.end(), inner.begin(), inner.end());
  return pool;
}

Result<Layers> layers_of_trtllm(const EngineDescription& engine) {
  if (engine.tensors.size() != 1) {
    return unsupported("TRT-LLM with more than one pool");
  }
  Result<Physical> registered = physical(engine.tensors[0]);
  if (!registered) {
    return registered.error();
  }
  const Result<Physical> pool = trtllm_pool(engine, std::move(registered).value());
  if (!pool) {
    return pool.error();
  }
  if (pool->shape[2] != 2) {
    return unsupported("TRT-LLM pool without a dimension for K and V");
  }
  if (pool->shape[1] > kLayersMax) {
    return Error{Code::kTooLarge, "more layers than " + std::to_string(kLayersMax)};
  }
  LayerShape shape = split_at(*pool, KvFormat::kNbNlTwoNhBsHs, 3);
  shape.blocks = pool->shape[0];
  Result<Layer> layer = layer_of(*pool, shape);
  if (!layer) {
    return layer.error();
  }
  layer->tensors = {0};
  return Layers(pool->shape[1], *layer);
}

}  // namespace

Result<Layers> detect_layers(const EngineDescription& engine) {
  if (engine.tensors.empty()) {
    return invalid("a registration without tensors");
  }
  if (engine.tensors.size() > kTensorsMax) {
    return Error{Code::kTooLarge, "more tensors than " + std::to_string(kTensorsMax)};
  }
  if (is_sglang_pair_of_lists(engine)) {
    return layers_of_pair_of_lists(engine);
  }
  return engine.engine_type == EngineType::kTrtllm ? layers_of_trtllm(engine)
                                                   : layers_of_list(engine);
}

}  // namespace larder::geometry
