// layout.h - dtype and shape of one stored object: what its bytes mean.
//
// Objects are row-major and contiguous. Two layouts are the same only if dtype and every dimension
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

  bool operator==(const Layout&) const = default;
};

// numel * item size. kInvalid for an empty shape, more than kDimensionsMax dimensions or a
// dimension below 1; kTooLarge when the product leaves 62 bits.
Result<std::size_t> bytes_of(const Layout& layout);

// For logs: "bfloat16[2, 32, 256, 1024]".
std::string to_string(const Layout& layout);

}  // namespace larder::tensors
