// version.h - what `larder --version` says. The build file repeats the number; a test keeps the two
// equal.
#pragma once

#include <string_view>

namespace larder::config {

inline constexpr std::string_view kVersion = "0.1.0";
inline constexpr std::string_view kReferenceVersion = "0.5.2";  // the LMCache release spoken first

}  // namespace larder::config
