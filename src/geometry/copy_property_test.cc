// Goal: whatever an engine registers, each byte of an object is the one that the formats' address
// table names, and a retrieve changes those bytes of the engine's memory and no other.
// Method: random registrations (LARDER_TEST_SEED) of all kinds, with several groups, windows,
// compressed, padded and interleaved blocks, planned and copied both ways; against a model that
// moves one element at a time by the address table.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "base/test_random.h"
#include "geometry/block_lists.h"
#include "geometry/copy_runs.h"
#include "geometry/engine_cache.h"
#include "geometry/test_executor.h"

namespace larder::geometry {
namespace {

using tensors::Dtype;

// What the address table needs to know of a kernel group.
struct ModelGroup {
  KvFormat format{};
  Dtype dtype{};
  std::size_t planes = 1;
  std::size_t layers = 1;
  std::size_t blocks = 1;
  std::size_t slots = 1;
  std::size_t heads = 1;
  std::size_t head_size = 1;
  std::size_t step = 0;  // elements
  std::size_t tokens_per_block = 1;
  std::size_t stored_tokens = 1;        // of a chunk
  std::vector<std::uint64_t> pointers;  // as the table indexes them

  std::size_t item() const { return tensors::item_bytes(dtype); }

  std::size_t row() const { return heads * head_size; }

  std::size_t block_elements() const { return slots * row(); }

  std::size_t object_slots() const { return stored_tokens / tokens_per_block * slots; }

  std::size_t object_bytes() const { return planes * layers * object_slots() * row() * item(); }
};

struct Element {
  std::size_t plane;
  std::size_t layer;
  std::size_t block;
  std::size_t slot;
  std::size_t head;
  std::size_t value;
};

std::uint64_t address_in_engine(const ModelGroup& group, const Element& at) {
  const std::size_t token_major = (at.slot * group.heads + at.head) * group.head_size + at.value;
  const std::size_t head_major = (at.head * group.slots + at.slot) * group.head_size + at.value;
  const std::size_t inside = is_head_major(group.format) ? head_major : token_major;
  const std::size_t block_elements = group.block_elements();
  std::size_t pointer = at.layer;
  std::size_t offset = 0;
  switch (group.format) {
    case KvFormat::kNlXTwoNbBsNhHs:
    case KvFormat::kNlXTwoNbNhBsHs:
      offset = (at.plane * group.blocks + at.block) * block_elements + inside;
      break;
    case KvFormat::kNlXNbTwoBsNhHs:
    case KvFormat::kNlXNbTwoNhBsHs:
      offset = (at.block * 2 + at.plane) * block_elements + inside;
      break;
    case KvFormat::kNbNlTwoNhBsHs:
      pointer = 0;
      offset = ((at.block * group.layers + at.layer) * 2 + at.plane) * block_elements + inside;
      break;
    case KvFormat::kTwoXNlXNbBsNhHs:
      pointer = at.plane * group.layers + at.layer;
      offset = at.block * block_elements + inside;
      break;
    case KvFormat::kNlXNbBsvBss:
      offset = at.block * group.step + (at.value < 128
                                            ? at.slot * 128 + at.value
                                            : group.slots * 128 + at.slot * 4 + (at.value - 128));
      break;
    default:
      offset = at.block * group.step + inside;
      break;
  }
  return group.pointers[pointer] + offset * group.item();
}

std::size_t offset_in_object(const ModelGroup& group, const Element& at, std::size_t place) {
  const std::size_t slot = place * group.slots + at.slot;
  const std::size_t row = (at.plane * group.layers + at.layer) * group.object_slots() + slot;
  return (row * group.row() + at.head * group.head_size + at.value) * group.item();
}

// Calls `each(element, byte offset in the group's part of the object)` for one block.
template <typename Each>
void for_block(const ModelGroup& group, std::size_t block, std::size_t place, const Each& each) {
  Element at{.plane = 0, .layer = 0, .block = block, .slot = 0, .head = 0, .value = 0};
  const std::size_t elements = group.planes * group.layers * group.block_elements();
  for (std::size_t i = 0; i < elements; ++i) {
    at.value = i % group.head_size;
    at.head = i / group.head_size % group.heads;
    at.slot = i / group.row() % group.slots;
    at.layer = i / group.block_elements() % group.layers;
    at.plane = i / group.block_elements() / group.layers;
    each(at, offset_in_object(group, at, place));
  }
}

std::size_t stride_product(const std::vector<std::int64_t>& shape, std::size_t from) {
  std::size_t elements = 1;
  for (std::size_t i = from; i < shape.size(); ++i) {
    elements *= static_cast<std::size_t>(shape[i]);
  }
  return elements;
}

EngineTensor dense(Dtype dtype, const std::vector<std::size_t>& sizes) {
  EngineTensor tensor{dtype, {sizes.begin(), sizes.end()}, {}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    tensor.stride.push_back(static_cast<std::int64_t>(stride_product(tensor.shape, i + 1)));
  }
  return tensor;
}

class RandomEngine {
 public:
  RandomEngine(std::mt19937_64& random, std::size_t chunks)
      : random_(random), chunks_(chunks), chunk_tokens_(below(2) == 0 ? 24 : 48) {
    switch (below(4)) {
      case 0:
        make_sglang();
        break;
      case 1:
        make_trtllm();
        break;
      default:
        make_vllm();
        break;
    }
  }

  const EngineDescription& description() const { return description_; }

  GroupingRules rules() {
    return {.chunk_tokens = static_cast<std::uint32_t>(chunk_tokens_),
            .separate_object_groups = below(2) == 0};
  }

  std::size_t chunk_tokens() const { return chunk_tokens_; }

  const std::vector<ModelGroup>& groups() const { return groups_; }

  std::vector<Memory>& memories() { return memories_; }

  const std::vector<std::uint64_t>& bases() const { return bases_; }

  std::size_t below(std::size_t bound) { return random_() % bound; }

  void fill(Memory& memory) {
    for (std::byte& byte : memory) {
      byte = static_cast<std::byte>(random_());
    }
  }

  // No id twice; often neighbours.
  BlockIds distinct_ids() {
    BlockIds lists;
    for (const ModelGroup& group : groups_) {
      std::vector<std::int64_t> ids(group.blocks);
      std::iota(ids.begin(), ids.end(), std::int64_t{0});
      for (std::size_t swaps = below(ids.size()); swaps > 0; --swaps) {
        std::swap(ids[below(ids.size())], ids[below(ids.size())]);
      }
      const std::size_t per_chunk = chunk_tokens_ / group.tokens_per_block;
      const std::size_t more = (ids.size() / per_chunk - chunks_) * below(2);
      ids.resize((chunks_ + more) * per_chunk);
      lists.push_back(std::move(ids));
    }
    return lists;
  }

 private:
  template <typename T, std::size_t kCount>
  T one_of(const std::array<T, kCount>& values) {
    return values[below(kCount)];
  }

  ModelGroup random_sizes() {
    ModelGroup group;
    group.dtype = one_of(std::to_array<Dtype>(
        {Dtype::kUint8, Dtype::kFloat8E4m3fn, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kInt64}));
    group.slots = one_of(std::to_array<std::size_t>({1, 2, 3, 4, 6}));
    group.heads = 1 + below(3);
    group.head_size = 1 + below(5);
    group.layers = 1 + below(3);
    group.tokens_per_block = group.slots * (1 + below(2));
    group.stored_tokens = chunk_tokens_;
    return group;
  }

  // More than the request needs, and more than two: K/V first and blocks first look alike then.
  void set_blocks(ModelGroup& group) {
    group.blocks = (chunks_ + below(2)) * (chunk_tokens_ / group.tokens_per_block) + 1 + below(4);
    group.blocks = std::max<std::size_t>(group.blocks, 3);
    group.step = group.block_elements();
  }

  // A tensor with memory of its own, somewhere inside of it.
  std::uint64_t place(EngineTensor tensor) {
    const auto offset = static_cast<std::int64_t>(below(3));
    Memory& memory = memories_.emplace_back(storage_bytes(tensor, offset).value());
    fill(memory);
    bases_.push_back(address_of(memory) +
                     static_cast<std::size_t>(offset) * tensors::item_bytes(tensor.dtype));
    description_.tensors.push_back(std::move(tensor));
    return bases_.back();
  }

  void make_sglang() {
    description_.engine_type = EngineType::kSglang;
    description_.is_since_055 = below(2) == 0;
    ModelGroup group = random_sizes();
    group.format = KvFormat::kTwoXNlXNbBsNhHs;
    group.planes = 2;
    group.heads += description_.is_since_055 ? 0 : 1;
    group.tokens_per_block = group.slots;
    set_blocks(group);
    description_.hints.kv_list_layout = description_.is_since_055 ? "k_v" : "";
    description_.hints.tokens_per_block = static_cast<std::int64_t>(group.slots);
    for (std::size_t i = 0; i < 2 * group.layers; ++i) {
      group.pointers.push_back(
          place(dense(group.dtype, {group.blocks * group.slots, group.heads, group.head_size})));
    }
    groups_ = {std::move(group)};
  }

  void make_trtllm() {
    description_.engine_type = EngineType::kTrtllm;
    ModelGroup group = random_sizes();
    group.format = KvFormat::kNbNlTwoNhBsHs;
    group.planes = 2;
    group.tokens_per_block = group.slots;
    set_blocks(group);
    description_.hints.kv_heads = static_cast<std::int64_t>(group.heads);
    description_.hints.tokens_per_block = static_cast<std::int64_t>(group.slots);
    description_.hints.head_size = static_cast<std::int64_t>(group.head_size);
    group.pointers = {
        place(dense(group.dtype, {group.blocks, group.layers, 2, group.block_elements()}))};
    groups_ = {std::move(group)};
  }

  // How a vLLM server is told the order of heads and slots.
  bool choose_head_major() {
    description_.is_since_055 = below(2) == 0;
    description_.on_host = below(2) == 0;
    const bool head_major = below(2) == 0;
    if (description_.is_since_055) {
      description_.hints.kv_layout = head_major
                                         ? one_of(std::to_array<const char*>({"HND", "BLHNC"}))
                                         : one_of(std::to_array<const char*>({"NHD", "BLNHC"}));
      return head_major;
    }
    description_.hints.kv_layout = head_major ? "HND" : "NHD";
    return head_major || description_.on_host;
  }

  // The tensor of each layer, before any padding.
  EngineTensor choose_vllm_format(ModelGroup& group, bool head_major) {
    const bool is_new = description_.is_since_055;
    const std::size_t outer = head_major ? group.heads : group.slots;
    const std::size_t inner = head_major ? group.slots : group.heads;
    switch (below(5)) {
      case 0:
        group.planes = 2;
        group.format = head_major ? KvFormat::kNlXTwoNbNhBsHs : KvFormat::kNlXTwoNbBsNhHs;
        return dense(group.dtype, {2, group.blocks, outer, inner, group.head_size});
      case 1:
        group.planes = 2;
        group.format = head_major ? KvFormat::kNlXNbTwoNhBsHs : KvFormat::kNlXNbTwoBsNhHs;
        return dense(group.dtype, {group.blocks, 2, outer, inner, group.head_size});
      case 2:
        group.head_size *= 2;
        group.format = head_major ? (is_new ? KvFormat::kNlXNbNhBsCs : KvFormat::kNlXNbNhBsTwoHs)
                                  : (is_new ? KvFormat::kNlXNbBsNhCs : KvFormat::kNlXNbBsNhTwoHs);
        group.step = group.block_elements();
        return dense(group.dtype, {group.blocks, outer, inner, group.head_size});
      case 3:
        group.dtype = Dtype::kUint8;
        group.heads = 1;
        group.head_size = 132;
        group.format = is_new ? KvFormat::kNlXNbBsvBss : KvFormat::kNlXNbBsHs;
        break;
      default:
        group.heads = 1;
        group.format = KvFormat::kNlXNbBsHs;
        break;
    }
    group.step = group.block_elements();
    return dense(group.dtype, {group.blocks, group.slots, group.head_size});
  }

  static bool may_be_padded(KvFormat format) {
    return format == KvFormat::kNlXNbBsHs || format == KvFormat::kNlXNbNhBsCs ||
           format == KvFormat::kNlXNbBsNhCs || format == KvFormat::kNlXNbBsvBss;
  }

  // All layers of a group in one memory, each block of theirs side by side.
  std::vector<std::uint64_t> interleaved(ModelGroup& group) {
    const std::size_t block = group.block_elements();
    group.step = block * group.layers + below(3);
    Memory& memory = memories_.emplace_back(
        ((group.blocks - 1) * group.step + block * group.layers) * group.item());
    fill(memory);
    std::vector<std::uint64_t> pointers;
    for (std::size_t layer = 0; layer < group.layers; ++layer) {
      pointers.push_back(address_of(memory) + layer * block * group.item());
    }
    return pointers;
  }

  void choose_window(ModelGroup& group, LayerGroup& said) {
    switch (below(3)) {
      case 0:
        group.stored_tokens =
            (1 + below(chunk_tokens_ / group.tokens_per_block)) * group.tokens_per_block;
        said.sliding_window_tokens = static_cast<std::int64_t>(group.stored_tokens);
        break;
      case 1:
        said.sliding_window_tokens = static_cast<std::int64_t>(chunk_tokens_ + below(100));
        break;
      default:
        break;
    }
  }

  // Up to three groups whose layers take turns, and layers that are in none.
  void make_vllm() {
    const bool head_major = choose_head_major();
    const std::size_t count = 1 + below(3);
    std::vector<std::size_t> turns;
    for (std::size_t i = 0; i < count; ++i) {
      groups_.push_back(random_sizes());
      turns.insert(turns.end(), groups_.back().layers, i);
      description_.groups.push_back(
          {.engine_group_id = static_cast<std::int64_t>(count - i), .layer_indices = {}});
    }
    for (std::size_t unused = below(2); unused > 0; --unused) {
      turns.push_back(count);
    }
    std::shuffle(turns.begin(), turns.end(), random_);
    number_by_first_turn(turns, count);
    for (std::size_t i = 0; i < count; ++i) {
      add_vllm_group(i, turns, head_major);
    }
    place_unused(turns, count);
  }

  static void number_by_first_turn(std::vector<std::size_t>& turns, std::size_t count) {
    std::vector<std::optional<std::size_t>> numbers(count + 1);
    numbers[count] = count;
    std::size_t next = 0;
    for (std::size_t& turn : turns) {
      if (!numbers[turn]) {
        numbers[turn] = next++;
      }
      turn = *numbers[turn];
    }
  }

  void add_vllm_group(std::size_t index, const std::vector<std::size_t>& turns, bool head_major) {
    ModelGroup& group = groups_[index];
    LayerGroup& said = description_.groups[index];
    for (std::size_t layer = 0; layer < turns.size(); ++layer) {
      if (turns[layer] == index) {
        said.layer_indices.push_back(static_cast<std::int64_t>(layer));
      }
    }
    group.layers = said.layer_indices.size();
    said.tokens_per_block = static_cast<std::int64_t>(group.tokens_per_block);
    set_blocks(group);
    choose_window(group, said);
    EngineTensor tensor = choose_vllm_format(group, head_major);
    description_.tensors.resize(turns.size());
    bases_.resize(turns.size());
    const bool is_interleaved = may_be_padded(group.format) && below(2) == 0;
    if (is_interleaved) {
      group.pointers = interleaved(group);
      tensor.stride[0] = static_cast<std::int64_t>(group.step);
    }
    for (std::size_t i = 0; i < group.layers; ++i) {
      if (!is_interleaved) {
        group.pointers.push_back(place(tensor));
        description_.tensors.pop_back();
        bases_.pop_back();
      }
      const auto layer = static_cast<std::size_t>(said.layer_indices[i]);
      description_.tensors[layer] = tensor;
      bases_[layer] = group.pointers[i];
    }
  }

  void place_unused(const std::vector<std::size_t>& turns, std::size_t unused) {
    for (std::size_t layer = 0; layer < turns.size(); ++layer) {
      if (turns[layer] == unused) {
        description_.tensors[layer] = dense(Dtype::kUint8, {3, 5});
      }
    }
  }

  std::mt19937_64& random_;
  std::size_t chunks_;
  std::size_t chunk_tokens_;
  EngineDescription description_;
  std::vector<ModelGroup> groups_;
  std::vector<Memory> memories_;
  std::vector<std::uint64_t> bases_;
};

struct Request {
  BlockIds ids;
  std::uint64_t skip_tokens = 0;
};

std::size_t skipped_in_chunk(std::size_t skipped, std::size_t chunk, std::size_t per_object) {
  const std::size_t before = std::min(skipped, chunk * per_object);
  return std::min(skipped - before, per_object);
}

std::vector<CopyRun> runs_of_chunk(const CachePlan& plan,
                                   const ObjectGroup& object,
                                   const RandomEngine& engine,
                                   const Request& request,
                                   std::pair<std::size_t, std::uint64_t> chunk_and_address) {
  std::vector<CopyRun> runs;
  std::uint64_t runs_max_of_all = 0;
  const auto [chunk, address] = chunk_and_address;
  for (const std::uint32_t index : object.kernel_groups) {
    const KernelGroup& group = plan.kernel_groups[index];
    const std::size_t skipped = ids_to_skip(group, request.skip_tokens);
    append_runs(group,
                engine.bases(),
                {ids_of(group, request.ids[index], chunk),
                 skipped_in_chunk(skipped, chunk, group.blocks_per_object),
                 address},
                runs);
    runs_max_of_all += runs_max(group);
  }
  EXPECT_LE(runs.size(), runs_max_of_all);
  return runs;
}

// The same by single elements: `to_object` fills `object`, else the engine's memory is written.
void model_copy(const RandomEngine& engine,
                const ObjectGroup& objects,
                const Request& request,
                std::size_t chunk,
                const std::function<void(std::uint64_t, std::size_t, std::size_t)>& move) {
  std::size_t part = 0;
  for (const std::uint32_t index : objects.kernel_groups) {
    const ModelGroup& group = engine.groups()[index];
    const std::size_t per_chunk = engine.chunk_tokens() / group.tokens_per_block;
    const std::size_t kept = group.stored_tokens / group.tokens_per_block;
    for (std::size_t place = 0; place < kept; ++place) {
      const std::size_t position = chunk * per_chunk + per_chunk - kept + place;
      if ((position + 1) * group.tokens_per_block <= request.skip_tokens) {
        continue;
      }
      const auto block = static_cast<std::size_t>(request.ids[index][position]);
      for_block(group, block, place, [&](const Element& at, std::size_t offset) {
        move(address_in_engine(group, at), part + offset, group.item());
      });
    }
    part += group.object_bytes();
  }
}

class CopyProperty : public testing::Test {
 protected:
  static constexpr int kRounds = 400;

  static std::string trace(int round) { return "round " + std::to_string(round); }

  std::mt19937_64 random_{test_seed()};
};

TEST_F(CopyProperty, StoresTheBytesThatTheAddressTableNames) {
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    SCOPED_TRACE(trace(round));
    const std::size_t chunks = 1 + random_() % 3;
    RandomEngine engine(random_, chunks);
    const Result<CachePlan> plan = plan_of(engine.description(), engine.rules());
    ASSERT_TRUE(plan) << plan.error().detail;
    ASSERT_EQ(plan->kernel_groups.size(), engine.groups().size());
    const Request request{.ids = engine.distinct_ids(), .skip_tokens = 0};
    ASSERT_TRUE(check_block_lists(*plan, request.ids, chunks));
    const std::vector<Memory> before = engine.memories();
    for (const ObjectGroup& objects : plan->object_groups) {
      const std::size_t bytes = tensors::bytes_of(objects.layout).value();
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        Memory object(bytes);
        engine.fill(object);
        Memory expected(bytes);
        TestExecutor executor;
        executor.allow_object(object);
        for (const Memory& memory : engine.memories()) {
          executor.allow_engine(memory);
        }
        executor.store(runs_of_chunk(*plan, objects, engine, request, {chunk, address_of(object)}));
        model_copy(engine, objects, request, chunk, [&](auto from, auto to, auto size) {
          std::memcpy(&expected[to], pointer_to(from), size);
        });
        ASSERT_EQ(object, expected);
      }
    }
    ASSERT_EQ(engine.memories(), before);
  }
}

TEST_F(CopyProperty, RetrievesThemAndLeavesEveryOtherByteAlone) {
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    SCOPED_TRACE(trace(round));
    const std::size_t chunks = 1 + random_() % 3;
    RandomEngine engine(random_, chunks);
    const Result<CachePlan> plan = plan_of(engine.description(), engine.rules());
    ASSERT_TRUE(plan) << plan.error().detail;
    Request request{.ids = engine.distinct_ids(), .skip_tokens = 0};
    request.skip_tokens = engine.below(3) == 0 ? 0 : engine.below(engine.chunk_tokens() * 4);
    std::vector<Memory> objects;
    std::vector<CopyRun> runs;
    const std::vector<Memory> before = engine.memories();
    for (const ObjectGroup& group : plan->object_groups) {
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        engine.fill(objects.emplace_back(tensors::bytes_of(group.layout).value()));
        const auto more =
            runs_of_chunk(*plan, group, engine, request, {chunk, address_of(objects.back())});
        runs.insert(runs.end(), more.begin(), more.end());
      }
    }
    TestExecutor executor;
    for (const Memory& memory : engine.memories()) {
      executor.allow_engine(memory);
    }
    for (const Memory& object : objects) {
      executor.allow_object(object);
    }
    executor.retrieve(runs);
    const std::vector<Memory> after = engine.memories();
    // The model writes where the engine's tensors are, so from what was there before.
    for (std::size_t i = 0; i < before.size(); ++i) {
      std::copy(before[i].begin(), before[i].end(), engine.memories()[i].begin());
    }
    std::size_t next = 0;
    for (const ObjectGroup& group : plan->object_groups) {
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
        const Memory& object = objects[next++];
        model_copy(engine, group, request, chunk, [&](auto to, auto from, auto size) {
          std::memcpy(pointer_to(to), &object[from], size);
        });
      }
    }
    ASSERT_EQ(after, engine.memories());
  }
}

}  // namespace
}  // namespace larder::geometry
