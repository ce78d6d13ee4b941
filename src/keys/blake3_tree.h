// blake3_tree.h - the tree over chunks: BLAKE3 of whatever a source can hand out chunk by chunk.
// Private to the room.
//
// A source has
//   std::size_t bytes() const;
//   const std::byte* chunk(std::size_t index, std::byte* scratch) const;
// where chunk() returns the chunk's bytes in place, or writes them to scratch (kChunkBytes) and
// returns that; what it returns is zero-padded to a whole block. So the stack use is bounded and
// nothing is ever joined on the heap.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "keys/blake3.h"
#include "keys/blake3_kernel.h"

namespace larder::keys::blake3_kernel {

// Merges chunks, given in order, into the root.
class Tree {
 public:
  Tree(const Kernel& kernel, std::size_t chunk_count)
      : kernel_(kernel), chunk_count_(chunk_count) {}

  // A subtree is complete when its size divides the number of chunks so far; the last chunk
  // completes all of them.
  void push(ChainingValue value) {
    ++pushed_;
    const bool last = pushed_ == chunk_count_;
    for (std::size_t rest = pushed_; last ? depth_ > 0 : (rest & 1) == 0; rest >>= 1) {
      const std::uint32_t flags = last && depth_ == 1 ? kParent | kRoot : kParent;
      value = kernel_.merge(waiting_[--depth_], value, flags);
    }
    waiting_[depth_++] = value;
  }

  Blake3Digest root() const { return std::bit_cast<Blake3Digest>(waiting_[0]); }

 private:
  const Kernel& kernel_;
  std::size_t chunk_count_;
  std::size_t pushed_ = 0;
  std::size_t depth_ = 0;
  // 2^64 bytes are 2^54 chunks, and of each size one subtree waits at most. Not a std::array, which
  // would have to be filled first.
  ChainingValue waiting_[55];  // NOLINT(modernize-avoid-c-arrays)
};

template <typename Source>
Blake3Digest hash_tree(const Kernel& kernel, const Source& source) {
  const std::size_t bytes = source.bytes();
  const std::size_t chunk_count = bytes <= kChunkBytes ? 1 : (bytes - 1) / kChunkBytes + 1;
  const std::size_t full_chunks = bytes / kChunkBytes;
  // Not filled first: the hash of a single chunk would take twice as long.
  alignas(32) std::byte scratch[kLanesMax * kChunkBytes];  // NOLINT(modernize-avoid-c-arrays)
  std::byte* const slots = scratch;
  const auto take = [&](std::size_t index, std::size_t slot) {
    return Chunk{.blocks = source.chunk(index, slots + slot * kChunkBytes),
                 .bytes = index < full_chunks ? kChunkBytes : bytes - index * kChunkBytes,
                 .counter = index,
                 .end_flag = chunk_count == 1 ? kRoot : 0};
  };
  if (chunk_count == 1) {
    return std::bit_cast<Blake3Digest>(kernel.hash_chunk(take(0, 0)));
  }

  Tree tree(kernel, chunk_count);
  std::size_t next = 0;
  while (kernel.lanes > 1 && full_chunks - next >= kernel.lanes) {
    std::array<const std::byte*, kLanesMax> chunks{};
    std::array<ChainingValue, kLanesMax> values{};
    for (std::size_t lane = 0; lane < kernel.lanes; ++lane) {
      chunks[lane] = take(next + lane, lane).blocks;
    }
    kernel.hash_full_chunks(chunks.data(), next, values.data());
    for (std::size_t lane = 0; lane < kernel.lanes; ++lane) {
      tree.push(values[lane]);
    }
    next += kernel.lanes;
  }
  for (; next + 1 < chunk_count; next += 2) {
    const ChunkPair pair = kernel.hash_pair(take(next, 0), take(next + 1, 1));
    tree.push(pair[0]);
    tree.push(pair[1]);
  }
  if (next < chunk_count) {
    tree.push(kernel.hash_chunk(take(next, 0)));
  }
  return tree.root();
}

}  // namespace larder::keys::blake3_kernel
