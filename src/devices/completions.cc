#include "devices/completions.h"

#include <iterator>
#include <utility>

namespace larder::devices {

Completions::Completions(const CudaDriver& driver) : driver_(driver), thread_([this] { run(); }) {}

Completions::~Completions() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    news_.notify_one();
  }
  thread_.join();
}

void Completions::watch(Copy copy) {
  const CuStream stream = copy.stream;
  {
    const MutexLock lock(mutex_);
    arrived_.push_back(std::move(copy));
    unfinished_ += 1;
    woken_ = true;
    news_.notify_one();
  }
  // Refused or never called: the thread finds out by asking.
  driver_.launch_host_function(stream, &Completions::wake, this);
}

bool Completions::drain(std::chrono::milliseconds patience) {
  const MutexLock lock(mutex_);
  while (unfinished_ > 0) {
    if (!drained_.wait_for(mutex_, patience)) {
      return unfinished_ == 0;
    }
  }
  return true;
}

void Completions::wake(void* completions) {
  auto* self = static_cast<Completions*>(completions);
  const MutexLock lock(self->mutex_);
  self->woken_ = true;
  self->news_.notify_one();
}

void Completions::run() {
  std::vector<Copy> arrived;
  while (wait_for_news(arrived)) {
    for (Copy& copy : arrived) {
      in_flight_[copy.stream].push_back(std::move(copy));
    }
    arrived.clear();
    for (auto lane = in_flight_.begin(); lane != in_flight_.end();) {
      complete_in_order(lane->second);
      lane = lane->second.empty() ? in_flight_.erase(lane) : std::next(lane);
    }
  }
}

bool Completions::wait_for_news(std::vector<Copy>& arrived) {
  const MutexLock lock(mutex_);
  while (!woken_ && !(stopping_ && unfinished_ == 0)) {
    if (in_flight_.empty()) {
      news_.wait(mutex_);
    } else if (!news_.wait_for(mutex_, kPollInterval)) {
      break;
    }
  }
  woken_ = false;
  arrived.swap(arrived_);
  return !stopping_ || unfinished_ > 0;
}

void Completions::complete_in_order(Copies& copies) {
  bool stop = false;
  while (!stop && !copies.empty()) {
    stop = !complete_oldest(copies);
  }
}

// False while the oldest is still on its way.
bool Completions::complete_oldest(Copies& copies) {
  const Copy& oldest = copies.front();
  driver_.context_set_current(oldest.context);
  const CuResult result = driver_.event_query(oldest.event);
  if (result == kCuNotReady) {
    return false;
  }
  {
    const Copy finished = std::move(copies.front());
    copies.pop_front();
    finished.completed(result == kCuSuccess);
  }
  forget_one();
  return true;
}

void Completions::forget_one() {
  const MutexLock lock(mutex_);
  unfinished_ -= 1;
  if (unfinished_ == 0) {
    drained_.notify_all();
  }
}

}  // namespace larder::devices
