// Goal: the bytes of any view come out row-major, wherever its strides lead. Method: random views
// against a walk over every index, seeded by LARDER_TEST_SEED.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>

#include "base/test_random.h"
#include "tensors/tensor_pickle.h"

namespace larder::tensors {
namespace {

constexpr std::array<Dtype, 5> kOneDtypeOfEachSize = {
    Dtype::kUint8, Dtype::kBfloat16, Dtype::kFloat32, Dtype::kInt64, Dtype::kComplex128};

std::vector<std::int64_t> row_major_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i > 0; --i) {
    strides[i - 1] = stride;
    stride *= shape[i - 1];
  }
  return strides;
}

// Element by element, by the definition in the header.
std::vector<std::byte> walked(const TensorView& tensor) {
  const std::size_t item = item_bytes(tensor.dtype);
  std::vector<std::byte> bytes;
  for (std::size_t element = 0; element < tensor.element_count(); ++element) {
    std::size_t rest = element;
    std::int64_t position = tensor.offset;
    for (std::size_t i = tensor.shape.size(); i > 0; --i) {
      const auto size = static_cast<std::size_t>(tensor.shape[i - 1]);
      position += static_cast<std::int64_t>(rest % size) * tensor.strides[i - 1];
      rest /= size;
    }
    const auto from = tensor.storage.subspan(static_cast<std::size_t>(position) * item, item);
    bytes.insert(bytes.end(), from.begin(), from.end());
  }
  return bytes;
}

std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

// A view with permuted, padded, broadcast or contiguous dimensions; `storage` gets exactly the size
// it needs.
TensorView random_view(std::mt19937_64& random, std::vector<std::byte>& storage) {
  TensorView view;
  view.dtype = kOneDtypeOfEachSize[random() % kOneDtypeOfEachSize.size()];
  view.shape.resize(1 + random() % 5);
  for (std::int64_t& size : view.shape) {
    size = static_cast<std::int64_t>(1 + random() % 4);
  }
  std::vector<std::size_t> order(view.shape.size());
  std::iota(order.begin(), order.end(), 0U);
  if (random() % 2 == 0) {
    std::shuffle(order.begin(), order.end(), random);
  }
  view.strides.resize(view.shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i > 0; --i) {
    stride += random() % 4 == 0 ? static_cast<std::int64_t>(random() % 3) : 0;
    view.strides[order[i - 1]] = random() % 8 == 0 ? 0 : stride;
    stride *= view.shape[order[i - 1]];
  }
  view.offset = static_cast<std::int64_t>(random() % 5);
  std::int64_t last = view.offset;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    last += (view.shape[i] - 1) * view.strides[i];
  }
  storage = random_bytes(random, static_cast<std::size_t>(last + 1) * item_bytes(view.dtype));
  view.storage = storage;
  return view;
}

TEST(TensorView, CopiesEveryViewRowMajor) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::byte> storage;
    const TensorView view = random_view(random, storage);
    const Layout layout{view.dtype, view.shape};
    std::vector<std::byte> object(bytes_of(layout).value());
    ASSERT_TRUE(copy_to_object(view, layout, object).has_value());
    ASSERT_EQ(object, walked(view)) << to_string(layout) << testing::PrintToString(view.strides);
    ASSERT_TRUE(!view.is_contiguous() || view.strides == row_major_strides(view.shape) ||
                std::ranges::count(view.shape, 1) > 0);
  }
}

TEST(TensorView, KnowsWhatIsContiguous) {
  const auto contiguous = [](std::vector<std::int64_t> shape, std::vector<std::int64_t> strides) {
    return TensorView{Dtype::kUint8, std::move(shape), std::move(strides), 0, {}}.is_contiguous();
  };
  EXPECT_TRUE(contiguous({2, 3, 4}, {12, 4, 1}));
  EXPECT_TRUE(contiguous({2, 1, 4}, {4, 99, 1}));  // the stride of a single element is never used
  EXPECT_TRUE(contiguous({1, 3, 4}, {0, 4, 1}));
  EXPECT_TRUE(contiguous({}, {}));
  EXPECT_TRUE(contiguous({2, 0, 4}, {7, 7, 7}));
  EXPECT_FALSE(contiguous({2, 3, 4}, {13, 4, 1}));
  EXPECT_FALSE(contiguous({2, 3}, {1, 2}));
  EXPECT_FALSE(contiguous({2, 3}, {0, 1}));
  EXPECT_FALSE(contiguous({3}, {2}));
}

TEST(TensorView, CountsItsElements) {
  const auto count = [](std::vector<std::int64_t> shape) {
    return TensorView{Dtype::kFloat32, std::move(shape), {}, 0, {}}.element_count();
  };
  EXPECT_EQ(count({}), 1U);
  EXPECT_EQ(count({3, 4}), 12U);
  EXPECT_EQ(count({3, 0}), 0U);
  EXPECT_EQ(count({std::int64_t{1} << 62, std::int64_t{1} << 62, 0}), 0U);
}

TEST(TensorView, CopiesOnlyIntoAnObjectOfItsOwnLayout) {
  const std::vector<std::byte> storage(24, std::byte{7});
  const TensorView view{Dtype::kFloat16, {3, 4}, {4, 1}, 0, storage};
  std::vector<std::byte> object(24);
  const auto code = [&](const Layout& layout, std::span<std::byte> to) {
    return copy_to_object(view, layout, to).error().code;
  };
  EXPECT_TRUE(copy_to_object(view, {Dtype::kFloat16, {3, 4}}, object).has_value());
  EXPECT_EQ(code({Dtype::kBfloat16, {3, 4}}, object), Code::kMismatch);
  EXPECT_EQ(code({Dtype::kFloat16, {4, 3}}, object), Code::kMismatch);
  EXPECT_EQ(code({Dtype::kFloat16, {12}}, object), Code::kMismatch);
  EXPECT_EQ(code({Dtype::kFloat16, {3, 4}}, std::span(object).first(23)), Code::kMismatch);
  std::vector<std::byte> larger(25);
  EXPECT_EQ(code({Dtype::kFloat16, {3, 4}}, larger), Code::kMismatch);
}

TEST(TensorView, IsAMismatchWhenItHasNoElementsOrNoDimension) {
  std::byte byte{};
  const TensorView scalar{Dtype::kUint8, {}, {}, 0, std::span(&byte, 1)};
  EXPECT_EQ(copy_to_object(scalar, {Dtype::kUint8, {}}, std::span(&byte, 1)).error().code,
            Code::kMismatch);
  const TensorView empty{Dtype::kUint8, {0}, {1}, 0, {}};
  EXPECT_EQ(copy_to_object(empty, {Dtype::kUint8, {0}}, {}).error().code, Code::kMismatch);
}

}  // namespace
}  // namespace larder::tensors
