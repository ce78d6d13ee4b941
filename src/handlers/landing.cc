#include "handlers/landing.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace larder::handlers {
namespace {

constexpr std::byte kBinary32{0xc6};
constexpr std::size_t kByteBits = 8;

}  // namespace

Landings::Landings(pool::Pool& pool)
    : pool_(pool), bytes_max_(pool.usage().configured_bytes / kPoolShare) {}

std::unique_ptr<Landing> Landings::open(std::size_t object_bytes) {
  return object_bytes < kObjectBytesMin ? nullptr : std::make_unique<Landing>(*this, object_bytes);
}

pool::Slot Landings::take(std::size_t bytes) {
  if (bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes > bytes_max_) {
    release(bytes);
    return {};
  }
  pool::Slot slot = pool_.take_now(bytes);
  if (!slot.valid()) {
    release(bytes);
  }
  return slot;
}

Landing::Landing(Landings& home, std::size_t object_bytes)
    : home_(home), object_bytes_(object_bytes), cutter_(object_bytes), arrived_(object_bytes) {}

Landing::~Landing() {
  home_.release(landed_bytes());
}

std::span<std::byte> Landing::room() {
  if (arrived_ == object_bytes_) {
    return {};
  }
  return slots_.back().bytes().subspan(arrived_);
}

void Landing::arrived(std::size_t bytes) {
  arrived_ += bytes;
}

std::size_t Landing::keep(std::span<const std::byte> bytes) {
  std::size_t kept = keep_header(bytes);
  if (has_other_header()) {
    return bytes.size();
  }
  while (kept < bytes.size()) {
    kept += cutter_.scan(bytes.subspan(kept));
    if (!cutter_.is_at_object()) {
      continue;
    }
    slots_.emplace_back();
    slots_.back() = home_.take(object_bytes_);
    if (slots_.back().valid()) {
      arrived_ = 0;
      cutter_.cut_object();
      break;
    }
    slots_.pop_back();
    cutter_.keep_object();
  }
  return kept;
}

std::size_t Landing::keep_header(std::span<const std::byte> bytes) {
  const std::size_t come = std::min(kHeaderBytes - header_come_, bytes.size());
  std::copy_n(bytes.begin(), come, header_.begin() + static_cast<std::ptrdiff_t>(header_come_));
  header_come_ += come;
  return come;
}

bool Landing::has_other_header() const {
  return header_come_ > 0 && header_.front() != kBinary32;
}

std::size_t Landing::kept_ahead() const {
  if (has_other_header() || cutter_.has_given_up()) {
    return std::numeric_limits<std::size_t>::max();
  }
  return cutter_.bytes_ahead();
}

std::size_t Landing::stated_bytes() const {
  std::size_t stated = 0;
  for (const std::byte byte : std::span(header_).subspan(1)) {
    stated = (stated << kByteBits) | std::to_integer<std::size_t>(byte);
  }
  return stated;
}

void Landing::finish(std::span<std::byte> kept) {
  if (slots_.empty()) {
    is_whole_ = true;  // it is as it came
    return;
  }
  LARDER_CHECK(kept.size() >= kHeaderBytes);
  const std::size_t left = kept.size() - kHeaderBytes;
  is_whole_ = arrived_ == object_bytes_ && stated_bytes() == left + landed_bytes();
  if (!is_whole_) {
    return;
  }
  std::size_t length = left;
  for (std::size_t i = kHeaderBytes; i-- > 1; length >>= kByteBits) {
    kept[i] = static_cast<std::byte>(length);
  }
  cutter_.put_right(kept.subspan(kHeaderBytes));
}

std::vector<tensors::CutBytes> Landing::cuts() const {
  std::vector<tensors::CutBytes> cuts;
  cuts.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    cuts.push_back({cutter_.cuts()[i].position, slots_[i].bytes()});
  }
  return cuts;
}

std::vector<pool::Slot> Landing::take_slots() {
  home_.release(landed_bytes());
  return std::exchange(slots_, {});
}

}  // namespace larder::handlers
