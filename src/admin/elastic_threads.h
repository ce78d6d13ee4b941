// elastic_threads.h - as many threads as there are connections, for cpp-httplib.
//
// Private to this room. The library keeps a thread per connection, so with a fixed number of them a
// few silent clients would keep a health probe waiting. Here a thread is started when none is idle,
// up to a limit; beyond it connections wait, and beyond a second limit the thread that accepts
// waits. A thread without work for a while ends.
#pragma once

#include <httplib.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <thread>

#include "base/mutex.h"

namespace larder::admin {

struct ThreadLimits {
  std::size_t threads_max = 128;
  std::size_t waiting_max = 128;
  std::chrono::milliseconds idle{5000};
};

class ElasticThreads final : public httplib::TaskQueue {
 public:
  using Job = std::function<void()>;

  explicit ElasticThreads(const ThreadLimits& limits);

  void enqueue(Job job) override;  // one thread calls
  void shutdown() override;        // runs what waits, joins; to be called before the end

  std::size_t thread_count() const;

 private:
  using Self = std::list<std::thread>::iterator;

  bool start_thread() LARDER_REQUIRES(mutex_);
  void run(Self self);
  // False when the thread is to end: `self` is among ended_ then.
  bool next_job(Self self, Job& job);

  const ThreadLimits limits_;
  mutable Mutex mutex_;
  ConditionVariable job_waits_;
  ConditionVariable room_made_;
  ConditionVariable thread_ended_;
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::size_t idle_ LARDER_GUARDED_BY(mutex_) = 0;
  std::deque<Job> waiting_ LARDER_GUARDED_BY(mutex_);
  std::list<std::thread> running_ LARDER_GUARDED_BY(mutex_);
  std::list<std::thread> ended_ LARDER_GUARDED_BY(mutex_);  // to be joined
};

}  // namespace larder::admin
