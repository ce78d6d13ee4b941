// quarantine.h - memory whose client may still be writing or reading it.
//
// A client reaches its slots through shared memory, so taking a transfer away from it does not stop
// its memcpy. What is taken away rests here, counted as used memory, until the client cannot touch
// it any more: it said so (UNREGISTER) a moment ago, it registered again, its connection is gone,
// or a generous time has passed. Thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cache/leases.h"
#include "pool/pool.h"
#include "sessions/ids.h"

namespace larder::sessions {

// For the operator.
struct QuarantineStatus {
  InstanceId instance{};
  ConnectionId connection{};
  std::size_t slots = 0;
  Duration time_left{};
};

class Quarantine {
 public:
  struct Held {
    std::vector<pool::Slot> slots;  // being written
    cache::ReadLease lease;         // being read
  };

  explicit Quarantine(const Clock& clock) : clock_(clock) {}

  // Keeps what this instance held for at most `time`, less when its connection goes first.
  void add(Held held, InstanceId instance, ConnectionId connection, Duration time);

  // The instance said that it is done, or started over: what rests of it may go after `time`.
  void shorten(InstanceId instance, Duration time);

  void connection_closed(ConnectionId connection);
  void sweep();

  std::size_t slot_count() const;
  std::vector<QuarantineStatus> status() const;

 private:
  struct Entry {
    Held held;
    InstanceId instance;
    ConnectionId connection;
    TimePoint until;
  };

  mutable Mutex mutex_;
  const Clock& clock_;
  std::list<Entry> entries_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::sessions
