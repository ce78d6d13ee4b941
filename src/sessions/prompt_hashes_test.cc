// Goal: hashes are always those of the tokens asked for, whatever was asked for before, and what is
// kept has bounds. Method: compare with hashing from scratch; then random prompts under few ids.
#include "sessions/prompt_hashes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/test_random.h"
#include "sessions/test_sessions.h"

namespace larder::sessions {
namespace {

class PromptHashesTest : public testing::Test {
 protected:
  static constexpr std::size_t kTokensMax = 100;

  void expect_right(const std::string& request_id, const std::vector<std::uint32_t>& tokens) {
    const PromptView view = prompts_.hash(request_id, tokens);
    const std::vector<keys::ChunkHash> expected = hashes_of(tokens);
    ASSERT_EQ(view.chunk_count(), expected.size());
    ASSERT_TRUE(
        std::equal(expected.begin(), expected.end(), view.hashes().begin(), view.hashes().end()));
  }

  // Two views share one hashing when their hashes lie at one place.
  const keys::ChunkHash* place(const std::string& request_id,
                               const std::vector<std::uint32_t>& tokens) {
    return prompts_.hash(request_id, tokens).hashes().data();
  }

  ManualClock clock_;
  PromptHashes prompts_{kTestChunkTokens, kTokensMax, clock_};
};

TEST_F(PromptHashesTest, HashesCompleteChunksOnly) {
  std::vector<std::uint32_t> tokens = test_tokens(1, 2);
  tokens.push_back(9);
  EXPECT_EQ(prompts_.hash("a", tokens).chunk_count(), 2U);
  expect_right("a", tokens);
}

TEST_F(PromptHashesTest, ThePromptAgainIsNotHashedAgain) {
  const auto tokens = test_tokens(1, 5);
  const PromptView kept = prompts_.hash("a", tokens);
  EXPECT_EQ(place("a", tokens), kept.hashes().data());
}

TEST_F(PromptHashesTest, APrefixOfThePromptSharesItsHashes) {
  const PromptView kept = prompts_.hash("a", test_tokens(1, 5));
  const PromptView prefix = prompts_.hash("a", test_tokens(1, 3));
  EXPECT_EQ(prefix.hashes().data(), kept.hashes().data());
  EXPECT_EQ(prefix.chunk_count(), 3U);
  EXPECT_EQ(place("a", test_tokens(1, 5)), kept.hashes().data())
      << "the shorter request did not cut it";
}

TEST_F(PromptHashesTest, TokensBehindTheLastWholeChunkCostNothing) {
  auto tokens = test_tokens(1, 3);
  const PromptView kept = prompts_.hash("a", tokens);
  tokens.push_back(1);
  EXPECT_EQ(place("a", tokens), kept.hashes().data());
}

TEST_F(PromptHashesTest, AGrowingPromptStaysRight) {
  for (std::size_t chunks = 0; chunks < 10; ++chunks) {
    expect_right("a", test_tokens(1, chunks));
  }
}

TEST_F(PromptHashesTest, OtherTokensUnderTheSameIdNeverGetTheOldHashes) {
  expect_right("a", test_tokens(1, 5));
  expect_right("a", test_tokens(2, 5));
  std::vector<std::uint32_t> tokens = test_tokens(1, 5);
  for (std::size_t changed = 0; changed < tokens.size(); ++changed) {
    expect_right("a", test_tokens(1, 5));
    ++tokens[changed];
    expect_right("a", tokens);
    --tokens[changed];
  }
}

TEST_F(PromptHashesTest, AViewOutlivesWhatIsKept) {
  const PromptView view = prompts_.hash("a", test_tokens(1, 5));
  prompts_.hash("a", test_tokens(2, 5));
  clock_.advance(seconds(10));
  prompts_.sweep(seconds(1));
  EXPECT_EQ(prompts_.kept_tokens(), 0U);
  EXPECT_EQ(view.hashes().back(), hashes_of(1, 5).back());
}

TEST_F(PromptHashesTest, KeepsNoMoreTokensThanItsBound) {
  for (std::uint32_t prompt = 0; prompt < 20; ++prompt) {
    prompts_.hash("id" + std::to_string(prompt), test_tokens(prompt, 5));
    EXPECT_LE(prompts_.kept_tokens(), kTokensMax);
  }
  EXPECT_EQ(prompts_.kept_tokens(), kTokensMax);
}

TEST_F(PromptHashesTest, TheLeastRecentlyUsedGoesFirst) {
  const PromptView first = prompts_.hash("first", test_tokens(1, 10));
  const PromptView second = prompts_.hash("second", test_tokens(2, 10));
  prompts_.hash("first", test_tokens(1, 10));
  prompts_.hash("third", test_tokens(3, 10));
  EXPECT_EQ(place("first", test_tokens(1, 10)), first.hashes().data());
  EXPECT_NE(place("second", test_tokens(2, 10)), second.hashes().data());
}

TEST_F(PromptHashesTest, APromptLargerThanTheBoundIsHashedAndNotKept) {
  prompts_.hash("small", test_tokens(1, 5));
  expect_right("large", test_tokens(2, 40));
  EXPECT_EQ(prompts_.kept_tokens(), 20U);
}

TEST_F(PromptHashesTest, APromptWithoutAWholeChunkIsNotKept) {
  expect_right("none", {});
  expect_right("few", {1, 2, 3});
  EXPECT_EQ(prompts_.kept_tokens(), 0U) << "else ids without tokens would grow without a bound";
}

TEST_F(PromptHashesTest, SweepsWhatWasNotAskedForLately) {
  const PromptView old = prompts_.hash("old", test_tokens(1, 5));
  const PromptView used = prompts_.hash("used", test_tokens(2, 5));
  clock_.advance(seconds(60));
  EXPECT_EQ(place("used", test_tokens(2, 5)), used.hashes().data());
  clock_.advance(seconds(30));
  prompts_.sweep(seconds(60));
  EXPECT_EQ(prompts_.kept_tokens(), 20U);
  EXPECT_EQ(place("used", test_tokens(2, 5)), used.hashes().data());
  EXPECT_NE(place("old", test_tokens(1, 5)), old.hashes().data());
}

TEST_F(PromptHashesTest, AnyOrderOfPromptsAndIdsIsRight) {
  std::mt19937_64 random(test_seed());
  for (int step = 0; step < 3000; ++step) {
    std::vector<std::uint32_t> tokens =
        test_tokens(static_cast<std::uint32_t>(random() % 2), random() % 12);
    if (!tokens.empty() && random() % 3 == 0) {
      tokens[random() % tokens.size()] ^= 1;
    }
    tokens.resize(tokens.size() - random() % (1 + tokens.size() % kTestChunkTokens));
    ASSERT_NO_FATAL_FAILURE(expect_right("id" + std::to_string(random() % 3), tokens))
        << "step " << step;
    ASSERT_LE(prompts_.kept_tokens(), kTokensMax);
    clock_.advance(milliseconds(random() % 100));
    if (random() % 20 == 0) {
      prompts_.sweep(milliseconds(200));
    }
  }
}

}  // namespace
}  // namespace larder::sessions
