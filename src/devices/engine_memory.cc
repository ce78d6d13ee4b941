#include <utility>

#include "devices/device.h"

namespace larder::devices {

EngineMemory::Started EngineMemory::start(CopyJob job) {
  if (!begin_copy()) {
    job.done(false);
    return {.started = false, .event = completed_event()};
  }
  job.done = [this, done = std::move(job.done)](bool copied) {
    done(copied && !is_retired());
    end_copy();
  };
  Started started = do_start(std::move(job));
  started.started = started.started && !is_retired();
  return started;
}

bool EngineMemory::retire(std::chrono::milliseconds patience) {
  const MutexLock lock(copies_mutex_);
  is_closed_ = true;
  while (copies_under_way_ > 0 && !is_retired_) {
    if (!copies_ended_.wait_for(copies_mutex_, patience)) {
      break;
    }
  }
  is_retired_ = is_retired_ || copies_under_way_ > 0;
  return copies_under_way_ == 0;
}

bool EngineMemory::begin_copy() {
  const MutexLock lock(copies_mutex_);
  copies_under_way_ += is_closed_ ? 0 : 1;
  return !is_closed_;
}

void EngineMemory::end_copy() {
  const MutexLock lock(copies_mutex_);
  copies_under_way_ -= 1;
  if (copies_under_way_ == 0) {
    copies_ended_.notify_all();
  }
}

bool EngineMemory::is_retired() const {
  const MutexLock lock(copies_mutex_);
  return is_retired_;
}

}  // namespace larder::devices
