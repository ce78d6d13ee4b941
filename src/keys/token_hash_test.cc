// Goal: the names we give to chunks are those that LMCache 0.5.2 gives, and ranges round as its
// LOOKUP rounds. Method: vectors made by the real client's hasher
// (tests/fixtures/hash_vectors.json), and random ranges against the definition spelled out as a
// loop over chunks.
#include "keys/token_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/test_random.h"

namespace larder::keys {
namespace {

using Tokens = std::vector<std::uint32_t>;

std::string hex(const ChunkHash& hash) {
  std::string text;
  for (const std::byte byte : hash.bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::vector<std::string> hex(const std::vector<ChunkHash>& hashes) {
  std::vector<std::string> texts;
  std::ranges::transform(
      hashes, std::back_inserter(texts), [](const ChunkHash& hash) { return hex(hash); });
  return texts;
}

ChunkHash from_hex(const std::string& text) {
  ChunkHash hash;
  for (std::size_t i = 0; i < hash.bytes.size(); ++i) {
    hash.bytes[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return hash;
}

nlohmann::json vectors() {
  return nlohmann::json::parse(std::ifstream(LARDER_FIXTURES "/hash_vectors.json")).at("blake3");
}

std::vector<ChunkHash> hashes_of(const Tokens& tokens, std::uint32_t chunk_tokens) {
  std::vector<ChunkHash> hashes;
  extend_hashes(tokens, chunk_tokens, hashes);
  return hashes;
}

TEST(TokenHash, NamesChunksAsTheReferenceDoes) {
  const nlohmann::json cases = vectors().at("cases");
  ASSERT_EQ(cases.size(), 11U);
  for (const auto& entry : cases) {
    EXPECT_EQ(hex(none_hash()), entry.at("none_hash"));
    EXPECT_EQ(hex(hashes_of(entry.at("tokens"), entry.at("chunk_size"))),
              entry.at("chunk_hashes").get<std::vector<std::string>>())
        << entry.at("name");
  }
}

TEST(TokenHash, ReturnsTheReferencesHashesForARange) {
  const nlohmann::json cases = vectors().at("ranges");
  int checked = 0;
  for (const auto& entry : cases) {
    if (entry.contains("prefix_hash_int")) {
      continue;  // an integer as previous hash occurs only in none_hash
    }
    const Tokens tokens = entry.at("tokens");
    const std::uint32_t chunk_tokens = entry.at("chunk_size");
    const ChunkRange range =
        chunks_within(tokens.size(), entry.at("start"), entry.at("end"), chunk_tokens);
    const std::vector<ChunkHash> all = hashes_of(tokens, chunk_tokens);
    std::vector<ChunkHash> selected;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      selected.push_back(all.at(i));
    }
    EXPECT_EQ(hex(selected), entry.at("chunk_hashes").get<std::vector<std::string>>())
        << entry.at("name");
    ++checked;
  }
  EXPECT_EQ(checked, 3);
}

TEST(TokenHash, HashesSingleChunksAsTheReferenceDoes) {
  const nlohmann::json cases = vectors().at("primitive");
  int checked = 0;
  for (const auto& entry : cases) {
    if (entry.contains("prefix_bytes")) {
      const ChunkHash previous = from_hex(entry.at("prefix_bytes"));
      EXPECT_EQ(hex(hash_chunk(previous, entry.at("tokens").get<Tokens>())), entry.at("hash"));
      ++checked;
    } else if (entry.at("prefix_int") == 0 && entry.at("tokens") == Tokens{0}) {
      EXPECT_EQ(hex(none_hash()), entry.at("hash"));
      ++checked;
    }
  }
  EXPECT_EQ(checked, 2);
}

TEST(TokenHash, IsBlake3OverBigEndianTokens) {
  // Chunk lengths on both sides of where the tree of BLAKE3 grows (248 tokens fill its first
  // chunk).
  for (const std::size_t count :
       {1U, 8U, 16U, 247U, 248U, 249U, 256U, 503U, 504U, 505U, 512U, 4096U, 5000U}) {
    Tokens tokens(count);
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < count; ++i) {
      tokens[i] = static_cast<std::uint32_t>(0x9e3779b9 * (i + 1));
      for (const int shift : {24, 16, 8, 0}) {
        bytes.push_back(static_cast<std::byte>(tokens[i] >> shift));
      }
    }
    EXPECT_EQ(hash_chunk(none_hash(), tokens).bytes, blake3(none_hash().bytes, bytes)) << count;
  }
}

TEST(TokenHash, ContinuesWhereEarlierHashesEnd) {
  Tokens tokens(100);
  std::iota(tokens.begin(), tokens.end(), 1000U);
  const std::vector<ChunkHash> expected = hashes_of(tokens, 8);
  std::vector<ChunkHash> hashes;
  for (const std::size_t known_tokens : {7U, 8U, 24U, 24U, 99U, 100U}) {
    extend_hashes(std::span(tokens).first(known_tokens), 8, hashes);
    EXPECT_EQ(hashes.size(), known_tokens / 8);
  }
  EXPECT_EQ(hashes, expected);
}

TEST(TokenHash, DependsOnEveryTokenBefore) {
  Tokens tokens(64, 5);
  const std::vector<ChunkHash> before = hashes_of(tokens, 16);
  tokens[17] = 6;
  const std::vector<ChunkHash> after = hashes_of(tokens, 16);
  EXPECT_EQ(before[0], after[0]);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_NE(before[i], after[i]) << i;
  }
}

TEST(TokenHashDeathTest, RefusesHashesThatAreNotOfTheseTokens) {
  std::vector<ChunkHash> hashes(3);
  const Tokens tokens(8);
  EXPECT_DEATH(extend_hashes(tokens, 4, hashes), "complete");
}

TEST(ChunksWithin, FloorsTheEndAndRoundsTheStartUp) {
  EXPECT_EQ(chunks_within(16, 4, 12, 4), (ChunkRange{1, 3}));
  EXPECT_EQ(chunks_within(16, 2, 10, 4), (ChunkRange{1, 2}));
  EXPECT_EQ(chunks_within(16, 0, 16, 4), (ChunkRange{0, 4}));
  EXPECT_EQ(chunks_within(15, 0, 100, 4), (ChunkRange{0, 3}));
}

TEST(ChunksWithin, IsEmptyForInvertedAndNegativeRanges) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(chunks_within(16, 8, 4, 4).count(), 0U);
  EXPECT_EQ(chunks_within(16, 0, -1, 4).count(), 0U);
  EXPECT_EQ(chunks_within(16, kMax, kMin, 4).count(), 0U);
  EXPECT_EQ(chunks_within(16, kMax, kMax, 4).count(), 0U);
  EXPECT_EQ(chunks_within(0, 0, kMax, 4).count(), 0U);
  EXPECT_EQ(chunks_within(16, kMin, kMax, 4), (ChunkRange{0, 4}));
}

TEST(ChunksWithin, SelectsTheChunksThatTheDefinitionSelects) {
  std::mt19937_64 generator(test_seed());
  for (int turn = 0; turn < 2000; ++turn) {
    const std::size_t token_count = generator() % 50;
    const auto chunk_tokens = static_cast<std::uint32_t>(1 + generator() % 9);
    const std::int64_t start = static_cast<std::int64_t>(generator() % 70) - 10;
    const std::int64_t end = static_cast<std::int64_t>(generator() % 70) - 10;
    std::vector<std::size_t> expected;
    for (std::int64_t first = 0; first + chunk_tokens <= static_cast<std::int64_t>(token_count);
         first += chunk_tokens) {
      if (first >= start && first + chunk_tokens <= end) {
        expected.push_back(static_cast<std::size_t>(first) / chunk_tokens);
      }
    }
    const ChunkRange range = chunks_within(token_count, start, end, chunk_tokens);
    std::vector<std::size_t> selected;
    for (std::size_t i = range.begin; i < range.end; ++i) {
      selected.push_back(i);
    }
    ASSERT_EQ(selected, expected) << token_count << " " << start << " " << end << " "
                                  << chunk_tokens;
  }
}

}  // namespace
}  // namespace larder::keys
