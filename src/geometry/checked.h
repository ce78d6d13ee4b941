// checked.h - products of sizes that a peer sent. Private to this room.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace larder::geometry {

inline constexpr std::uint64_t kSizeMax = (std::uint64_t{1} << 62U) - 1;

// nullopt beyond 62 bits.
inline std::optional<std::uint64_t> product(std::initializer_list<std::uint64_t> factors) {
  std::uint64_t result = 1;
  for (const std::uint64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result) || result > kSizeMax) {
      return std::nullopt;
    }
  }
  return result;
}

}  // namespace larder::geometry
