#include <bit>
#include <cstring>

#include "keys/blake3_kernel.h"

namespace larder::keys::blake3_kernel {
namespace {

using Words = std::array<std::uint32_t, 16>;

// Everything below is inlined into compress(), so that the sixteen words of state live in
// registers.
//
// The message word is added before v[kB] is known, although the compiler would rather add it last:
// every block waits for the chain of additions that starts with v[kB].
[[gnu::always_inline]] inline std::uint32_t add_ahead(std::uint32_t word, std::uint32_t message) {
  std::uint32_t sum = word + message;
  asm("" : "+r"(sum));
  return sum;
}

template <std::size_t kA, std::size_t kB, std::size_t kC, std::size_t kD>
[[gnu::always_inline]] inline void mix(Words& v, std::uint32_t x, std::uint32_t y) {
  v[kA] = add_ahead(v[kA], x) + v[kB];
  v[kD] = std::rotr(v[kD] ^ v[kA], 16);
  v[kC] += v[kD];
  v[kB] = std::rotr(v[kB] ^ v[kC], 12);
  v[kA] = add_ahead(v[kA], y) + v[kB];
  v[kD] = std::rotr(v[kD] ^ v[kA], 8);
  v[kC] += v[kD];
  v[kB] = std::rotr(v[kB] ^ v[kC], 7);
}

template <std::size_t kRound>
[[gnu::always_inline]] inline void round(Words& v, const Words& message) {
  constexpr std::array<std::size_t, 16> s = kSchedule[kRound];
  mix<0, 4, 8, 12>(v, message[s[0]], message[s[1]]);
  mix<1, 5, 9, 13>(v, message[s[2]], message[s[3]]);
  mix<2, 6, 10, 14>(v, message[s[4]], message[s[5]]);
  mix<3, 7, 11, 15>(v, message[s[6]], message[s[7]]);
  mix<0, 5, 10, 15>(v, message[s[8]], message[s[9]]);
  mix<1, 6, 11, 12>(v, message[s[10]], message[s[11]]);
  mix<2, 7, 8, 13>(v, message[s[12]], message[s[13]]);
  mix<3, 4, 9, 14>(v, message[s[14]], message[s[15]]);
}

void compress(ChainingValue& value,
              const Words& message,
              std::uint64_t counter,
              std::size_t block_bytes,
              std::uint32_t flags) {
  Words v;
  std::copy(value.begin(), value.end(), v.begin());
  std::copy_n(kInitialValue.begin(), 4, v.begin() + 8);
  v[12] = static_cast<std::uint32_t>(counter);
  v[13] = static_cast<std::uint32_t>(counter >> 32);
  v[14] = static_cast<std::uint32_t>(block_bytes);
  v[15] = flags;
  round<0>(v, message);
  round<1>(v, message);
  round<2>(v, message);
  round<3>(v, message);
  round<4>(v, message);
  round<5>(v, message);
  round<6>(v, message);
  for (std::size_t i = 0; i < 8; ++i) {
    value[i] = v[i] ^ v[i + 8];
  }
}

ChainingValue hash_chunk(const Chunk& chunk) {
  ChainingValue value = kInitialValue;
  Words message;
  for (std::size_t block = 0; block < chunk.block_count(); ++block) {
    std::memcpy(message.data(), chunk.blocks + block * kBlockBytes, kBlockBytes);
    compress(value, message, chunk.counter, chunk.bytes_of(block), chunk.flags_of(block));
  }
  return value;
}

ChunkPair hash_pair(const Chunk& left, const Chunk& right) {
  return {hash_chunk(left), hash_chunk(right)};
}

ChainingValue merge(const ChainingValue& left, const ChainingValue& right, std::uint32_t flags) {
  ChainingValue value = kInitialValue;
  Words message;
  std::copy(left.begin(), left.end(), message.begin());
  std::copy(right.begin(), right.end(), message.begin() + 8);
  compress(value, message, 0, kBlockBytes, flags);
  return value;
}

void store_big_endian(std::span<const std::uint32_t> words, std::byte* out) {
  for (const std::uint32_t word : words) {
    const std::uint32_t swapped = __builtin_bswap32(word);
    std::memcpy(out, &swapped, sizeof(swapped));
    out += sizeof(swapped);
  }
}

}  // namespace

const Kernel kPortableKernel{.lanes = 1,
                             .hash_full_chunks = nullptr,
                             .hash_chunk = hash_chunk,
                             .hash_pair = hash_pair,
                             .merge = merge,
                             .store_big_endian = store_big_endian};

}  // namespace larder::keys::blake3_kernel
