// Goal: a typing error finds the word that was meant, and another word finds nothing.
// Method: examples, and the laws of a distance on random words.
#include "config/nearest.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/test_random.h"

namespace larder::config {
namespace {

TEST(Nearest, ASwapOfNeighboursCountsOnce) {
  EXPECT_EQ(edit_distance("--prot", "--port"), 1U);
  EXPECT_EQ(edit_distance("port", "port"), 0U);
  EXPECT_EQ(edit_distance("", "port"), 4U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(Nearest, DistanceIsSymmetricAndWithinTheLongerWord) {
  std::mt19937_64 random(test_seed());
  const auto word = [&] {
    std::string letters(random() % 9, 'a');
    for (char& letter : letters) {
      letter = static_cast<char>('a' + static_cast<char>(random() % 3));
    }
    return letters;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string left = word();
    const std::string right = word();
    const std::size_t distance = edit_distance(left, right);
    EXPECT_EQ(distance, edit_distance(right, left)) << left << " " << right;
    EXPECT_LE(distance, std::max(left.size(), right.size()));
    EXPECT_GE(distance + std::min(left.size(), right.size()), std::max(left.size(), right.size()));
    EXPECT_EQ(distance == 0, left == right);
  }
}

TEST(Nearest, TheClosestKnownWordWins) {
  const std::vector<std::string> known{"--host", "--http-host", "--port", "--max-workers"};
  EXPECT_EQ(nearest_word("--hots", known), "--host");
  EXPECT_EQ(nearest_word("--htp-host", known), "--http-host");
  EXPECT_EQ(nearest_word("--workers", known), "--max-workers");
}

TEST(Nearest, AWordUnlikeAllFindsNothing) {
  const std::vector<std::string> known{"--host", "--port"};
  EXPECT_EQ(nearest_word("--cpu-buffer-size", known), "");
  EXPECT_EQ(nearest_word("", known), "");
  EXPECT_EQ(nearest_word(std::string(100000, 'x'), known), "");
}

}  // namespace
}  // namespace larder::config
