// unsent_bytes.h - how many reply bytes of one connection have not left yet.
//
// A Charge stands for the bytes of one reply, from the moment it is encoded until the kernel has
// taken the last of them or the connection is gone. Workers charge while the wire thread
// discharges, so the count is shared and atomic. When it falls below the limit, `on_room` is
// called, on whichever thread dropped the charge.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace larder::transport {

class UnsentBytes {
 public:
  explicit UnsentBytes(std::size_t limit) : limit_(limit) {}

  // REQUIRES: before any other thread knows this object.
  void set_on_room(std::function<void()> on_room) { on_room_ = std::move(on_room); }

  bool is_full() const { return bytes_.load(std::memory_order_acquire) >= limit_; }

  std::size_t value() const { return bytes_.load(std::memory_order_acquire); }

 private:
  friend class Charge;

  void add(std::size_t bytes) { bytes_.fetch_add(bytes, std::memory_order_acq_rel); }

  void subtract(std::size_t bytes) noexcept {
    const std::size_t before = bytes_.fetch_sub(bytes, std::memory_order_acq_rel);
    if (on_room_ && before >= limit_ && before - bytes < limit_) {
      on_room_();
    }
  }

  const std::size_t limit_;
  std::function<void()> on_room_;
  std::atomic<std::size_t> bytes_{0};
};

class Charge {
 public:
  Charge() = default;

  // The connection's wire side and every reply under way own the count together.
  Charge(std::shared_ptr<UnsentBytes> unsent, std::size_t bytes)
      : unsent_(std::move(unsent)), bytes_(bytes) {
    unsent_->add(bytes_);
  }

  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  Charge(Charge&& other) noexcept
      : unsent_(std::exchange(other.unsent_, nullptr)), bytes_(other.bytes_) {}

  Charge& operator=(Charge&& other) noexcept {
    if (this != &other) {
      release();
      unsent_ = std::exchange(other.unsent_, nullptr);
      bytes_ = other.bytes_;
    }
    return *this;
  }

  ~Charge() { release(); }

  std::size_t bytes() const { return unsent_ == nullptr ? 0 : bytes_; }

  // Takes the other's bytes over. REQUIRES: both of one connection, or this one empty.
  void absorb(Charge other) noexcept {
    if (unsent_ == nullptr) {
      *this = std::move(other);
    } else {
      bytes_ += std::exchange(other.bytes_, 0);
    }
  }

 private:
  void release() noexcept {
    if (unsent_ != nullptr) {
      unsent_->subtract(bytes_);
    }
  }

  std::shared_ptr<UnsentBytes> unsent_;
  std::size_t bytes_ = 0;
};

}  // namespace larder::transport
