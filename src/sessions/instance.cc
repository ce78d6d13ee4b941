#include "sessions/instance.h"

#include <algorithm>
#include <iterator>

namespace larder::sessions {
namespace {

template <typename Transfers>
auto find_own(Transfers& transfers, const TransferKey& key, const std::string& request_id) {
  return std::find_if(transfers.begin(), transfers.end(), [&](const auto& transfer) {
    return transfer.key == key && transfer.request_id == request_id;
  });
}

void hand_over(cache::WriteLease& lease, Quarantine::Held& held) {
  std::vector<pool::Slot> slots = lease.abandon();
  std::move(slots.begin(), slots.end(), std::back_inserter(held.slots));
}

}  // namespace

Instance::Instance(InstanceId instance_id,
                   Registration what,
                   ConnectionId connection,
                   TimePoint now)
    : id(instance_id),
      registration(std::move(what)),
      last_seen_(now.time_since_epoch().count()),
      connection_(static_cast<std::uint64_t>(connection)),
      kind_(initial_kind()) {}

void Instance::seen(ConnectionId connection, TimePoint now) {
  last_seen_.store(now.time_since_epoch().count());
  connection_.store(static_cast<std::uint64_t>(connection));
}

bool Instance::open_store(const TransferKey& key,
                          const std::string& request_id,
                          cache::WriteLease lease,
                          TimePoint now) {
  const MutexLock lock(mutex_);
  if (closed_ || stores_.size() + retrieves_.size() >= kTransfersMax ||
      find_own(stores_, key, request_id) != stores_.end()) {
    return false;
  }
  stores_.push_back(OpenStore{key, request_id, std::move(lease), now});
  return true;
}

bool Instance::has_store(const TransferKey& key, const std::string& request_id) const {
  const MutexLock lock(mutex_);
  return find_own(stores_, key, request_id) != stores_.end();
}

bool Instance::open_retrieve(const TransferKey& key,
                             const std::string& request_id,
                             cache::ReadLease lease) {
  const MutexLock lock(mutex_);
  if (closed_ || stores_.size() + retrieves_.size() >= kTransfersMax) {
    return false;
  }
  retrieves_.push_back(OpenRetrieve{key, request_id, std::move(lease)});
  return true;
}

std::optional<cache::WriteLease> Instance::close_store(const TransferKey& key,
                                                       const std::string& request_id) {
  const MutexLock lock(mutex_);
  // Never that of another request: its slots are not written yet.
  const auto found = find_own(stores_, key, request_id);
  if (found == stores_.end()) {
    return std::nullopt;
  }
  cache::WriteLease lease = std::move(found->lease);
  stores_.erase(found);
  return lease;
}

std::optional<cache::ReadLease> Instance::close_retrieve(const TransferKey& key,
                                                         const std::string& request_id) {
  const MutexLock lock(mutex_);
  // Never that of another request: its worker may be reading.
  const auto found = find_own(retrieves_, key, request_id);
  if (found == retrieves_.end()) {
    return std::nullopt;
  }
  cache::ReadLease lease = std::move(found->lease);
  retrieves_.erase(found);
  return lease;
}

std::unordered_set<keys::ObjectId, keys::ObjectIdHash> Instance::staged(
    const cache::KeySpace& space) const {
  std::unordered_set<keys::ObjectId, keys::ObjectIdHash> ids;
  const MutexLock lock(mutex_);
  for (const OpenStore& store : stores_) {
    if (store.key.model_name != space.model_name || store.key.cache_salt != space.cache_salt) {
      continue;
    }
    for (std::size_t i = 0; i < store.lease.size(); ++i) {
      ids.insert(store.lease.id(i));
    }
  }
  return ids;
}

Quarantine::Held Instance::expire_stores(TimePoint now, Duration age) {
  Quarantine::Held held;
  const MutexLock lock(mutex_);
  for (OpenStore& store : stores_) {
    if (now - store.since > age) {
      hand_over(store.lease, held);
    }
  }
  std::erase_if(stores_, [now, age](const OpenStore& store) { return now - store.since > age; });
  return held;
}

Quarantine::Held Instance::close() {
  if (registration.memory != nullptr) {
    registration.memory->retire(std::chrono::milliseconds::zero());
  }
  const MutexLock lock(mutex_);
  closed_ = true;
  return take_all();
}

Quarantine::Held Instance::drop_transfers() {
  const MutexLock lock(mutex_);
  return take_all();
}

OpenTransfers Instance::open_transfers() const {
  OpenTransfers open;
  const MutexLock lock(mutex_);
  open.stores = stores_.size();
  open.retrieves = retrieves_.size();
  for (const OpenStore& store : stores_) {
    open.reserved_objects += store.lease.size();
  }
  for (const OpenRetrieve& retrieve : retrieves_) {
    open.pinned_objects += retrieve.lease.size();
  }
  return open;
}

Quarantine::Held Instance::take_all() {
  Quarantine::Held held;
  for (OpenStore& store : stores_) {
    hand_over(store.lease, held);
  }
  for (OpenRetrieve& retrieve : retrieves_) {
    held.lease.absorb(std::move(retrieve.lease));
  }
  stores_.clear();
  retrieves_.clear();
  return held;
}

}  // namespace larder::sessions
