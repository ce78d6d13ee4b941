// What a TensorView says about its elements, and how they are copied out in row-major order.
#include <algorithm>
#include <array>
#include <cstring>

#include "tensors/tensor_pickle.h"

namespace larder::tensors {
namespace {

// A tensor cut into runs of adjacent elements: the last dimensions are inside a run, the others
// count the runs.
struct Runs {
  std::size_t outer_dimensions;
  std::size_t run_elements;
};

Runs runs_of(const TensorView& tensor) {
  std::size_t dimension = tensor.shape.size();
  std::int64_t run_elements = 1;
  while (dimension > 0) {
    const std::int64_t size = tensor.shape[dimension - 1];
    if (size != 1 && tensor.strides[dimension - 1] != run_elements) {
      break;
    }
    run_elements *= size;
    --dimension;
  }
  return Runs{dimension, static_cast<std::size_t>(run_elements)};
}

// Copies runs of a size known to the compiler: a run is a single element when the last dimension is
// strided.
template <std::size_t kBytes>
void copy_strided(const std::byte* from,
                  std::size_t stride_bytes,
                  std::size_t count,
                  std::byte* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(to + i * kBytes, from + i * stride_bytes, kBytes);
  }
}

// `count` runs of `run_bytes`, `stride_bytes` apart.
void copy_runs(const std::byte* from,
               std::size_t stride_bytes,
               std::size_t count,
               std::size_t run_bytes,
               std::byte* to) {
  switch (run_bytes) {
    case 1:
      return copy_strided<1>(from, stride_bytes, count, to);
    case 2:
      return copy_strided<2>(from, stride_bytes, count, to);
    case 4:
      return copy_strided<4>(from, stride_bytes, count, to);
    case 8:
      return copy_strided<8>(from, stride_bytes, count, to);
    case 16:
      return copy_strided<16>(from, stride_bytes, count, to);
    default:
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(to + i * run_bytes, from + i * stride_bytes, run_bytes);
      }
  }
}

void copy_elements(const TensorView& tensor, std::byte* to) {
  const std::size_t item = item_bytes(tensor.dtype);
  const Runs runs = runs_of(tensor);
  const std::size_t run_bytes = runs.run_elements * item;
  const std::byte* const first =
      tensor.storage.data() + static_cast<std::size_t>(tensor.offset) * item;
  if (runs.outer_dimensions == 0) {
    std::memcpy(to, first, run_bytes);
    return;
  }
  // The innermost of the outer dimensions is a plain loop; an odometer turns the ones before it.
  const std::size_t inner = runs.outer_dimensions - 1;
  const auto inner_count = static_cast<std::size_t>(tensor.shape[inner]);
  const std::size_t inner_stride_bytes = static_cast<std::size_t>(tensor.strides[inner]) * item;
  std::array<std::int64_t, kDimensionsMax> odometer{};
  std::int64_t position = 0;
  while (true) {
    copy_runs(first + static_cast<std::size_t>(position) * item,
              inner_stride_bytes,
              inner_count,
              run_bytes,
              to);
    to += inner_count * run_bytes;
    std::size_t dimension = inner;
    while (dimension > 0) {
      --dimension;
      position += tensor.strides[dimension];
      if (++odometer[dimension] < tensor.shape[dimension]) {
        break;
      }
      position -= tensor.strides[dimension] * tensor.shape[dimension];
      odometer[dimension] = 0;
      if (dimension == 0) {
        return;
      }
    }
    if (inner == 0) {
      return;
    }
  }
}

}  // namespace

bool TensorView::is_contiguous() const {
  return element_count() == 0 || runs_of(*this).outer_dimensions == 0;
}

bool TensorView::is_whole_storage() const {
  return offset == 0 && is_contiguous() && element_count() * item_bytes(dtype) == storage.size();
}

std::size_t TensorView::element_count() const {
  if (std::ranges::find(shape, 0) != shape.end()) {
    return 0;
  }
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    count *= static_cast<std::size_t>(size);
  }
  return count;
}

Result<void> copy_to_object(const TensorView& tensor,
                            const Layout& layout,
                            std::span<std::byte> to) {
  if (tensor.dtype != layout.dtype || tensor.shape != layout.shape) {
    return Error{Code::kMismatch, "tensor: not of the object's dtype and shape"};
  }
  const Result<std::size_t> bytes = bytes_of(layout);
  if (!bytes || bytes.value() != to.size()) {
    return Error{Code::kMismatch, "tensor: the object has another size"};
  }
  copy_elements(tensor, to.data());
  return {};
}

}  // namespace larder::tensors
