// copy_crew.h - threads that help with large copies.
//
// run() splits a job into parts: the calling thread works on it, and whoever of the crew is free
// helps. Several threads may run jobs at once; each is sure to get its own done, as it needs
// nobody's help. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace larder::devices {

class CopyCrew {
 public:
  explicit CopyCrew(std::size_t helpers);
  CopyCrew(const CopyCrew&) = delete;
  CopyCrew& operator=(const CopyCrew&) = delete;
  ~CopyCrew();  // REQUIRES: nobody is in run()

  // Calls part(0) to part(parts - 1), each once, in no particular order and some at the same time;
  // returns when all have returned. `part` does not throw.
  void run(std::size_t parts, const std::function<void(std::size_t)>& part);

 private:
  struct Job {
    const std::function<void(std::size_t)>& part;
    std::size_t parts = 0;
    std::size_t next = 0;     // the first that nobody has begun
    std::size_t running = 0;  // begun and not returned
  };

  using Jobs = std::list<Job*>;  // with parts that nobody has begun, oldest first

  void help();
  // Takes and runs one part of the job. REQUIRES: there is one.
  void work_on(Job& job) LARDER_REQUIRES(mutex_);

  Mutex mutex_;
  ConditionVariable changed_;
  Jobs jobs_ LARDER_GUARDED_BY(mutex_);
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;
};

}  // namespace larder::devices
