#include "admin/elastic_threads.h"

#include <iterator>
#include <system_error>
#include <utility>

#include "base/log.h"

namespace larder::admin {

ElasticThreads::ElasticThreads(const ThreadLimits& limits) : limits_(limits) {}

void ElasticThreads::enqueue(Job job) {
  std::list<std::thread> ended;
  bool nobody_runs_it = false;
  {
    const MutexLock lock(mutex_);
    while (waiting_.size() >= limits_.waiting_max) {
      room_made_.wait(mutex_);
    }
    ended.swap(ended_);
    // Threads that were notified but did not wake yet count as idle, so each waiting job needs one.
    if (idle_ <= waiting_.size() && running_.size() < limits_.threads_max) {
      nobody_runs_it = !start_thread() && running_.empty();
    }
    if (!nobody_runs_it) {
      waiting_.push_back(std::move(job));
      job_waits_.notify_one();
    }
  }
  for (std::thread& thread : ended) {
    thread.join();
  }
  if (nobody_runs_it) {
    job();
  }
}

bool ElasticThreads::start_thread() {
  const Self self = running_.emplace(running_.end());
  try {
    *self = std::thread([this, self] { run(self); });
  } catch (const std::system_error& failure) {
    log::warning("no thread for an HTTP connection: {}", failure.what());
    running_.erase(self);
    return false;
  }
  return true;
}

void ElasticThreads::run(Self self) {
  Job job;
  while (next_job(self, job)) {
    job();
  }
}

bool ElasticThreads::next_job(Self self, Job& job) {
  const MutexLock lock(mutex_);
  ++idle_;
  bool in_time = true;
  while (waiting_.empty() && !stopping_ && in_time) {
    in_time = job_waits_.wait_for(mutex_, limits_.idle);
  }
  --idle_;
  if (waiting_.empty()) {
    ended_.splice(ended_.end(), running_, self);
    thread_ended_.notify_one();
    return false;
  }
  job = std::move(waiting_.front());
  waiting_.pop_front();
  room_made_.notify_one();
  return true;
}

void ElasticThreads::shutdown() {
  std::list<std::thread> ended;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    job_waits_.notify_all();
    while (!running_.empty()) {
      thread_ended_.wait(mutex_);
    }
    ended.swap(ended_);
  }
  for (std::thread& thread : ended) {
    thread.join();
  }
}

std::size_t ElasticThreads::thread_count() const {
  const MutexLock lock(mutex_);
  return running_.size();
}

}  // namespace larder::admin
