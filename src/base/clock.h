// clock.h - the only clock. Components take a Clock&, so that tests move time by hand.
//
// now() is monotonic and may be called from any thread. Wall-clock time appears in log lines only.
#pragma once

#include <atomic>
#include <chrono>

namespace larder {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;

  virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// For tests: stands still until advanced. Starts one day after the epoch, so that subtracting is
// safe.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(ticks_.load())); }

  void advance(Duration by) { ticks_.fetch_add(by.count()); }

 private:
  std::atomic<Duration::rep> ticks_{Duration(std::chrono::hours(24)).count()};
};

}  // namespace larder
