#include "config/nearest.h"

#include <algorithm>
#include <vector>

namespace larder::config {

std::size_t edit_distance(std::string_view left, std::string_view right) {
  // Three rows of the usual table: a swap looks two rows back.
  std::vector<std::size_t> before(right.size() + 1);
  std::vector<std::size_t> above(right.size() + 1);
  std::vector<std::size_t> row(right.size() + 1);
  for (std::size_t j = 0; j <= right.size(); ++j) {
    row[j] = j;
  }
  for (std::size_t i = 1; i <= left.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= right.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (left[i - 1] == right[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[right.size()];
}

std::string nearest_word(std::string_view word, std::span<const std::string> known) {
  // A third of the letters wrong is another word; more than four wrong is no typing error.
  const std::size_t distance_max = std::clamp<std::size_t>(word.size() / 3, 1, 4);
  constexpr std::size_t kTypedLettersMax = 64;  // longer than any flag; keeps the table small
  if (word.size() > kTypedLettersMax) {
    return {};
  }
  std::string nearest;
  std::size_t nearest_distance = distance_max + 1;
  for (const std::string& candidate : known) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < nearest_distance) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  if (!nearest.empty()) {
    return nearest;
  }
  const std::string_view stem = word.substr(std::min(word.find_first_not_of('-'), word.size()));
  constexpr std::size_t kStemLettersMin = 4;
  const auto containing = std::find_if(known.begin(), known.end(), [&](const auto& candidate) {
    return stem.size() >= kStemLettersMin && candidate.find(stem) != std::string::npos;
  });
  return containing == known.end() ? std::string() : *containing;
}

}  // namespace larder::config
