// instance.h - one registered engine worker and the transfers it has under way.
//
// An Instance is one registration: registering again with other parameters makes a new one, and
// what the old one had reserved never commits under the new. Handlers share it by shared_ptr while
// they work; close() ends it for all of them.
//
// A transfer is PREPARE ... COMMIT. A store holds a WriteLease, a retrieve a ReadLease with no time
// limit of its own. Several transfers of one key may be open; a COMMIT ends that of its own request
// id, never another's. One store of a key and request id is open at a time, as nobody could tell
// which of two a COMMIT means: who prepares it again gets no slots, and commits nothing then.
// Thread-safe: liveness is atomic, transfers are under the instance's mutex.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cache/leases.h"
#include "devices/device.h"
#include "keys/token_hash.h"
#include "sessions/ids.h"
#include "sessions/quarantine.h"
#include "tensors/layout.h"

namespace larder::sessions {

// What a chunk of an engine is stored as: an object for each of these.
struct ObjectGroup {
  tensors::Layout layout;
  std::optional<std::uint32_t> window_chunks = std::nullopt;  // a hit needs only the last so many

  bool operator==(const ObjectGroup&) const = default;
};

using ObjectGroups = std::vector<ObjectGroup>;

struct Registration {
  std::string model_name;
  std::uint32_t world_size = 1;
  std::int64_t block_size = 0;  // tokens; for the status only
  bool use_mla = false;
  ObjectGroups groups;       // one for an engine that copies its blocks itself
  bool can_map_pool = true;  // false: its release knows copy mode only

  // The engine's KV tensors, when the server moves its blocks (STORE, RETRIEVE); nullptr when the
  // engine does. Copies under way keep it beyond the registration.
  std::shared_ptr<devices::EngineMemory> memory = nullptr;

  bool operator==(const Registration&) const = default;
};

// How a client moves bytes. Known only from what it does: a commit with a payload is copy mode, a
// commit of written slots is shared memory (engine.md 7.6: a client that cannot map the pool falls
// back without saying so).
enum class ClientKind : std::uint8_t { kUnknown, kSharedMemory, kCopy };

// What must agree between a PREPARE and its COMMIT. The last hash stands for all tokens up to the
// range's end.
struct TransferKey {
  std::string model_name;
  std::string cache_salt;
  std::uint32_t kv_rank = 0;
  keys::ChunkRange range;
  keys::ChunkHash last_chunk;

  bool operator==(const TransferKey&) const = default;
};

// For the operator.
struct OpenTransfers {
  std::size_t stores = 0;
  std::size_t retrieves = 0;
  std::size_t reserved_objects = 0;
  std::size_t pinned_objects = 0;
};

class Instance {
 public:
  // Open transfers of one instance, stores and retrieves together; a worker has a handful.
  static constexpr std::size_t kTransfersMax = 4096;

  Instance(InstanceId instance_id, Registration what, ConnectionId connection, TimePoint now);
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance() = default;

  const InstanceId id;
  const Registration registration;

  // Liveness.
  void seen(ConnectionId connection, TimePoint now);

  void pinged() { pinged_.store(true); }

  bool has_pinged() const { return pinged_.load(); }

  TimePoint last_seen() const { return TimePoint(Duration(last_seen_.load())); }

  ConnectionId connection() const { return ConnectionId{connection_.load()}; }

  ClientKind kind() const { return kind_.load(); }

  // The client starts over: what it did before says nothing.
  void forget_kind() { kind_.store(initial_kind()); }

  // True when this is news.
  bool learn_kind(ClientKind kind) { return kind_.exchange(kind) != kind; }

  // False when the instance was closed, has too many transfers open, or has this very store open;
  // the lease is given back then.
  bool open_store(const TransferKey& key,
                  const std::string& request_id,
                  cache::WriteLease lease,
                  TimePoint now);

  bool has_store(const TransferKey& key, const std::string& request_id) const;
  bool open_retrieve(const TransferKey& key, const std::string& request_id, cache::ReadLease lease);

  // Ends the request's transfer of this key and hands over its lease.
  std::optional<cache::WriteLease> close_store(const TransferKey& key,
                                               const std::string& request_id);
  std::optional<cache::ReadLease> close_retrieve(const TransferKey& key,
                                                 const std::string& request_id);

  // Objects of this model and salt that open stores of this instance hold reservations of.
  std::unordered_set<keys::ObjectId, keys::ObjectIdHash> staged(const cache::KeySpace& space) const;

  OpenTransfers open_transfers() const;

  // Reservations older than `age`.
  Quarantine::Held expire_stores(TimePoint now, Duration age);

  // No transfer opens after this; what was open is handed over.
  Quarantine::Held close();

  // What was open is handed over; new transfers may open (a registration that was repeated
  // unchanged).
  Quarantine::Held drop_transfers();

 private:
  struct OpenStore {
    TransferKey key;
    std::string request_id;
    cache::WriteLease lease;
    TimePoint since;
  };

  struct OpenRetrieve {
    TransferKey key;
    std::string request_id;
    cache::ReadLease lease;
  };

  ClientKind initial_kind() const {
    return registration.can_map_pool ? ClientKind::kUnknown : ClientKind::kCopy;
  }

  Quarantine::Held take_all() LARDER_REQUIRES(mutex_);

  std::atomic<Duration::rep> last_seen_;
  std::atomic<std::uint64_t> connection_;
  std::atomic<bool> pinged_{false};
  std::atomic<ClientKind> kind_;

  mutable Mutex mutex_;
  bool closed_ LARDER_GUARDED_BY(mutex_) = false;
  std::vector<OpenStore> stores_ LARDER_GUARDED_BY(mutex_);
  std::vector<OpenRetrieve> retrieves_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::sessions
