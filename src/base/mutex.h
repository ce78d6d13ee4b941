// mutex.h - std::mutex with clang's thread-safety annotations (libstdc++ carries none).
//
// Annotate each guarded member with LARDER_GUARDED_BY(mutex_) and each private function that
// expects the lock with LARDER_REQUIRES(mutex_); the clang preset turns a violation into a compile
// error.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define LARDER_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LARDER_THREAD_ATTRIBUTE(x)
#endif

#define LARDER_CAPABILITY(x) LARDER_THREAD_ATTRIBUTE(capability(x))
#define LARDER_SCOPED_CAPABILITY LARDER_THREAD_ATTRIBUTE(scoped_lockable)
#define LARDER_GUARDED_BY(x) LARDER_THREAD_ATTRIBUTE(guarded_by(x))
#define LARDER_PT_GUARDED_BY(x) LARDER_THREAD_ATTRIBUTE(pt_guarded_by(x))
#define LARDER_REQUIRES(...) LARDER_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define LARDER_ACQUIRE(...) LARDER_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define LARDER_TRY_ACQUIRE(...) LARDER_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define LARDER_RELEASE(...) LARDER_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define LARDER_EXCLUDES(...) LARDER_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define LARDER_NO_THREAD_ANALYSIS LARDER_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace larder {

class LARDER_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() LARDER_ACQUIRE() { mutex_.lock(); }

  bool try_lock() LARDER_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

  void unlock() LARDER_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class LARDER_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LARDER_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }

  ~MutexLock() LARDER_RELEASE() { mutex_.unlock(); }

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Holds the mutex if nobody else does. The analysis does not follow it: whoever uses it carries
// LARDER_NO_THREAD_ANALYSIS.
class MutexTryLock {
 public:
  explicit MutexTryLock(Mutex& mutex) LARDER_NO_THREAD_ANALYSIS : mutex_(mutex),
                                                                  is_held_(mutex.try_lock()) {}

  ~MutexTryLock() LARDER_NO_THREAD_ANALYSIS {
    if (is_held_) {
      mutex_.unlock();
    }
  }

  MutexTryLock(const MutexTryLock&) = delete;
  MutexTryLock& operator=(const MutexTryLock&) = delete;

  bool is_held() const { return is_held_; }

 private:
  Mutex& mutex_;
  const bool is_held_;
};

// Waits on a Mutex that the caller holds. Always wait in a loop that tests the condition.
class ConditionVariable {
 public:
  void wait(Mutex& mutex) LARDER_REQUIRES(mutex) { condition_.wait(mutex); }

  // False when the time ran out.
  bool wait_for(Mutex& mutex, std::chrono::nanoseconds time) LARDER_REQUIRES(mutex) {
    return condition_.wait_for(mutex, time) == std::cv_status::no_timeout;
  }

  void notify_one() { condition_.notify_one(); }

  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace larder
