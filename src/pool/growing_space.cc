#include "pool/growing_space.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace larder::pool {
namespace {

// A taker reserves at least this much, so that the next takers of small slots find room.
constexpr std::size_t kTakerStepBytesMin = 4U << 20;

}  // namespace

GrowingSpace::GrowingSpace(const GrowthLimits& limits, Reserve reserve)
    : limits_(limits), reserve_(std::move(reserve)), allocator_(limits.align_bytes) {
  LARDER_CHECK(limits.total_bytes >= limits.align_bytes && limits.step_bytes > 0);
}

Result<void> GrowingSpace::reserve_first(std::size_t bytes) {
  const MutexLock lock(mutex_);
  LARDER_CHECK(reserved_bytes_ == 0 && !reserving_);
  const std::size_t wanted = std::min(rounded(bytes), limits_.total_bytes);
  if (auto reserved = reserve_(0, wanted); !reserved) {
    return reserved.error();
  }
  add_reserved(wanted);
  return {};
}

bool GrowingSpace::grow() {
  const MutexLock lock(mutex_);
  if (!grown()) {
    grow_by(limits_.step_bytes);
  }
  return !grown();
}

Result<std::size_t> GrowingSpace::take(std::size_t bytes) {
  const MutexLock lock(mutex_);
  return take_locked(bytes);
}

std::optional<std::size_t> GrowingSpace::take_now(std::size_t bytes) LARDER_NO_THREAD_ANALYSIS {
  LARDER_CHECK(bytes > 0);
  const MutexTryLock lock(mutex_);
  if (!lock.is_held()) {
    return std::nullopt;
  }
  const std::optional<std::size_t> offset = allocator_.take(rounded(bytes));
  publish();
  return offset;
}

Result<std::size_t> GrowingSpace::exchange(std::span<const Range> ranges, std::size_t bytes) {
  const MutexLock lock(mutex_);
  for (const Range& range : ranges) {
    allocator_.give_back(range.offset, rounded(range.bytes));
  }
  publish();
  return take_locked(bytes);
}

Range GrowingSpace::with_free_sides(const Range& range) const {
  const std::size_t bytes = rounded(range.bytes);
  const MutexLock lock(mutex_);
  const std::size_t before = allocator_.free_before(range.offset);
  return {range.offset - before, before + bytes + allocator_.free_behind(range.offset + bytes)};
}

Result<std::size_t> GrowingSpace::take_locked(std::size_t bytes) {
  LARDER_CHECK(bytes > 0);
  const std::size_t wanted = rounded(bytes);
  while (true) {
    if (wanted > attainable_bytes()) {
      return Error{Code::kTooLarge,
                   fmt::format("a slot of {} bytes in a pool of {}", bytes, attainable_bytes())};
    }
    if (const auto offset = allocator_.take(wanted)) {
      publish();
      return *offset;
    }
    const std::size_t tail = allocator_.tail_free_bytes();
    if (grown() || wanted - tail > limits_.total_bytes - reserved_bytes_) {
      return Error{Code::kNoSpace,
                   fmt::format("a slot of {} bytes: {} of the pool's {} are free, in one piece {}",
                               bytes,
                               allocator_.free_bytes(),
                               allocator_.capacity_bytes(),
                               allocator_.largest_free_bytes())};
    }
    // Ends: each turn reserves something, or waits for somebody who does, until the space is grown.
    grow_by(std::min(std::max(wanted - tail, kTakerStepBytesMin), limits_.step_bytes));
  }
}

void GrowingSpace::give_back(std::size_t offset, std::size_t bytes) {
  const MutexLock lock(mutex_);
  allocator_.give_back(offset, rounded(bytes));
  publish();
}

std::size_t GrowingSpace::rounded(std::size_t bytes) const {
  const std::size_t mask = limits_.align_bytes - 1;
  return bytes > std::numeric_limits<std::size_t>::max() - mask ? ~mask : (bytes + mask) & ~mask;
}

std::size_t GrowingSpace::reserved_bytes() const {
  const MutexLock lock(mutex_);
  return reserved_bytes_;
}

bool GrowingSpace::grown() const {
  return growth_failed() || reserved_bytes_ == limits_.total_bytes;
}

// The largest slot that an empty pool could give.
std::size_t GrowingSpace::attainable_bytes() const {
  return growth_failed() ? allocator_.capacity_bytes()
                         : limits_.total_bytes & ~(limits_.align_bytes - 1);
}

void GrowingSpace::grow_by(std::size_t bytes) {
  if (reserving_) {
    reservation_ended_.wait(mutex_);
    return;
  }
  const std::size_t from = reserved_bytes_;
  const std::size_t wanted = std::min(rounded(bytes), limits_.total_bytes - from);
  reserving_ = true;
  mutex_.unlock();
  const Result<void> reserved = reserve_(from, wanted);
  if (!reserved) {
    log::warning(
        "the pool stays at {} of the {} configured bytes, the system has no more ({}): lower "
        "--l1-size-gb or give the shared memory more room",
        from,
        limits_.total_bytes,
        reserved.error().detail);
  }
  mutex_.lock();
  reserving_ = false;
  if (reserved) {
    add_reserved(wanted);
  } else {
    growth_failed_.store(true, std::memory_order_relaxed);
  }
  reservation_ended_.notify_all();
}

void GrowingSpace::add_reserved(std::size_t bytes) {
  reserved_bytes_ += bytes;
  allocator_.extend(reserved_bytes_ & ~(limits_.align_bytes - 1));
  publish();
}

void GrowingSpace::publish() {
  capacity_bytes_.store(allocator_.capacity_bytes(), std::memory_order_relaxed);
  used_bytes_.store(allocator_.used_bytes(), std::memory_order_relaxed);
}

}  // namespace larder::pool
