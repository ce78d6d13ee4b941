// completions.h - the thread that notices when copies on CUDA devices have completed, and says so.
//
// Copies of one stream complete in order, so only the oldest of each is asked about. A host
// function behind each copy wakes the thread; as the driver leaves host functions out once a
// context is broken, the thread also asks by itself every kPollInterval while copies are in flight.
// Only the event's own answer counts: complete, or an error. Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "devices/cuda_driver.h"

namespace larder::devices {

class Completions {
 public:
  static constexpr std::chrono::milliseconds kPollInterval{20};

  explicit Completions(const CudaDriver& driver);
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;
  ~Completions();  // waits for every copy

  struct Copy {
    CuContext context = nullptr;
    CuStream stream = nullptr;
    CuEvent event = nullptr;  // recorded behind the copy
    std::function<void(bool copied)> completed;
  };

  // `completed` is called once on the completion thread and then destroyed there. Copies of one
  // stream are given in stream order; the caller sees to that.
  void watch(Copy copy);

  // Waits until nothing is in flight; false when that takes longer. New copies may arrive.
  bool drain(std::chrono::milliseconds patience);

 private:
  using Copies = std::deque<Copy>;

  static void wake(void* completions);  // the host function: may not call the driver
  void run();
  bool wait_for_news(std::vector<Copy>& arrived) LARDER_EXCLUDES(mutex_);
  void complete_in_order(Copies& copies);
  bool complete_oldest(Copies& copies);
  void forget_one() LARDER_EXCLUDES(mutex_);

  const CudaDriver& driver_;
  std::map<CuStream, Copies> in_flight_;  // the completion thread's alone

  // Never held during a call of the driver: a host function takes it while the driver waits.
  Mutex mutex_;
  ConditionVariable news_;
  ConditionVariable drained_;
  std::vector<Copy> arrived_ LARDER_GUARDED_BY(mutex_);
  std::size_t unfinished_ LARDER_GUARDED_BY(mutex_) = 0;
  bool woken_ LARDER_GUARDED_BY(mutex_) = false;
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

}  // namespace larder::devices
