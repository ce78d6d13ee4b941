// Any bytes as a tensor list: every view lies inside its storage and every storage inside the
// input, and a tensor that can be copied comes back the same after it was written and read. With
// objects of some size cut out of it while it arrives in pieces it is the same list, or refused.
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/check.h"
#include "tensors/object_cutter.h"
#include "tensors/tensor_pickle.h"

namespace {

using larder::tensors::Layout;
using larder::tensors::TensorView;

constexpr larder::tensors::TensorListLimits kLimits = {.tensors_max = 64,
                                                       .storage_bytes_max = 1U << 16};
constexpr std::size_t kObjectBytesMax = 1U << 16;

// Of what is no list: recorded ones are of about this size.
constexpr std::size_t kCutBytes = 24;

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

// As it arrives, in pieces of so many bytes.
class Arrival {
 public:
  explicit Arrival(std::size_t object_bytes) : object_bytes_(object_bytes), cutter_(object_bytes) {}

  void arrive(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const bool is_in_object = is_incomplete();
      const std::size_t taken = is_in_object
                                    ? std::min(bytes.size(), object_bytes_ - objects_.back().size())
                                    : cutter_.scan(bytes);
      std::vector<std::byte>& to = is_in_object ? objects_.back() : rest_;
      to.insert(to.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
      bytes = bytes.subspan(taken);
      if (cutter_.is_at_object()) {
        cutter_.cut_object();
        objects_.emplace_back();
      }
    }
  }

  bool is_incomplete() const { return !objects_.empty() && objects_.back().size() < object_bytes_; }

  void check_against(const larder::Result<std::vector<TensorView>>& whole) {
    cutter_.put_right(rest_);
    std::vector<larder::tensors::CutBytes> cuts;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      cuts.push_back({cutter_.cuts()[i].position, objects_[i]});
    }
    const auto parts = larder::tensors::read_tensor_list(rest_, kLimits, cuts);
    if (!parts) {
      return;
    }
    LARDER_CHECK(whole.has_value() && whole.value().size() == parts.value().size());
    for (std::size_t i = 0; i < parts.value().size(); ++i) {
      const TensorView& left = parts.value()[i];
      const TensorView& right = whole.value()[i];
      LARDER_CHECK(left.dtype == right.dtype && left.shape == right.shape &&
                   left.strides == right.strides && left.offset == right.offset &&
                   std::ranges::equal(left.storage, right.storage));
    }
  }

 private:
  std::size_t object_bytes_;
  larder::tensors::ObjectCutter cutter_;
  std::vector<std::byte> rest_;
  std::vector<std::vector<std::byte>> objects_;
};

void check_cutting(std::span<const std::byte> input,
                   std::size_t object_bytes,
                   const larder::Result<std::vector<TensorView>>& whole) {
  Arrival arrival(object_bytes);
  const std::size_t piece = 1 + input.size() / 3;
  for (std::size_t at = 0; at < input.size(); at += piece) {
    arrival.arrive(input.subspan(at, std::min(piece, input.size() - at)));
  }
  if (!arrival.is_incomplete()) {
    arrival.check_against(whole);
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  const auto tensors = larder::tensors::read_tensor_list(input, kLimits);
  const bool has_storage =
      tensors.has_value() && !tensors.value().empty() && !tensors.value().front().storage.empty();
  check_cutting(input, has_storage ? tensors.value().front().storage.size() : kCutBytes, tensors);
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
