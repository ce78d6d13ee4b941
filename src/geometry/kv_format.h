// kv_format.h - the ways in which engines lay out their KV tensors, by the names and numbers that
// LMCache's status and logs use.
//
// A name lists the dimensions from the outermost: NL layers ("NL_X": one tensor a layer), TWO for K
// and V, NB blocks, BS slots (tokens) of a block, NH heads, HS values of a head. Token-major
// formats keep all heads of a token together (BS before NH), head-major ones all tokens of a head.
// Objects are always token-major: [kv, layer, slot, head, value], so head-major formats are
// transposed on the way.
#pragma once

#include <cstdint>
#include <string_view>

namespace larder::geometry {

enum class KvFormat : std::uint8_t {
  kNbNlTwoBsNhHs = 0,    // one tensor [NB, NL, 2, BS, NH, HS]; never arrives over the wire
  kNlXTwoNbBsNhHs = 1,   // [2, NB, BS, NH, HS] a layer
  kNlXNbTwoBsNhHs = 2,   // [NB, 2, BS, NH, HS] a layer
  kNlXNbBsHs = 3,        // [NB, BS, HS] a layer (MLA); the block may be padded
  kTwoXNlXNbbsNhHs = 4,  // K list and V list of [NB*BS, NH, HS]; has no block count
  kNlXNbbsOneHs = 5,     // [NB*BS, 1, HS] a layer; has no block count
  kNlXTwoNbNhBsHs = 6,   // [2, NB, NH, BS, HS] a layer
  kNlXNbTwoNhBsHs = 7,   // [NB, 2, NH, BS, HS] a layer
  kNbNlTwoNhBsHs = 8,    // one tensor [NB, NL, 2, NH, BS, HS]
  kTwoXNlXNbBsNhHs = 9,  // K list and V list of [NB, BS, NH, HS]
  kNlXNbNhBsTwoHs = 10,  // [NB, NH, BS, 2*HS] a layer, K and V side by side
  kNlXNbBsNhTwoHs = 11,  // [NB, BS, NH, 2*HS] a layer
  kNlXNbNhBsCs = 12,     // as 10, of any width; 0.5.5 and later
  kNlXNbBsNhCs = 13,     // as 11
  kNlXNbBsvBss =
      14,  // uint8 [NB, BS, 132] a layer: a block's BS*128 values, then its BS*4 scale bytes
};

inline constexpr std::size_t kKvFormatCount = 15;

std::string_view name_of(KvFormat format);  // "NL_X_TWO_NB_BS_NH_HS"

// Planes of an object: 2 for K and V, 1 where they share one (MLA, fused).
std::uint32_t planes_of(KvFormat format);

bool is_head_major(KvFormat format);

}  // namespace larder::geometry
