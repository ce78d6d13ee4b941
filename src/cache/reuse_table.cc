#include "cache/reuse_table.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace larder::cache {
namespace {

constexpr std::uint64_t kYoungestUses = 16;  // ages below are not told apart

constexpr double kFade = 0.99;

// What is assumed before anything is seen, as if of so many objects that reached an age ...
constexpr double kAssumedObjects = 4;
// ... this share had been found in it, for kind 0; each kind more than the one before it.
constexpr double kAssumedShare = 0.1;

}  // namespace

ReuseTable::ReuseTable() {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    for (std::size_t age = 0; age < kAges; ++age) {
      cells_.push_back({kind, age});
    }
  }
  learn();
}

std::size_t ReuseTable::kind_of(std::uint32_t found) {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(found)), kKinds - 1);
}

std::size_t ReuseTable::age_of(std::uint64_t uses) {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(uses / kYoungestUses)),
                               kAges - 1);
}

std::uint64_t ReuseTable::first_use_of(std::size_t age) {
  return age == 0 ? 0 : kYoungestUses << (age - 1);
}

std::uint64_t ReuseTable::last_use_of(std::size_t age) {
  return age + 1 < kAges ? first_use_of(age + 1) - 1 : std::numeric_limits<std::uint64_t>::max();
}

void ReuseTable::observe(std::size_t kind, std::uint64_t uses, bool found_again) {
  (found_again ? found_ : lost_).at(kind).at(age_of(uses)) += 1;
}

ReuseTable::ByAge ReuseTable::chances_of(std::size_t kind) const {
  ByAge chances{};
  double reached = 0;  // this age, of the objects observed
  for (std::size_t age = kAges; age-- > 0;) {
    reached += found_.at(kind).at(age) + lost_.at(kind).at(age);
    const double assumed = kAssumedShare * static_cast<double>(kind + 1);
    chances.at(age) =
        (found_.at(kind).at(age) + kAssumedObjects * assumed) / (reached + kAssumedObjects);
  }
  return chances;
}

void ReuseTable::learn() {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const ByAge chances = chances_of(kind);
    for (std::size_t from = 0; from < kAges; ++from) {
      double best = 0;
      double found = 0;
      double uses = 0;
      double left = 1;
      for (std::size_t age = from; age < kAges; ++age) {
        const double chance = chances.at(age);
        const auto length = static_cast<double>(first_use_of(age + 1) - first_use_of(age));
        found += left * chance;
        uses += left * (1 - chance / 2) * length;  // those found leave half way, on average
        left *= 1 - chance;
        best = std::max(best, found / uses);
      }
      worths_.at(kind).at(from) = best;
    }
    for (std::size_t age = 0; age < kAges; ++age) {
      found_.at(kind).at(age) *= kFade;
      lost_.at(kind).at(age) *= kFade;
    }
  }
  std::stable_sort(cells_.begin(), cells_.end(), [this](const Cell& a, const Cell& b) {
    return worth(a) < worth(b);
  });
}

}  // namespace larder::cache
