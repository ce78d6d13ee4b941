// segment_budget.h - how many segments of engines may be mapped at a time.
//
// The system allows a process so many mappings. Without one to spare a segment that is cut short
// under a copy could not be mended (fault_guard.h), which would end the server, so engines get a
// quarter of them: a segment that was cut short takes two. Thread-safe. Outlives its leases.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "base/result.h"

namespace larder::devices {

class SegmentBudget {
 public:
  explicit SegmentBudget(std::size_t segments_max) : segments_max_(segments_max) {}

  SegmentBudget(const SegmentBudget&) = delete;
  SegmentBudget& operator=(const SegmentBudget&) = delete;
  ~SegmentBudget() = default;

  class Lease {
   public:
    Lease(SegmentBudget& budget, std::size_t segments) : budget_(&budget), segments_(segments) {}

    Lease(Lease&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), segments_(other.segments_) {}

    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Lease& operator=(Lease&&) = delete;

    ~Lease() {
      if (budget_ != nullptr) {
        budget_->mapped_ -= segments_;
      }
    }

   private:
    SegmentBudget* budget_;
    std::size_t segments_;
  };

  // kTooLarge: as many are mapped already that these do not fit.
  Result<Lease> take(std::size_t segments);

 private:
  const std::size_t segments_max_;
  std::atomic<std::size_t> mapped_{0};
};

// A quarter of what the system allows.
std::size_t segments_max_of_system();

}  // namespace larder::devices
