// Goal: the copy kernel moves every byte of every rectangle, and no other.
// Method: the same arithmetic on the host, against rows copied one by one: rectangles of random
// sizes, strides and alignments (seed: LARDER_TEST_SEED).
#include "devices/cuda_copy_index.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "base/test_random.h"

namespace larder::devices {
namespace {

TEST(CopyIndex, TakesTheLargestUnitThatDividesEverything) {
  EXPECT_EQ(unit_bytes_of(0), 16U);
  EXPECT_EQ(unit_bytes_of(64 | 128), 16U);
  EXPECT_EQ(unit_bytes_of(64 | 24), 8U);
  EXPECT_EQ(unit_bytes_of(16 | 4), 4U);
  EXPECT_EQ(unit_bytes_of(264), 8U);
  EXPECT_EQ(unit_bytes_of(16 | 2), 2U);
  EXPECT_EQ(unit_bytes_of(16 | 1), 1U);
}

TEST(CopyIndex, NumbersUnitsRowByRow) {
  const CopyRectangle rectangle{.engine = 1000,
                                .object = 5000,
                                .engine_stride = 64,
                                .object_stride = 256,
                                .rows = 3,
                                .row_units = 2,
                                .unit_bytes = 8};
  EXPECT_EQ(place_of_unit(rectangle, 0).engine, 1000U);
  EXPECT_EQ(place_of_unit(rectangle, 1).engine, 1008U);
  EXPECT_EQ(place_of_unit(rectangle, 1).object, 5008U);
  EXPECT_EQ(place_of_unit(rectangle, 2).engine, 1064U);
  EXPECT_EQ(place_of_unit(rectangle, 5).engine, 1136U);
  EXPECT_EQ(place_of_unit(rectangle, 5).object, 5520U);
}

TEST(CopyIndex, ReachesBeyondFourGigabytes) {
  const CopyRectangle rectangle{.engine = 0,
                                .object = 0,
                                .engine_stride = std::uint64_t{1} << 33,
                                .object_stride = 0,
                                .rows = 1U << 10,
                                .row_units = 1U << 20,
                                .unit_bytes = 16};
  const std::uint32_t last = (1U << 30) - 1;
  EXPECT_EQ(place_of_unit(rectangle, last).engine,
            ((std::uint64_t{1} << 33) * 1023) + (std::uint64_t{(1U << 20) - 1} * 16));
}

struct Case {
  CopyRectangle rectangle;  // addresses count from the start of a buffer
  std::uint64_t row_bytes = 0;
  std::size_t engine_bytes = 0;
  std::size_t object_bytes = 0;
};

Case random_case(std::mt19937_64& random) {
  const auto up_to = [&random](std::uint64_t most) { return random() % (most + 1); };
  const std::uint64_t grain = std::uint64_t{1} << up_to(5);
  Case made;
  made.row_bytes = (1 + up_to(20)) * grain;
  made.rectangle.engine = up_to(9) * grain;
  made.rectangle.object = up_to(9) * grain;
  made.rectangle.engine_stride = made.row_bytes + (up_to(9) * grain);
  made.rectangle.object_stride = made.row_bytes + (up_to(9) * grain);
  made.rectangle.rows = static_cast<std::uint32_t>(1 + up_to(20));
  made.rectangle.unit_bytes =
      unit_bytes_of(made.rectangle.engine | made.rectangle.object | made.row_bytes |
                    made.rectangle.engine_stride | made.rectangle.object_stride);
  made.rectangle.row_units = static_cast<std::uint32_t>(made.row_bytes / made.rectangle.unit_bytes);
  made.engine_bytes = made.rectangle.engine + (made.rectangle.rows * made.rectangle.engine_stride);
  made.object_bytes = made.rectangle.object + (made.rectangle.rows * made.rectangle.object_stride);
  return made;
}

TEST(CopyIndex, MovesTheBytesOfEveryRowAndNoOthers) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 500; ++round) {
    const Case made = random_case(random);
    std::vector<std::byte> engine(made.engine_bytes);
    for (std::byte& byte : engine) {
      byte = static_cast<std::byte>(random());
    }
    std::vector<std::byte> expected(made.object_bytes);
    for (std::uint32_t row = 0; row < made.rectangle.rows; ++row) {
      std::memcpy(&expected[made.rectangle.object + (row * made.rectangle.object_stride)],
                  &engine[made.rectangle.engine + (row * made.rectangle.engine_stride)],
                  made.row_bytes);
    }
    std::vector<std::byte> object(made.object_bytes);
    const std::uint32_t units = made.rectangle.rows * made.rectangle.row_units;
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      const UnitPlace place = place_of_unit(made.rectangle, unit);
      EXPECT_EQ((place.engine | place.object) % made.rectangle.unit_bytes, 0U);
      std::memcpy(&object[place.object], &engine[place.engine], made.rectangle.unit_bytes);
    }
    ASSERT_EQ(object, expected);
  }
}

}  // namespace
}  // namespace larder::devices
