// arguments.h - argv of `larder serve` turned into flags and typed values, with argparse's habits.
//
// `--flag value` and `--flag=value`, unambiguous prefixes, `--no-flag` of pairs, the last of
// repeated flags wins, a value may begin with '-' when it is a number or has a space in it. Checks
// what the table says of a value (number or not, choices), not what the value means: that is
// settings.h. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "config/flags.h"

namespace larder::config {

// One flag as it was given.
struct Given {
  const Flag* flag = nullptr;
  std::vector<std::string> words{};  // exactly one but for switches, pairs, kWords and kRepeated
  bool on = true;                    // of a switch or pair
  std::int64_t integer = 0;          // of kInteger
  double number = 0;                 // of kNumber
};

using Arguments = std::map<std::string_view, Given>;  // by the flag's name

// The error's detail is one sentence for the operator. --help anywhere wins over errors.
Result<Arguments> read_arguments(std::span<const std::string> words);

}  // namespace larder::config
