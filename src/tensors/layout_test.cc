// Goal: torch's names and sizes, and byte counts that cannot overflow. Method: the whole table, and
// the edges.
#include "tensors/layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace larder::tensors {
namespace {

TEST(Dtype, HasANameThatReadsBackForEveryType) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kDtypeCount; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    names.insert(name_of(dtype));
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  }
  EXPECT_EQ(names.size(), kDtypeCount);
}

TEST(Dtype, HasTorchsItemSizes) {
  EXPECT_EQ(item_bytes(Dtype::kBool), 1U);
  EXPECT_EQ(item_bytes(Dtype::kBfloat16), 2U);
  EXPECT_EQ(item_bytes(Dtype::kFloat32), 4U);
  EXPECT_EQ(item_bytes(Dtype::kUint64), 8U);
  EXPECT_EQ(item_bytes(Dtype::kComplex32), 4U);
  EXPECT_EQ(item_bytes(Dtype::kComplex128), 16U);
  EXPECT_EQ(item_bytes(Dtype::kFloat8E8m0fnu), 1U);
  EXPECT_EQ(item_bytes(Dtype::kFloat4E2m1fnX2), 1U);
}

TEST(Dtype, KnowsTorchsAliases) {
  EXPECT_EQ(dtype_from_name("half"), Dtype::kFloat16);
  EXPECT_EQ(dtype_from_name("float"), Dtype::kFloat32);
  EXPECT_EQ(dtype_from_name("double"), Dtype::kFloat64);
  EXPECT_EQ(dtype_from_name("short"), Dtype::kInt16);
  EXPECT_EQ(dtype_from_name("int"), Dtype::kInt32);
  EXPECT_EQ(dtype_from_name("long"), Dtype::kInt64);
  EXPECT_EQ(dtype_from_name("chalf"), Dtype::kComplex32);
  EXPECT_EQ(dtype_from_name("cfloat"), Dtype::kComplex64);
  EXPECT_EQ(dtype_from_name("cdouble"), Dtype::kComplex128);
}

TEST(Dtype, KnowsNothingElse) {
  for (const char* name :
       {"", "torch.float32", "Float32", "qint8", "uint4", "bits8", "float16 ", "nn"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

TEST(Layout, CountsItsBytes) {
  EXPECT_EQ(bytes_of({Dtype::kBfloat16, {2, 32, 256, 1024}}).value(), 2U * 2 * 32 * 256 * 1024);
  EXPECT_EQ(bytes_of({Dtype::kComplex128, {1}}).value(), 16U);
  EXPECT_EQ(bytes_of({Dtype::kUint8, {1, 2, 1, 2, 1, 2, 1, 2}}).value(), 16U);
}

TEST(Layout, RefusesShapesThatAreNone) {
  EXPECT_EQ(bytes_of({Dtype::kUint8, {}}).error().code, Code::kInvalid);
  EXPECT_EQ(bytes_of({Dtype::kUint8, {1, 0}}).error().code, Code::kInvalid);
  EXPECT_EQ(bytes_of({Dtype::kUint8, {1, -1}}).error().code, Code::kInvalid);
  EXPECT_EQ(bytes_of({Dtype::kUint8, {1, 1, 1, 1, 1, 1, 1, 1, 1}}).error().code, Code::kInvalid);
  // The invalid dimension counts, however large the others are.
  EXPECT_EQ(bytes_of({Dtype::kUint8, {std::int64_t{1} << 62, 8, 0}}).error().code, Code::kInvalid);
}

TEST(Layout, RefusesMoreBytesThanCanBeCounted) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(bytes_of({Dtype::kUint8, {(std::int64_t{1} << 62) - 1}}).value(),
            (std::size_t{1} << 62) - 1);
  EXPECT_EQ(bytes_of({Dtype::kUint8, {std::int64_t{1} << 62}}).error().code, Code::kTooLarge);
  EXPECT_EQ(bytes_of({Dtype::kFloat32, {std::int64_t{1} << 60}}).error().code, Code::kTooLarge);
  EXPECT_EQ(bytes_of({Dtype::kUint8, {kHuge, kHuge, kHuge}}).error().code, Code::kTooLarge);
  EXPECT_EQ(bytes_of({Dtype::kUint8, {std::int64_t{1} << 32, std::int64_t{1} << 32}}).error().code,
            Code::kTooLarge);
}

TEST(Layout, ComparesDtypeAndEveryDimension) {
  const Layout layout{Dtype::kFloat16, {2, 3}};
  EXPECT_EQ(layout, (Layout{Dtype::kFloat16, {2, 3}}));
  EXPECT_NE(layout, (Layout{Dtype::kBfloat16, {2, 3}}));
  EXPECT_NE(layout, (Layout{Dtype::kFloat16, {3, 2}}));
  EXPECT_NE(layout, (Layout{Dtype::kFloat16, {6}}));
}

TEST(Layout, ThatIsMadeOfPiecesDiffersFromOneTensorAndFromOtherPieces) {
  const Layout tensor{Dtype::kUint8, {64}};
  const Layout pieces{Dtype::kUint8, {64}, "bfloat16[1, 1, 4, 1, 8]"};
  EXPECT_NE(tensor, pieces);
  EXPECT_NE(pieces, (Layout{Dtype::kUint8, {64}, "float16[1, 1, 4, 1, 8]"}));
  EXPECT_EQ(pieces, (Layout{Dtype::kUint8, {64}, "bfloat16[1, 1, 4, 1, 8]"}));
  EXPECT_EQ(bytes_of(pieces).value(), 64U);
}

TEST(Layout, PrintsItselfForLogs) {
  EXPECT_EQ(to_string(Layout{Dtype::kBfloat16, {2, 32, 256, 1024}}), "bfloat16[2, 32, 256, 1024]");
  EXPECT_EQ(to_string(Layout{Dtype::kUint8, {}}), "uint8[]");
  EXPECT_EQ(to_string(Layout{Dtype::kUint8, {8}, "float16[4] + uint8[4]"}),
            "uint8[8] = float16[4] + uint8[4]");
}

}  // namespace
}  // namespace larder::tensors
