// test_cuda_engine.h - an engine's paged cache on the fake device, and what a copy of it must be,
// computed element by element.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "devices/device.h"
#include "devices/test_cuda.h"
#include "geometry/engine_cache.h"

namespace larder::devices {

// Layers of [blocks, K and V, slots, heads, head size], or heads before slots; two of them share a
// block of memory, with a gap before each. Two chunks of three blocks.
class PagedCache {
 public:
  static constexpr std::uint32_t kLayers = 4;
  static constexpr std::uint32_t kBlocks = 8;
  static constexpr std::uint32_t kSlots = 4;
  static constexpr std::uint32_t kHeads = 2;
  static constexpr std::uint32_t kHeadSize = 8;
  static constexpr std::uint32_t kBlocksPerChunk = 3;
  static constexpr std::size_t kItemBytes = 2;
  static constexpr std::size_t kRowBytes = kHeads * kHeadSize * kItemBytes;
  static constexpr std::size_t kLayerBytes = kBlocks * 2 * kSlots * kRowBytes;
  static constexpr std::size_t kObjectBytes = kLayers * 2 * kBlocksPerChunk * kSlots * kRowBytes;
  static constexpr std::size_t kGap = 256;
  static constexpr std::size_t kChunks = 2;

  PagedCache(FakeEngine& engine, bool head_major) : head_major_(head_major) {
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      if (layer % 2 == 0) {
        memory_.push_back(engine.allocate(2 * (kGap + kLayerBytes)));
      }
      const std::size_t offset = (layer % 2 == 0 ? kGap : (2 * kGap) + kLayerBytes);
      layers_.push_back(memory_.back().subspan(offset, kLayerBytes));
      handles_.push_back(handle_of(engine.handle_of(memory_.back()), offset));
    }
  }

  const std::vector<TensorHandle>& handles() const { return handles_; }

  std::vector<TensorHandle>& handles() { return handles_; }

  geometry::CachePlan plan() const {
    geometry::KernelGroup group;
    group.format =
        head_major_ ? geometry::KvFormat::kNlXNbTwoNhBsHs : geometry::KvFormat::kNlXNbTwoBsNhHs;
    group.dtype = tensors::Dtype::kBfloat16;
    group.planes = 2;
    group.layers = kLayers;
    group.blocks = kBlocks;
    group.block_slots = kSlots;
    group.heads = kHeads;
    group.head_size = kHeadSize;
    group.block_step = kSlots * kHeads * kHeadSize;
    group.tensors = {0, 1, 2, 3};
    group.layer_indices = {0, 1, 2, 3};
    group.tokens_per_block = kSlots;
    group.blocks_per_chunk = kBlocksPerChunk;
    group.blocks_per_object = kBlocksPerChunk;
    group.slots_per_object = kBlocksPerChunk * kSlots;
    group.object_bytes = kObjectBytes;
    geometry::CachePlan plan;
    plan.kernel_groups = {group};
    plan.object_groups.resize(1);
    plan.object_groups[0].kernel_groups = {0};
    return plan;
  }

  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const std::span<std::byte> layer : layers_) {
      for (std::byte& byte : layer) {
        byte = static_cast<std::byte>(random());
      }
    }
  }

  // Every byte of the engine's memory, gaps too.
  std::vector<std::byte> snapshot() const {
    std::vector<std::byte> bytes;
    for (const std::span<const std::byte> block : memory_) {
      bytes.insert(bytes.end(), block.begin(), block.end());
    }
    return bytes;
  }

  // The object of three blocks, value by value.
  std::vector<std::byte> object_of(std::span<const std::int64_t> ids) const {
    std::vector<std::byte> object(kObjectBytes);
    each_value(ids, object, [](std::byte* engine, std::byte* value) {
      std::memcpy(value, engine, kItemBytes);
    });
    return object;
  }

  void write_object(std::span<const std::int64_t> ids, std::span<std::byte> object) {
    each_value(ids, object, [](std::byte* engine, std::byte* value) {
      std::memcpy(engine, value, kItemBytes);
    });
  }

 private:
  static TensorHandle handle_of(const IpcHandle& block, std::size_t offset) {
    TensorHandle handle;
    handle.tensor.dtype = tensors::Dtype::kBfloat16;
    handle.tensor.shape = {kBlocks, 2, kSlots, kHeads, kHeadSize};
    // The storage begins in the gap, the tensor some elements behind its start.
    handle.storage_offset = kGap / 2 / kItemBytes;
    handle.device_uuid = kFirstDevice;
    handle.memory = CudaMemoryHandle{.block = block,
                                     .block_offset = offset - (kGap / 2),
                                     .storage_bytes = (kGap / 2) + kLayerBytes,
                                     .counter = {},
                                     .ready = {}};
    return handle;
  }

  template <typename Move>
  void each_value(std::span<const std::int64_t> ids, std::span<std::byte> object, Move move) const {
    std::size_t at = 0;
    for (std::size_t plane = 0; plane < 2; ++plane) {
      for (const std::span<std::byte> layer : layers_) {
        for (std::size_t slot = 0; slot < ids.size() * kSlots; ++slot) {
          const auto block = static_cast<std::size_t>(ids[slot / kSlots]);
          for (std::size_t value = 0; value < std::size_t{kHeads} * kHeadSize; ++value) {
            move(&layer[place(block, plane, slot % kSlots, value)], &object[at]);
            at += kItemBytes;
          }
        }
      }
    }
  }

  std::size_t place(std::size_t block,
                    std::size_t plane,
                    std::size_t slot,
                    std::size_t value) const {
    const std::size_t head = value / kHeadSize;
    const std::size_t row = head_major_ ? (head * kSlots) + slot : (slot * kHeads) + head;
    const std::size_t block_values = std::size_t{kSlots} * kHeads * kHeadSize;
    return ((((block * 2) + plane) * block_values) + (row * kHeadSize) + (value % kHeadSize)) *
           kItemBytes;
  }

  bool head_major_;
  std::vector<std::span<std::byte>> memory_;
  std::vector<std::span<std::byte>> layers_;
  std::vector<TensorHandle> handles_;
};

// How often `done` was called, and with what.
struct Outcome {
  std::atomic<int> calls{0};
  std::atomic<bool> copied{false};

  std::function<void(bool)> done() {
    return [this](bool succeeded) {
      copied = succeeded;
      calls += 1;
    };
  }
};

}  // namespace larder::devices
