// unsent_bytes.h - how many reply bytes of one connection have not left yet.
//
// A Charge stands for the bytes of one reply, from the moment it is encoded until the kernel has
// taken the last of them or the connection is gone. Workers charge while the wire thread
// discharges, so the count is shared and atomic. When it falls below the limit, `on_room` is
// called, on whichever thread dropped the charge.
//
// Replies that were made for their peer are memory of the process; UnsentHeap is their sum over all
// connections. The others are lent from where they lie, the pool mostly, which has a bound of its
// own.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace larder::transport {

// Of all connections of a server. Any thread.
class UnsentHeap {
 public:
  std::size_t value() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class UnsentBytes;

  std::atomic<std::size_t> bytes_{0};
};

class UnsentBytes {
 public:
  // The sum is shared with the other connections.
  UnsentBytes(std::size_t limit, std::shared_ptr<UnsentHeap> sum)
      : limit_(limit), sum_(std::move(sum)) {}

  // REQUIRES: before any other thread knows this object.
  void set_on_room(std::function<void()> on_room) { on_room_ = std::move(on_room); }

  bool is_full() const { return bytes_.load(std::memory_order_acquire) >= limit_; }

  std::size_t value() const { return bytes_.load(std::memory_order_acquire); }

  // Of them, its share of the sum.
  std::size_t heap_bytes() const { return heap_bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Charge;

  void add(std::size_t bytes, std::size_t heap_bytes) noexcept {
    heap_bytes_.fetch_add(heap_bytes, std::memory_order_relaxed);
    sum_->bytes_.fetch_add(heap_bytes, std::memory_order_relaxed);
    bytes_.fetch_add(bytes, std::memory_order_acq_rel);
  }

  void subtract(std::size_t bytes, std::size_t heap_bytes) noexcept {
    heap_bytes_.fetch_sub(heap_bytes, std::memory_order_relaxed);
    sum_->bytes_.fetch_sub(heap_bytes, std::memory_order_relaxed);
    const std::size_t before = bytes_.fetch_sub(bytes, std::memory_order_acq_rel);
    if (on_room_ && before >= limit_ && before - bytes < limit_) {
      on_room_();
    }
  }

  const std::size_t limit_;
  const std::shared_ptr<UnsentHeap> sum_;
  std::function<void()> on_room_;
  std::atomic<std::size_t> bytes_{0};
  std::atomic<std::size_t> heap_bytes_{0};
};

class Charge {
 public:
  Charge() = default;

  // The connection's wire side and every reply under way own the count together. `lent_bytes` of
  // the bytes are not on the heap.
  Charge(std::shared_ptr<UnsentBytes> unsent, std::size_t bytes, std::size_t lent_bytes = 0)
      : unsent_(std::move(unsent)), bytes_(bytes), heap_bytes_(bytes - lent_bytes) {
    unsent_->add(bytes_, heap_bytes_);
  }

  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;

  Charge(Charge&& other) noexcept
      : unsent_(std::exchange(other.unsent_, nullptr)),
        bytes_(other.bytes_),
        heap_bytes_(other.heap_bytes_) {}

  Charge& operator=(Charge&& other) noexcept {
    if (this != &other) {
      release();
      unsent_ = std::exchange(other.unsent_, nullptr);
      bytes_ = other.bytes_;
      heap_bytes_ = other.heap_bytes_;
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
      heap_bytes_ += std::exchange(other.heap_bytes_, 0);
    }
  }

 private:
  void release() noexcept {
    if (unsent_ != nullptr) {
      unsent_->subtract(bytes_, heap_bytes_);
    }
  }

  std::shared_ptr<UnsentBytes> unsent_;
  std::size_t bytes_ = 0;
  std::size_t heap_bytes_ = 0;
};

}  // namespace larder::transport
