// peer_list.h - who is connected now, for /status. The wire thread writes, any thread reads.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "transport/dispatcher.h"

namespace larder::transport {

struct ConnectedPeer {
  ConnectionId connection{};
  PeerName name;
};

class PeerList {
 public:
  void add(ConnectionId connection, const PeerName& name) {
    const MutexLock lock(mutex_);
    peers_.emplace(connection, name);
  }

  void remove(ConnectionId connection) {
    const MutexLock lock(mutex_);
    peers_.erase(connection);
  }

  std::size_t size() const {
    const MutexLock lock(mutex_);
    return peers_.size();
  }

  // The longest connected first, at most so many.
  std::vector<ConnectedPeer> list(std::size_t count_max) const {
    const MutexLock lock(mutex_);
    std::vector<ConnectedPeer> listed;
    for (const auto& [connection, name] : peers_) {
      if (listed.size() == count_max) {
        break;
      }
      listed.push_back({connection, name});
    }
    return listed;
  }

 private:
  mutable Mutex mutex_;
  std::map<ConnectionId, PeerName> peers_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::transport
