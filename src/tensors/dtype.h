// dtype.h - the element types a KV cache may have, by torch's names.
//
// A closed list: sub-byte and quantised torch types are unknown here, as no engine keeps KV in
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace larder::tensors {

enum class Dtype : std::uint8_t {
  kBool,
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kComplex32,
  kComplex64,
  kComplex128,
  kFloat8E4m3fn,
  kFloat8E4m3fnuz,
  kFloat8E5m2,
  kFloat8E5m2fnuz,
  kFloat8E8m0fnu,
  kFloat4E2m1fnX2,  // two values in one byte; counted as one element of one byte, as torch does
};

inline constexpr std::size_t kDtypeCount = 22;

// Accepts torch's canonical names and its aliases ("half", "float", "long", ...), without a
// "torch." prefix.
std::optional<Dtype> dtype_from_name(std::string_view name);

// Canonical: what slot descriptors carry, e.g. "bfloat16".
std::string_view name_of(Dtype dtype);

std::size_t item_bytes(Dtype dtype);

}  // namespace larder::tensors
