// landing.h - objects of a COMMIT_STORE, received straight into slots of the pool.
//
// A Landing is the sink of one such message's payload. It takes a slot for each object when that
// begins to arrive (tensors/object_cutter.h) and leaves the rest of the payload a valid one. The
// slots have no name, and nobody else knows of them. They become objects when the request is run
// and everything about it has proved right; otherwise they go back with the Landing: when the
// request is refused, or the message never ends, whether by its peer or by its time.
//
// It never waits for a slot: without one the object stays in the payload and is copied when the
// request runs, as every object of a message without Landing is. What all of them hold together is
// bounded, is taken from what is free, and nothing is evicted for it.
//
// A Landing is used by one thread at a time, Landings by any.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "pool/pool.h"
#include "tensors/object_cutter.h"
#include "tensors/tensor_pickle.h"
#include "transport/dispatcher.h"

namespace larder::handlers {

class Landing;

// What all that is under way takes its slots from. Outlives every Landing.
class Landings {
 public:
  // Smaller objects are copied with as little effort.
  static constexpr std::size_t kObjectBytesMin = 32U << 10;

  // Of the pool, what messages under way may hold of it.
  static constexpr std::size_t kPoolShare = 4;

  explicit Landings(pool::Pool& pool);
  Landings(const Landings&) = delete;
  Landings& operator=(const Landings&) = delete;
  ~Landings() = default;

  // nullptr for objects that are too small.
  std::unique_ptr<Landing> open(std::size_t object_bytes);

  // In slots that are not objects yet.
  std::size_t byte_count() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class Landing;

  pool::Slot take(std::size_t bytes);  // invalid: there is none

  void release(std::size_t bytes) noexcept { bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  pool::Pool& pool_;
  const std::size_t bytes_max_;
  std::atomic<std::size_t> bytes_{0};
};

class Landing final : public transport::FrameSink {
 public:
  Landing(Landings& home, std::size_t object_bytes);
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  ~Landing() override;

  std::span<std::byte> room() override;
  void arrived(std::size_t bytes) override;
  std::size_t keep(std::span<const std::byte> bytes) override;
  std::size_t kept_ahead() const override;
  void finish(std::span<std::byte> kept) override;

  // After finish(): false when the payload ended within an object, or is not as long as it says;
  // nothing can be read of it then.
  bool is_whole() const { return is_whole_; }

  // What was received in slots, for read_tensor_list().
  std::vector<tensors::CutBytes> cuts() const;

  std::size_t landed_bytes() const { return slots_.size() * object_bytes_; }

  // Hands them over, in the order of cuts(): once.
  std::vector<pool::Slot> take_slots();

 private:
  // A msgpack binary of 32-bit length, as a payload of that size is.
  static constexpr std::size_t kHeaderBytes = 5;

  std::size_t keep_header(std::span<const std::byte> bytes);
  std::size_t stated_bytes() const;
  bool has_other_header() const;

  Landings& home_;
  const std::size_t object_bytes_;
  tensors::ObjectCutter cutter_;
  std::array<std::byte, kHeaderBytes> header_{};
  std::size_t header_come_ = 0;
  std::vector<pool::Slot> slots_;
  std::size_t arrived_;  // of the last slot's object; all where there is none
  bool is_whole_ = false;
};

}  // namespace larder::handlers
