// Goal: numbers are read as Python's int() and float() read them. Method: pairs of text and value
// taken from Python, and texts that Python refuses.
#include "config/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace larder::config {
namespace {

TEST(Numbers, WholeNumbersArePythons) {
  EXPECT_EQ(parse_integer("0"), 0);
  EXPECT_EQ(parse_integer(" 42 "), 42);
  EXPECT_EQ(parse_integer("+7"), 7);
  EXPECT_EQ(parse_integer("-7"), -7);
  EXPECT_EQ(parse_integer("007"), 7);
  EXPECT_EQ(parse_integer("1_000_000"), 1000000);
}

TEST(Numbers, WhatPythonRefusesAsAWholeNumberIsRefused) {
  for (const char* text :
       {"", " ", "-", "+", "+-5", "1.0", "1e3", "0x10", "1__0", "_1", "1_", "-_1", "a", "5 5"}) {
    EXPECT_FALSE(parse_integer(text)) << "'" << text << "'";
  }
}

TEST(Numbers, WholeNumbersBeyond64BitsBecomeTheNearest) {
  EXPECT_EQ(parse_integer("99999999999999999999"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse_integer("-99999999999999999999"), std::numeric_limits<std::int64_t>::min());
}

TEST(Numbers, FractionsArePythons) {
  EXPECT_EQ(parse_number("0.25"), 0.25);
  EXPECT_EQ(parse_number("1e-3"), 0.001);
  EXPECT_EQ(parse_number("1E+3"), 1000.0);
  EXPECT_EQ(parse_number(".5"), 0.5);
  EXPECT_EQ(parse_number("5."), 5.0);
  EXPECT_EQ(parse_number("-.5"), -0.5);
  EXPECT_EQ(parse_number("\t+2\n"), 2.0);
  EXPECT_EQ(parse_number("1_0.2_5"), 10.25);
  EXPECT_EQ(parse_number("Infinity"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_number("-inf"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(parse_number("NaN").value()));
}

TEST(Numbers, FractionsTooLargeAreInfiniteAndTooSmallAreZero) {
  EXPECT_EQ(parse_number("1e999"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_number("-1e999"), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse_number("1e-999"), 0.0);
}

TEST(Numbers, WhatPythonRefusesAsAFractionIsRefused) {
  for (const char* text :
       {"", ".", "e5", "1e", "0x1p3", "nan(1)", "1,5", "--1", "+-1", "1._5", "1 GiB", "infinit"}) {
    EXPECT_FALSE(parse_number(text)) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace larder::config
