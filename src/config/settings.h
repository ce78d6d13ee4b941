// settings.h - what the flags, the environment and the machine together mean: the Config.
//
// Checks ranges and relations, refuses what larder lacks, and computes the defaults that depend on
// the machine. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "config/arguments.h"
#include "config/config.h"

namespace larder::config {

struct Settings {
  Config config;                     // meaningful when there are no errors
  std::vector<std::string> errors;   // one sentence each, all that were found
  std::vector<std::string> notices;  // one line each
};

Settings settle(const Arguments& arguments, const Machine& machine, Environment environment);

// "5.8 GiB", "64 MiB": for people.
std::string readable_size(std::size_t bytes);

}  // namespace larder::config
