#include "devices/cuda_events.h"

namespace larder::devices {

ExportedEvents::~ExportedEvents() {
  const MutexLock lock(mutex_);
  for (CuEvent event : all_) {
    driver_.event_destroy(event);
  }
}

Result<ExportedEvents::Exported> ExportedEvents::take() {
  const MutexLock lock(mutex_);
  if (!resting_.empty() && exports_ - resting_.front().number >= kReuseAge) {
    Exported exported = resting_.front();
    resting_.pop_front();
    exported.number = ++exports_;
    return exported;
  }
  auto created = create();
  if (created) {
    created->number = ++exports_;
  }
  return created;
}

Result<ExportedEvents::Exported> ExportedEvents::create() {
  if (all_.size() >= kEventsMax) {
    return Error{Code::kNoSpace, "too many events wait for engines"};
  }
  Exported exported;
  auto created = driver_.check(
      driver_.event_create(&exported.event, kCuEventInterprocess | kCuEventDisableTiming),
      "cuEventCreate");
  if (!created) {
    return created.error();
  }
  auto named = driver_.check(driver_.ipc_get_event_handle(&exported.handle, exported.event),
                             "cuIpcGetEventHandle");
  if (!named) {
    driver_.event_destroy(exported.event);
    return named.error();
  }
  all_.push_back(exported.event);
  return exported;
}

void ExportedEvents::give_back(const Exported& exported) {
  const MutexLock lock(mutex_);
  resting_.push_back(exported);
}

std::size_t ExportedEvents::size() const {
  const MutexLock lock(mutex_);
  return all_.size();
}

}  // namespace larder::devices
