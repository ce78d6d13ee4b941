// payload_shape.h - requests that are known but not served: only the shape of their payloads is
// checked.
//
// Blend (CB_*) and peer-to-peer (P2P_*) operations are rows of the table, so that their clients get
// the answer they can live with; their arguments get structs of their own (requests.h) when they
// are served.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "protocol/frames.h"

namespace larder::protocol {

enum class PayloadKind : std::uint8_t {
  kKey,
  kInt,
  kBool,
  kBinary,
  kString,
  kTensor,   // one Ext 1 device memory descriptor
  kTensors,  // array of them
  kIntArray,
  kIntArrays,     // array of arrays
  kTokenSpans,    // array of [int, int]
  kMatches,       // array of CBMatchResult
  kPeerKeys,      // array of ObjectKey
  kMemoryLayout,  // {shapes, dtypes}
};

// Every payload decodes as its kind, and there are exactly kinds.size() of them.
Result<void> check_shape(Frames frames, std::span<const PayloadKind> kinds, Release release);

// A request type for the operation table: decodes to nothing but the fact that it has this shape.
template <PayloadKind... kKinds>
struct Shape {
  static Result<Shape> decode(Frames frames, Release release) {
    constexpr std::array<PayloadKind, sizeof...(kKinds)> kAll{kKinds...};
    const Result<void> checked = check_shape(frames, kAll, release);
    return checked ? Result<Shape>(Shape{}) : checked.error();
  }
};

}  // namespace larder::protocol
