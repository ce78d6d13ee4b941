// token_hash.h - the rolling hash that names chunks of tokens.
//
//   none_hash = BLAKE3(8 zero bytes || 4 zero bytes)
//   hash[-1]  = none_hash
//   hash[i]   = BLAKE3(hash[i-1] || the chunk's tokens as big-endian uint32)
//
// This is LMCache's "blake3" algorithm: the server computes it, clients only send tokens, and other
// servers that share a second tier must agree on it byte for byte. A trailing partial chunk is
// never hashed. Pure; any thread.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "keys/blake3.h"

namespace larder::keys {

struct ChunkHash {
  Blake3Digest bytes{};

  auto operator<=>(const ChunkHash&) const = default;
};

// Constant: 7e3eff9e...d473b.
const ChunkHash& none_hash();

ChunkHash hash_chunk(const ChunkHash& previous, std::span<const std::uint32_t> chunk_tokens);

// Appends the hashes of the complete chunks of `tokens` that follow the hashes.size() chunks
// already hashed. REQUIRES: hashes holds the hashes of the first hashes.size() chunks of exactly
// these tokens.
void extend_hashes(std::span<const std::uint32_t> tokens,
                   std::uint32_t chunk_tokens,
                   std::vector<ChunkHash>& hashes);

// Half-open range of chunk positions.
struct ChunkRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t count() const { return end > begin ? end - begin : 0; }

  bool operator==(const ChunkRange&) const = default;
};

// The rounding of LOOKUP and FREE_LOOKUP_LOCKS: chunks of the first min(token_count, end) tokens,
// whole ones only, whose first token is at or after `start`. An inverted or negative range is
// empty, never an error.
ChunkRange chunks_within(std::size_t token_count,
                         std::int64_t start,
                         std::int64_t end,
                         std::uint32_t chunk_tokens);

}  // namespace larder::keys
