// blake3_kernel.h - what the BLAKE3 implementations share, and the four operations each of them
// provides.
//
// Private to the room. blake3_tree.h cuts an input into chunks and calls these; nothing here
// allocates or keeps state. Kernels differ in speed only: which one runs is decided once, in
// blake3.cc.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "keys/blake3.h"

namespace larder::keys::blake3_kernel {

// Words are loaded from and stored to memory as they are, and BLAKE3 is little-endian.
static_assert(std::endian::native == std::endian::little);

inline constexpr std::size_t kBlockBytes = 64;
inline constexpr std::size_t kChunkBytes = 1024;
inline constexpr std::size_t kLanesMax = 8;

inline constexpr std::uint32_t kChunkStart = 1;
inline constexpr std::uint32_t kChunkEnd = 2;
inline constexpr std::uint32_t kParent = 4;
inline constexpr std::uint32_t kRoot = 8;

using ChainingValue = std::array<std::uint32_t, 8>;

inline constexpr ChainingValue kInitialValue{
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// kSchedule[round][i]: which word of the block is the i-th message word of that round.
inline constexpr std::size_t kRounds = 7;
inline constexpr auto kSchedule = [] {
  constexpr std::array<std::size_t, 16> kPermutation{
      2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
  std::array<std::array<std::size_t, 16>, kRounds> schedule{};
  for (std::size_t i = 0; i < 16; ++i) {
    schedule[0][i] = i;
  }
  for (std::size_t round = 1; round < kRounds; ++round) {
    for (std::size_t i = 0; i < 16; ++i) {
      schedule[round][i] = schedule[round - 1][kPermutation[i]];
    }
  }
  return schedule;
}();

// One chunk of the input. `blocks` is readable, and zero beyond `bytes`, up to a multiple of
// kBlockBytes (at least one block, also for the empty input).
struct Chunk {
  const std::byte* blocks = nullptr;
  std::size_t bytes = 0;
  std::uint64_t counter = 0;   // position of the chunk in the input
  std::uint32_t end_flag = 0;  // kRoot when the chunk is the whole input

  std::size_t block_count() const {
    return std::max<std::size_t>(1, (bytes + kBlockBytes - 1) / kBlockBytes);
  }

  std::size_t last_block_bytes() const { return bytes - (block_count() - 1) * kBlockBytes; }

  std::uint32_t flags_of(std::size_t block) const {
    return (block == 0 ? kChunkStart : 0) | (block + 1 == block_count() ? kChunkEnd | end_flag : 0);
  }

  std::size_t bytes_of(std::size_t block) const {
    return block + 1 == block_count() ? last_block_bytes() : kBlockBytes;
  }
};

using ChunkPair = std::array<ChainingValue, 2>;

struct Kernel {
  std::size_t lanes;  // how many full chunks hash_full_chunks takes; 1: the function is not used

  // chunks[i] is chunk number counter + i, and full. None is the whole input.
  void (*hash_full_chunks)(const std::byte* const* chunks,
                           std::uint64_t counter,
                           ChainingValue* values);

  ChainingValue (*hash_chunk)(const Chunk& chunk);

  // Two neighbours at once; `left` is full.
  ChunkPair (*hash_pair)(const Chunk& left, const Chunk& right);

  // flags: kParent, with kRoot for the last merge.
  ChainingValue (*merge)(const ChainingValue& left,
                         const ChainingValue& right,
                         std::uint32_t flags);

  // Writes the words as big-endian; out.size() == words.size_bytes().
  void (*store_big_endian)(std::span<const std::uint32_t> words, std::byte* out);
};

extern const Kernel kPortableKernel;
#if defined(__x86_64__)
extern const Kernel kSse41Kernel;   // REQUIRES: the processor has SSE4.1
extern const Kernel kAvx2Kernel;    // REQUIRES: the processor has AVX2
extern const Kernel kAvx512Kernel;  // REQUIRES: the processor has AVX-512VL
#endif

// The best one of this processor.
const Kernel& best_kernel();

// REQUIRES: blake3_available(implementation).
const Kernel& kernel_of(Blake3Implementation implementation);

}  // namespace larder::keys::blake3_kernel
