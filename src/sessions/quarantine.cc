#include "sessions/quarantine.h"

#include <algorithm>

namespace larder::sessions {

void Quarantine::add(Held held, InstanceId instance, ConnectionId connection, Duration time) {
  if (held.slots.empty() && held.lease.empty()) {
    return;
  }
  const TimePoint until = clock_.now() + time;
  const MutexLock lock(mutex_);
  entries_.push_back(Entry{std::move(held), instance, connection, until});
}

void Quarantine::shorten(InstanceId instance, Duration time) {
  const TimePoint until = clock_.now() + time;
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.instance == instance) {
      entry.until = std::min(entry.until, until);
    }
  }
}

void Quarantine::connection_closed(ConnectionId connection) {
  std::list<Entry> freed;  // destroyed outside the mutex
  const MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->connection == connection) {
      freed.splice(freed.end(), entries_, entry);
    }
    entry = next;
  }
}

void Quarantine::sweep() {
  const TimePoint now = clock_.now();
  std::list<Entry> freed;
  const MutexLock lock(mutex_);
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const auto next = std::next(entry);
    if (entry->until <= now) {
      freed.splice(freed.end(), entries_, entry);
    }
    entry = next;
  }
}

std::size_t Quarantine::slot_count() const {
  const MutexLock lock(mutex_);
  std::size_t count = 0;
  for (const Entry& entry : entries_) {
    count += entry.held.slots.size() + entry.held.lease.size();
  }
  return count;
}

std::vector<QuarantineStatus> Quarantine::status() const {
  const TimePoint now = clock_.now();
  std::vector<QuarantineStatus> all;
  const MutexLock lock(mutex_);
  for (const Entry& entry : entries_) {
    all.push_back({entry.instance,
                   entry.connection,
                   entry.held.slots.size() + entry.held.lease.size(),
                   entry.until - now});
  }
  return all;
}

}  // namespace larder::sessions
