// numbers.h - numbers as Python's int() and float() read them, so that a command line means the
// same here as there.
//
// Accepted as there: spaces around, a sign, underscores between digits ("1_000"), "1e-3", ".5",
// "inf". Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace larder::config {

// nullopt: not a whole number. A value beyond 64 bits becomes the nearest one that fits; every
// flag's range check refuses it then.
std::optional<std::int64_t> parse_integer(std::string_view text);

// nullopt: not a number. May be infinite or NaN.
std::optional<double> parse_number(std::string_view text);

}  // namespace larder::config
