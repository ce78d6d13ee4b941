// Goal: every BLAKE3 implementation gives the published digests, and all of them agree on
// everything else. Method: the official lengths against digests made by another implementation
// (tests/fixtures/blake3_vectors.json), then random lengths and splits, and single operations of
// the kernels, against the portable implementation.
#include "keys/blake3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/test_random.h"
#include "keys/blake3_kernel.h"

namespace larder::keys {
namespace {

using blake3_kernel::ChainingValue;
using blake3_kernel::Chunk;
using blake3_kernel::kChunkBytes;
using blake3_kernel::Kernel;

std::vector<std::byte> official_input(std::size_t size) {
  std::vector<std::byte> input(size);
  for (std::size_t i = 0; i < size; ++i) {
    input[i] = static_cast<std::byte>(i % 251);
  }
  return input;
}

std::string hex(const Blake3Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::vector<std::byte> random_input(std::size_t size, std::mt19937_64& generator) {
  std::vector<std::byte> input(size);
  std::ranges::generate(input, [&] { return static_cast<std::byte>(generator()); });
  return input;
}

class EveryBlake3 : public ::testing::TestWithParam<Blake3Implementation> {
 protected:
  void SetUp() override {
    if (!blake3_available(GetParam())) {
      GTEST_SKIP() << "this processor lacks the instructions";
    }
  }

  static const Kernel& kernel() { return blake3_kernel::kernel_of(GetParam()); }
};

TEST_P(EveryBlake3, GivesThePublishedDigests) {
  const auto vectors = nlohmann::json::parse(std::ifstream(LARDER_FIXTURES "/blake3_vectors.json"));
  ASSERT_EQ(vectors.at("cases").size(), 35U);
  for (const auto& entry : vectors.at("cases")) {
    const auto size = entry.at("bytes").get<std::size_t>();
    EXPECT_EQ(hex(blake3_by(GetParam(), official_input(size))), entry.at("hash")) << size;
  }
}

TEST_P(EveryBlake3, DoesNotSeeWhereTheInputIsSplit) {
  for (const std::size_t size : {1U, 64U, 100U, 1024U, 1056U, 2048U, 2049U, 9300U}) {
    const std::vector<std::byte> input = official_input(size);
    const auto whole = std::span<const std::byte>(input);
    const Blake3Digest expected = blake3_by(Blake3Implementation::kPortable, whole);
    for (const std::size_t at : {0U, 1U, 32U, 63U, 64U, 65U, 1023U, 1024U, 1025U, 2048U, 9300U}) {
      if (at <= size) {
        EXPECT_EQ(blake3_by(GetParam(), whole.first(at), whole.subspan(at)), expected)
            << size << " split at " << at;
      }
    }
  }
}

TEST_P(EveryBlake3, AgreesWithThePortableOneOnRandomInputs) {
  std::mt19937_64 generator(test_seed());
  const std::vector<std::byte> input = random_input(40000, generator);
  for (int turn = 0; turn < 400; ++turn) {
    // Short inputs, whose tree is a chunk or two, as often as long ones.
    const std::size_t size_max = turn % 2 == 0 ? 3 * kChunkBytes : input.size() - 64;
    const std::size_t size = generator() % (size_max + 1);
    // Any alignment: vectors are loaded from where the input lies.
    const auto whole = std::span(input).subspan(generator() % 64, size);
    const std::size_t at = generator() % (size + 1);
    ASSERT_EQ(blake3_by(GetParam(), whole.first(at), whole.subspan(at)),
              blake3_by(Blake3Implementation::kPortable, whole))
        << size << " split at " << at;
  }
}

TEST_P(EveryBlake3, ReadsNothingBeyondTheInput) {
  // The input ends where the allocation ends, so that AddressSanitizer sees any vector load beyond
  // it.
  for (std::size_t size = 1000; size < 1100; ++size) {
    const std::vector<std::byte> input(size, std::byte{7});
    EXPECT_EQ(blake3_by(GetParam(), input), blake3_by(Blake3Implementation::kPortable, input));
  }
}

TEST_P(EveryBlake3, CountsChunksBeyond32Bits) {
  // An input that long cannot be hashed in a test, so the kernel is asked directly.
  const std::vector<std::byte> input = official_input(8 * kChunkBytes);
  const std::uint64_t counter = (std::uint64_t{1} << 32) - 3;
  std::array<const std::byte*, 8> chunks{};
  std::array<ChainingValue, 8> expected{};
  for (std::size_t lane = 0; lane < chunks.size(); ++lane) {
    chunks[lane] = input.data() + lane * kChunkBytes;
    const Chunk chunk{.blocks = chunks[lane], .bytes = kChunkBytes, .counter = counter + lane};
    expected[lane] = blake3_kernel::kPortableKernel.hash_chunk(chunk);
    EXPECT_EQ(kernel().hash_chunk(chunk), expected[lane]);
  }
  if (kernel().lanes > 1) {
    std::array<ChainingValue, 8> values{};
    kernel().hash_full_chunks(chunks.data(), counter, values.data());
    for (std::size_t lane = 0; lane < kernel().lanes; ++lane) {
      EXPECT_EQ(values[lane], expected[lane]) << lane;
    }
  }
}

TEST_P(EveryBlake3, StoresWordsBigEndian) {
  for (std::size_t count = 0; count < 40; ++count) {
    std::vector<std::uint32_t> words(count);
    std::vector<std::byte> expected;
    for (std::size_t i = 0; i < count; ++i) {
      words[i] = static_cast<std::uint32_t>(0x89abcdef * (i + 1));
      for (const int shift : {24, 16, 8, 0}) {
        expected.push_back(static_cast<std::byte>(words[i] >> shift));
      }
    }
    std::vector<std::byte> out(count * sizeof(std::uint32_t));
    kernel().store_big_endian(words, out.data());
    EXPECT_EQ(out, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Implementations,
                         EveryBlake3,
                         ::testing::Values(Blake3Implementation::kPortable,
                                           Blake3Implementation::kSse41,
                                           Blake3Implementation::kAvx2,
                                           Blake3Implementation::kAvx512),
                         [](const auto& parameter) -> std::string {
                           switch (parameter.param) {
                             case Blake3Implementation::kPortable:
                               return "portable";
                             case Blake3Implementation::kSse41:
                               return "sse41";
                             case Blake3Implementation::kAvx2:
                               return "avx2";
                             case Blake3Implementation::kAvx512:
                               return "avx512";
                           }
                           return "unnamed";
                         });

TEST(Blake3, ChoosesAnImplementationOfThisProcessor) {
  const std::vector<std::byte> input = official_input(5000);
  EXPECT_EQ(blake3(input), blake3_by(Blake3Implementation::kPortable, input));
  EXPECT_EQ(blake3({}, input), blake3(input));
}

}  // namespace
}  // namespace larder::keys
