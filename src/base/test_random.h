// test_random.h - for the tests of all rooms: the seed and the length of random ones.
//
// LARDER_TEST_SEED repeats a run; without it each run has a seed of its own. It is printed.
// LARDER_TEST_SCALE makes the long ones so many times as long, e.g. 100 for a night or 0.1 under a
// slow sanitizer.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace larder {

// One for the whole process.
inline std::uint64_t test_seed() {
  static const std::uint64_t kSeed = [] {
    const char* const given = std::getenv("LARDER_TEST_SEED");
    const std::uint64_t chosen =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::cout << "LARDER_TEST_SEED=" << chosen << '\n';
    return chosen;
  }();
  return kSeed;
}

// `steps` as scaled.
inline std::uint64_t test_steps(std::uint64_t steps) {
  const char* const given = std::getenv("LARDER_TEST_SCALE");
  const double scale = given != nullptr ? std::strtod(given, nullptr) : 1.0;
  return static_cast<std::uint64_t>(static_cast<double>(steps) * scale);
}

}  // namespace larder
