#include "tensors/layout.h"

namespace larder::tensors {

Result<std::size_t> bytes_of(const Layout& layout) {
  if (layout.shape.empty() || layout.shape.size() > kDimensionsMax) {
    return Error{Code::kInvalid, "layout: no dimension, or too many"};
  }
  for (const std::int64_t dimension : layout.shape) {
    if (dimension < 1) {
      return Error{Code::kInvalid, "layout: a dimension below 1"};
    }
  }
  constexpr std::uint64_t kBytesMax = (std::uint64_t{1} << 62) - 1;
  std::uint64_t bytes = item_bytes(layout.dtype);
  for (const std::int64_t dimension : layout.shape) {
    const auto factor = static_cast<std::uint64_t>(dimension);
    if (factor > kBytesMax / bytes) {
      return Error{Code::kTooLarge, "layout: more bytes than can be counted"};
    }
    bytes *= factor;
  }
  return bytes;
}

std::string to_string(const Layout& layout) {
  std::string text(name_of(layout.dtype));
  text += '[';
  for (std::size_t i = 0; i < layout.shape.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += std::to_string(layout.shape[i]);
  }
  text += ']';
  if (!layout.pieces.empty()) {
    text += " = " + layout.pieces;
  }
  return text;
}

}  // namespace larder::tensors
