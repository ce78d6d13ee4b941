// Any bytes as a tensor list: every view lies inside its storage and every storage inside the
// input, and a tensor that can be copied comes back the same after it was written and read.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/check.h"
#include "tensors/tensor_pickle.h"

namespace {

using larder::tensors::Layout;
using larder::tensors::TensorView;

constexpr larder::tensors::TensorListLimits kLimits = {.tensors_max = 64,
                                                       .storage_bytes_max = 1U << 16};
constexpr std::size_t kObjectBytesMax = 1U << 16;

void check_inside(const TensorView& tensor, std::span<const std::byte> input) {
  if (tensor.element_count() == 0) {
    return;
  }
  const std::less_equal<> not_after;
  LARDER_CHECK(not_after(input.data(), tensor.storage.data()));
  LARDER_CHECK(
      not_after(tensor.storage.data() + tensor.storage.size(), input.data() + input.size()));
  // In a type that cannot overflow here.
  __extension__ using Wide = __int128;
  Wide last = tensor.offset;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    LARDER_CHECK(tensor.shape[i] > 0 && tensor.strides[i] >= 0);
    last += Wide{tensor.shape[i] - 1} * tensor.strides[i];
  }
  const Wide end = (last + 1) * static_cast<Wide>(larder::tensors::item_bytes(tensor.dtype));
  LARDER_CHECK(tensor.offset >= 0 && end <= static_cast<Wide>(tensor.storage.size()));
}

void check_copy(const TensorView& tensor) {
  const Layout layout{tensor.dtype, tensor.shape};
  const auto bytes = larder::tensors::bytes_of(layout);
  if (!bytes || bytes.value() > kObjectBytesMax) {
    return;
  }
  std::vector<std::byte> object(bytes.value());
  LARDER_CHECK(larder::tensors::copy_to_object(tensor, layout, object).has_value());
  const std::array<std::span<const std::byte>, 2> objects = {object, object};
  larder::codec::Bytes pickle;
  larder::tensors::write_tensor_list(layout, objects, pickle);
  LARDER_CHECK(pickle.size() == larder::tensors::tensor_list_bytes(layout, 2));
  const auto again = larder::tensors::read_tensor_list(
      pickle, {.tensors_max = 2, .storage_bytes_max = 2 * object.size()});
  LARDER_CHECK(again.has_value() && again.value().size() == 2);
  for (const TensorView& view : again.value()) {
    std::vector<std::byte> copied(object.size());
    LARDER_CHECK(view.is_contiguous());
    LARDER_CHECK(larder::tensors::copy_to_object(view, layout, copied).has_value());
    LARDER_CHECK(copied == object);
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  const auto tensors = larder::tensors::read_tensor_list(input, kLimits);
  if (!tensors) {
    return 0;
  }
  LARDER_CHECK(tensors.value().size() <= kLimits.tensors_max);
  // The first few are enough: a list may name one tensor many times.
  for (std::size_t i = 0; i < std::min<std::size_t>(tensors.value().size(), 4); ++i) {
    check_inside(tensors.value()[i], input);
    check_copy(tensors.value()[i]);
  }
  return 0;
}
