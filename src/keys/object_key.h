// object_key.h - what names one stored chunk of one rank.
//
// The full key of the protocol is (chunk hash, model, kv_rank, object group, cache salt). The keys
// of a request share all but hash and rank, so they are split here: KeySpace is looked up once a
// request and object group, ObjectId once a chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "keys/token_hash.h"

namespace larder::keys {

inline constexpr std::uint32_t kWorldSizeMax = 255;  // beyond, the fields of kv_rank overlap

// world_size<<24 | worker<<16 | world_size<<8 | worker. REQUIRES: 1 <= world_size <= kWorldSizeMax,
// worker < world_size.
std::uint32_t pack_kv_rank(std::uint32_t world_size, std::uint32_t worker);

std::uint32_t world_size_of(std::uint32_t kv_rank);

struct ObjectId {
  ChunkHash chunk_hash;
  std::uint32_t kv_rank = 0;

  bool operator==(const ObjectId&) const = default;
};

struct ObjectIdHash {
  // The chunk hash is uniform already; the rank only separates the few objects that share it.
  std::size_t operator()(const ObjectId& id) const {
    std::uint64_t head = 0;
    std::memcpy(&head, id.chunk_hash.bytes.data(), sizeof(head));
    return static_cast<std::size_t>(head ^
                                    (0x9e3779b97f4a7c15ULL * (std::uint64_t{id.kv_rank} + 1)));
  }
};

}  // namespace larder::keys
