// release.h - the LMCache releases whose wire dialects we know.
//
// One enumerator per dialect ("wire profile"): releases that are equal on the wire share one. The
// enumerator is the column of the operation table (handlers/operations.cc) and a parameter of every
// decoder and encoder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace larder::protocol {

enum class Release : std::uint8_t {
  k045,     // 0.4.5
  k046,     // 0.4.6
  k047,     // 0.4.7
  k050,     // 0.5.0, 0.5.1, 0.5.2
  k053,     // 0.5.3, 0.5.4
  k055,     // 0.5.5
  k056,     // 0.5.6
  k057rc3,  // 0.5.7rc3
};

inline constexpr std::size_t kReleaseCount = 8;

constexpr std::size_t column_of(Release release) {
  return static_cast<std::size_t>(release);
}

constexpr std::string_view name_of(Release release) {
  constexpr std::array<std::string_view, kReleaseCount> kNames{
      "0.4.5", "0.4.6", "0.4.7", "0.5.0-0.5.2", "0.5.3-0.5.4", "0.5.5", "0.5.6", "0.5.7rc3"};
  return kNames[column_of(release)];
}

}  // namespace larder::protocol
