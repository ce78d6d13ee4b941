#include "tensors/dtype.h"

#include <array>

#include "base/check.h"

namespace larder::tensors {
namespace {

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::string_view alias;  // empty: none
  std::size_t item_bytes;
};

// clang-format off
constexpr auto kDtypes = std::to_array<DtypeRow>({
    {Dtype::kBool,           "bool",             "",        1},
    {Dtype::kUint8,          "uint8",            "",        1},
    {Dtype::kInt8,           "int8",             "",        1},
    {Dtype::kInt16,          "int16",            "short",   2},
    {Dtype::kInt32,          "int32",            "int",     4},
    {Dtype::kInt64,          "int64",            "long",    8},
    {Dtype::kUint16,         "uint16",           "",        2},
    {Dtype::kUint32,         "uint32",           "",        4},
    {Dtype::kUint64,         "uint64",           "",        8},
    {Dtype::kFloat16,        "float16",          "half",    2},
    {Dtype::kBfloat16,       "bfloat16",         "",        2},
    {Dtype::kFloat32,        "float32",          "float",   4},
    {Dtype::kFloat64,        "float64",          "double",  8},
    {Dtype::kComplex32,      "complex32",        "chalf",   4},
    {Dtype::kComplex64,      "complex64",        "cfloat",  8},
    {Dtype::kComplex128,     "complex128",       "cdouble", 16},
    {Dtype::kFloat8E4m3fn,   "float8_e4m3fn",    "",        1},
    {Dtype::kFloat8E4m3fnuz, "float8_e4m3fnuz",  "",        1},
    {Dtype::kFloat8E5m2,     "float8_e5m2",      "",        1},
    {Dtype::kFloat8E5m2fnuz, "float8_e5m2fnuz",  "",        1},
    {Dtype::kFloat8E8m0fnu,  "float8_e8m0fnu",   "",        1},
    {Dtype::kFloat4E2m1fnX2, "float4_e2m1fn_x2", "",        1},
});

// clang-format on

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].dtype != static_cast<Dtype>(i)) {
      return false;
    }
  }
  return true;
}

static_assert(kDtypes.size() == kDtypeCount);
static_assert(rows_are_in_order(), "a dtype indexes its row");

const DtypeRow& row_of(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  LARDER_CHECK(index < kDtypes.size());
  return kDtypes[index];
}

}  // namespace

std::optional<Dtype> dtype_from_name(std::string_view name) {
  if (name.empty()) {
    return std::nullopt;  // would equal the missing aliases
  }
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name || row.alias == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

std::string_view name_of(Dtype dtype) {
  return row_of(dtype).name;
}

std::size_t item_bytes(Dtype dtype) {
  return row_of(dtype).item_bytes;
}

}  // namespace larder::tensors
