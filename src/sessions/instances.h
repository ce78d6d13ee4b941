// instances.h - which engine workers are registered, and whether they live.
//
// Owns the registrations and, with them, the layouts that lookups of a model must satisfy. An
// instance that falls silent is reaped: its reservations are discarded (never published) and rest
// in quarantine, its reads are unpinned. A PING from an id that is not known answers false once,
// which makes a worker's heartbeat register it again (engine.md 10.4).
//
// Thread-safe; one mutex, held for map operations only. PING is answered on the wire thread through
// this.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "sessions/ids.h"
#include "sessions/instance.h"
#include "sessions/quarantine.h"

namespace larder::sessions {

struct InstanceLimits {
  Duration reap_timeout;        // of silence for an instance that has pinged; zero: never reaped
  Duration registration_grace;  // of silence for one that never pinged
  Duration write_ttl;           // of a reservation
  Duration reconnect_grace;     // after its connection is gone
  Duration quarantine_done;     // after the client's own word that it is done
  Duration
      quarantine_restart;  // after it registered again: its copies of before may still be running
  Duration quarantine_silence;  // after silence: the longest a slow client may wake up late
  std::size_t instances_max;
  std::size_t told_max;  // unknown ids remembered as told to register
};

// What a LOOKUP of (model, world size) has to satisfy.
struct RegisteredLayouts {
  std::vector<ObjectGroups> layouts;  // distinct; a chunk counts only if it can be read in each
  bool refused = false;  // an engine is registered that can retrieve nothing: nothing counts
};

struct InstanceStatus {
  InstanceId id{};
  Registration registration;
  ClientKind kind = ClientKind::kUnknown;
  ConnectionId connection{};  // last heard over this one
  Duration silent_for{};
  OpenTransfers open;
};

class Instances {
 public:
  Instances(const InstanceLimits& limits, Quarantine& quarantine, const Clock& clock);
  Instances(const Instances&) = delete;
  Instances& operator=(const Instances&) = delete;
  ~Instances() = default;

  enum class Registered { kNew, kAgain, kReplaced, kTooMany };

  // The same parameters again: stays, with its client kind unknown again and its open transfers
  // dropped, as the client starts over. Other parameters: a new generation.
  Registered add(InstanceId id, const Registration& registration, ConnectionId connection);

  // nullptr when not registered. Counts as a sign of life.
  std::shared_ptr<Instance> find(InstanceId id, ConnectionId connection);

  // False when it was not registered.
  bool remove(InstanceId id);

  // An engine registered in a way that is not served: remembered, so that lookups do not promise
  // it anything. What it had registered before is closed.
  void add_refused(InstanceId id,
                   const std::string& model_name,
                   std::int64_t world_size,
                   ConnectionId connection);
  bool remove_refused(InstanceId id);

  // From now on PINGs of this refused instance answer false: its adapter leaves the cache path.
  void turn_away(InstanceId id);

  bool ping(InstanceId id, ConnectionId connection);

  // A PING that names no instance (before 0.5.0): a sign of life of all that were last heard over
  // this connection. A client that reconnected and has none here is told false once, as it may be a
  // worker that registered with another server process.
  bool ping_connection(ConnectionId connection, bool is_reconnect);

  RegisteredLayouts layouts_of(const std::string& model_name, std::int64_t world_size) const;

  // Its peer left, and will touch the pool no more.
  void connection_closed(ConnectionId connection);

  // We closed it: its client may be a process that was stopped, and wakes up.
  void connection_dropped(ConnectionId connection);

  // Reaps the silent and expires reservations. Returns how many instances went.
  std::size_t sweep();

  std::size_t count() const;
  std::vector<InstanceStatus> status() const;
  std::vector<InstanceId> refused_ids() const;

 private:
  using ModelKey = std::pair<std::string, std::int64_t>;  // model name, world size

  struct Refused {
    ModelKey model;
    ConnectionId connection{};
    TimePoint last_seen;
    bool pinged = false;
    bool turned_away = false;
  };

  using Map = std::unordered_map<InstanceId, std::shared_ptr<Instance>, IdHash>;

  struct ModelLayouts {
    std::vector<std::pair<ObjectGroups, std::size_t>> layouts;  // with the number of instances
    std::size_t refused = 0;
  };

  void count_layout(const Registration& registration) LARDER_REQUIRES(mutex_);
  void uncount_layout(const Registration& registration) LARDER_REQUIRES(mutex_);
  void uncount_refused(const ModelKey& model) LARDER_REQUIRES(mutex_);
  bool forget_refused(InstanceId id) LARDER_REQUIRES(mutex_);

  // Keeps what an instance held until its client cannot touch it; at once when its connection is
  // gone.
  void rest(Quarantine::Held held, InstanceId id, ConnectionId connection, Duration time);
  bool is_silent(TimePoint now, TimePoint last_seen, bool pinged, ConnectionId connection) const
      LARDER_REQUIRES(mutex_);
  bool tell_once(InstanceId id) LARDER_REQUIRES(mutex_);

  struct Company {  // of a connection
    bool has_any = false;
    bool is_turned_away = false;
  };

  Company note_life_of(ConnectionId connection) LARDER_REQUIRES(mutex_);
  void forget_told(InstanceId id) LARDER_REQUIRES(mutex_);
  std::vector<std::shared_ptr<Instance>> take_silent(TimePoint now);

  const InstanceLimits limits_;
  Quarantine& quarantine_;
  const Clock& clock_;
  mutable Mutex mutex_;
  Map instances_ LARDER_GUARDED_BY(mutex_);
  std::unordered_map<InstanceId, Refused, IdHash> refused_ LARDER_GUARDED_BY(mutex_);
  std::map<ModelKey, ModelLayouts> models_ LARDER_GUARDED_BY(mutex_);
  std::list<InstanceId> told_order_ LARDER_GUARDED_BY(mutex_);  // oldest first
  std::unordered_map<InstanceId, std::list<InstanceId>::iterator, IdHash> told_
      LARDER_GUARDED_BY(mutex_);
  std::unordered_set<ConnectionId, IdHash> told_connections_ LARDER_GUARDED_BY(mutex_);
  std::unordered_map<ConnectionId, TimePoint, IdHash> closed_
      LARDER_GUARDED_BY(mutex_);  // lately, and when
};

}  // namespace larder::sessions
