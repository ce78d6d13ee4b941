#include "pool/extent_allocator.h"

#include <bit>
#include <iterator>

#include "base/check.h"

namespace larder::pool {

ExtentAllocator::ExtentAllocator(std::size_t align_bytes) : align_bytes_(align_bytes) {
  LARDER_CHECK(std::has_single_bit(align_bytes));
}

void ExtentAllocator::extend(std::size_t end_bytes) {
  LARDER_CHECK(end_bytes >= capacity_bytes_ && aligned(end_bytes));
  const std::size_t added = end_bytes - capacity_bytes_;
  if (added == 0) {
    return;
  }
  const std::size_t tail = tail_free_bytes();
  if (tail > 0) {
    remove_extent(std::prev(length_at_.end()));
  }
  add_extent(length_at_.end(), capacity_bytes_ - tail, tail + added);
  capacity_bytes_ = end_bytes;
}

std::optional<std::size_t> ExtentAllocator::take(std::size_t bytes) {
  LARDER_CHECK(bytes > 0 && aligned(bytes));
  const auto best = by_length_.lower_bound({bytes, 0});
  if (best == by_length_.end()) {
    return std::nullopt;
  }
  const auto [length, offset] = *best;
  const auto next = remove_extent(length_at_.find(offset));
  if (length > bytes) {
    add_extent(next, offset + bytes, length - bytes);
  }
  return offset;
}

void ExtentAllocator::give_back(std::size_t offset, std::size_t bytes) {
  LARDER_CHECK(bytes > 0 && aligned(bytes) && aligned(offset));
  LARDER_CHECK(offset <= capacity_bytes_ && bytes <= capacity_bytes_ - offset);
  std::size_t end = offset + bytes;
  auto next = length_at_.lower_bound(offset);
  if (next != length_at_.end()) {
    LARDER_CHECK(end <= next->first);
    if (next->first == end) {
      end += next->second;
      next = remove_extent(next);
    }
  }
  if (next != length_at_.begin()) {
    const auto before = std::prev(next);
    LARDER_CHECK(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      offset = before->first;
      next = remove_extent(before);
    }
  }
  add_extent(next, offset, end - offset);
}

std::size_t ExtentAllocator::free_before(std::size_t offset) const {
  const auto next = length_at_.lower_bound(offset);
  if (next == length_at_.begin()) {
    return 0;
  }
  const auto& [begin, length] = *std::prev(next);
  return begin + length == offset ? length : 0;
}

std::size_t ExtentAllocator::free_behind(std::size_t end) const {
  const auto found = length_at_.find(end);
  return found == length_at_.end() ? 0 : found->second;
}

std::size_t ExtentAllocator::largest_free_bytes() const {
  return by_length_.empty() ? 0 : by_length_.rbegin()->first;
}

std::size_t ExtentAllocator::tail_free_bytes() const {
  if (length_at_.empty()) {
    return 0;
  }
  const auto& [offset, length] = *length_at_.rbegin();
  return offset + length == capacity_bytes_ ? length : 0;
}

void ExtentAllocator::add_extent(LengthAt::iterator next, std::size_t offset, std::size_t bytes) {
  length_at_.emplace_hint(next, offset, bytes);
  by_length_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

ExtentAllocator::LengthAt::iterator ExtentAllocator::remove_extent(LengthAt::iterator extent) {
  by_length_.erase({extent->second, extent->first});
  free_bytes_ -= extent->second;
  return length_at_.erase(extent);
}

}  // namespace larder::pool
