// cuda_events.h - the events of one device that are handed to engines in replies.
//
// A reply carries an event's handle, and the engine opens it some time later and polls it. Two
// things must not happen until it has: the event destroyed (it cannot be opened any more), and the
// event recorded again (it would say "complete" for another copy). So an event is used again only
// after its own copy has completed and kReuseAge more events were exported, as many as LMCache's
// own server keeps. Thread-safe; make the device's context current first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "devices/cuda_driver.h"
#include "devices/shared_tensor.h"

namespace larder::devices {

class ExportedEvents {
 public:
  static constexpr std::uint64_t kReuseAge = 2048;
  static constexpr std::size_t kEventsMax = 8192;

  explicit ExportedEvents(const CudaDriver& driver) : driver_(driver) {}

  ExportedEvents(const ExportedEvents&) = delete;
  ExportedEvents& operator=(const ExportedEvents&) = delete;
  ~ExportedEvents();

  struct Exported {
    CuEvent event = nullptr;
    IpcHandle handle{};
    std::uint64_t number = 0;  // of the export
  };

  // To be recorded by the caller. kNoSpace: kEventsMax exist and none may be used again.
  Result<Exported> take();

  // REQUIRES: what was recorded is complete, or nothing was. What is never given back is not used
  // again.
  void give_back(const Exported& exported);

  std::size_t size() const;

 private:
  Result<Exported> create() LARDER_REQUIRES(mutex_);

  const CudaDriver& driver_;
  mutable Mutex mutex_;
  std::uint64_t exports_ LARDER_GUARDED_BY(mutex_) = 0;
  std::vector<CuEvent> all_ LARDER_GUARDED_BY(mutex_);
  std::deque<Exported> resting_ LARDER_GUARDED_BY(mutex_);  // in the order they were given back
};

}  // namespace larder::devices
