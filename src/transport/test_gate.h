// test_gate.h - for tests of this room: waiting without sleeping.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"

namespace larder::transport {

inline constexpr std::chrono::seconds kPatience{20};  // far beyond what a loaded machine needs

// Polls until the condition holds; false when patience ran out.
template <typename Condition>
bool eventually(Condition condition) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + kPatience;
  while (!condition()) {
    if (clock.now() > deadline) {
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

// Threads that pass() stand still until open(); later ones walk through.
class Gate {
 public:
  void pass() {
    const MutexLock lock(mutex_);
    ++arrivals_;
    changed_.notify_all();
    while (!open_) {
      changed_.wait(mutex_);
    }
  }

  void open() {
    const MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

  bool wait_for_arrivals(int count) {
    const SteadyClock clock;
    const TimePoint deadline = clock.now() + kPatience;
    const MutexLock lock(mutex_);
    while (arrivals_ < count && clock.now() < deadline) {
      changed_.wait_for(mutex_, std::chrono::milliseconds(100));
    }
    return arrivals_ >= count;
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  int arrivals_ LARDER_GUARDED_BY(mutex_) = 0;
  bool open_ LARDER_GUARDED_BY(mutex_) = false;
};

}  // namespace larder::transport
