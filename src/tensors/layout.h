// layout.h - what the bytes of one stored object mean: dtype and shape, or what it is made of.
//
// Objects are contiguous: one row-major tensor, or several things one after the other, which then
// are named by `pieces`. Two layouts are the same only if dtype, every dimension and the pieces
// agree; objects of different layouts never stand in for each other, whatever their keys say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensors/dtype.h"

namespace larder::tensors {

inline constexpr std::size_t kDimensionsMax = 8;

struct Layout {
  Dtype dtype{};
  std::vector<std::int64_t> shape;  // every dimension >= 1

  // "": one tensor. Else dtype and shape are uint8[bytes], and this says what is in them, in order,
  // e.g. "bfloat16[2, 32, 256, 8, 128] + uint8[1, 8, 256, 1, 64]".
  std::string pieces = {};

  bool operator==(const Layout&) const = default;
};

// numel * item size. kInvalid for an empty shape, more than kDimensionsMax dimensions or a
// dimension below 1; kTooLarge when the product leaves 62 bits.
Result<std::size_t> bytes_of(const Layout& layout);

// For logs: "bfloat16[2, 32, 256, 1024]", and with pieces "uint8[4096] = bfloat16[...] + ...".
std::string to_string(const Layout& layout);

}  // namespace larder::tensors
