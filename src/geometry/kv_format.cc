#include "geometry/kv_format.h"

#include <array>

#include "base/check.h"

namespace larder::geometry {
namespace {

struct FormatRow {
  KvFormat format;
  std::string_view name;
  std::uint32_t planes;
  bool is_head_major;
};

// clang-format off
constexpr auto kFormats = std::to_array<FormatRow>({
    {KvFormat::kNbNlTwoBsNhHs,   "NB_NL_TWO_BS_NH_HS",     2, false},
    {KvFormat::kNlXTwoNbBsNhHs,  "NL_X_TWO_NB_BS_NH_HS",   2, false},
    {KvFormat::kNlXNbTwoBsNhHs,  "NL_X_NB_TWO_BS_NH_HS",   2, false},
    {KvFormat::kNlXNbBsHs,       "NL_X_NB_BS_HS",          1, false},
    {KvFormat::kTwoXNlXNbbsNhHs, "TWO_X_NL_X_NBBS_NH_HS",  2, false},
    {KvFormat::kNlXNbbsOneHs,    "NL_X_NBBS_ONE_HS",       1, false},
    {KvFormat::kNlXTwoNbNhBsHs,  "NL_X_TWO_NB_NH_BS_HS",   2, true},
    {KvFormat::kNlXNbTwoNhBsHs,  "NL_X_NB_TWO_NH_BS_HS",   2, true},
    {KvFormat::kNbNlTwoNhBsHs,   "NB_NL_TWO_NH_BS_HS",     2, true},
    {KvFormat::kTwoXNlXNbBsNhHs, "TWO_X_NL_X_NB_BS_NH_HS", 2, false},
    {KvFormat::kNlXNbNhBsTwoHs,  "NL_X_NB_NH_BS_TWO_HS",   1, true},
    {KvFormat::kNlXNbBsNhTwoHs,  "NL_X_NB_BS_NH_TWO_HS",   1, false},
    {KvFormat::kNlXNbNhBsCs,     "NL_X_NB_NH_BS_CS",       1, true},
    {KvFormat::kNlXNbBsNhCs,     "NL_X_NB_BS_NH_CS",       1, false},
    {KvFormat::kNlXNbBsvBss,     "NL_X_NB_BSV_BSS",        1, false},
});

// clang-format on

constexpr bool rows_are_in_order() {
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i].format != static_cast<KvFormat>(i)) {
      return false;
    }
  }
  return true;
}

static_assert(kFormats.size() == kKvFormatCount);
static_assert(rows_are_in_order(), "a format indexes its row");

const FormatRow& row_of(KvFormat format) {
  const auto index = static_cast<std::size_t>(format);
  LARDER_CHECK(index < kFormats.size());
  return kFormats[index];
}

}  // namespace

std::string_view name_of(KvFormat format) {
  return row_of(format).name;
}

std::uint32_t planes_of(KvFormat format) {
  return row_of(format).planes;
}

bool is_head_major(KvFormat format) {
  return row_of(format).is_head_major;
}

}  // namespace larder::geometry
