#include "devices/copy_crew.h"

namespace larder::devices {

CopyCrew::CopyCrew(std::size_t helpers) {
  for (std::size_t i = 0; i < helpers; ++i) {
    helpers_.emplace_back([this] { help(); });
  }
}

CopyCrew::~CopyCrew() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) {
    helper.join();
  }
}

void CopyCrew::run(std::size_t parts, const std::function<void(std::size_t)>& part) {
  if (parts <= 1 || helpers_.empty()) {
    for (std::size_t i = 0; i < parts; ++i) {
      part(i);
    }
    return;
  }
  Job job{part, parts};
  const MutexLock lock(mutex_);
  jobs_.push_back(&job);
  changed_.notify_all();
  while (job.next < job.parts) {
    work_on(job);
  }
  while (job.running > 0) {
    changed_.wait(mutex_);
  }
}

void CopyCrew::work_on(Job& job) {
  const std::size_t mine = job.next++;
  ++job.running;
  if (job.next == job.parts) {
    jobs_.remove(&job);
  }
  mutex_.unlock();
  job.part(mine);
  mutex_.lock();
  --job.running;
  if (job.running == 0 && job.next == job.parts) {
    changed_.notify_all();
  }
}

void CopyCrew::help() {
  const MutexLock lock(mutex_);
  while (!stopping_) {
    if (jobs_.empty()) {
      changed_.wait(mutex_);
    } else {
      work_on(*jobs_.front());
    }
  }
}

}  // namespace larder::devices
