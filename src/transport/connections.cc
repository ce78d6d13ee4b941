#include "transport/connections.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace larder::transport {

Connections::Connections(std::size_t reply_bytes_max, Listener has_room, Listener closed)
    : reply_bytes_max_(std::max<std::size_t>(reply_bytes_max, 1)),
      has_room_(std::move(has_room)),
      closed_(std::move(closed)) {}

void Connections::accepted(int descriptor) {
  // Whatever had this descriptor before is gone, also where libzmq did not say so (an identity that
  // was taken over).
  const auto place = by_descriptor_.find(descriptor);
  if (place != by_descriptor_.end()) {
    depart(*place->second);
    by_descriptor_.erase(place);
  }
  open_descriptors_.insert(descriptor);
}

void Connections::disconnected(int descriptor) {
  open_descriptors_.erase(descriptor);
  const auto place = by_descriptor_.find(descriptor);
  if (place != by_descriptor_.end()) {
    depart(*place->second);
    by_descriptor_.erase(place);
  }
}

Peer* Connections::find(std::string_view identity, int descriptor) {
  const auto place = by_identity_.find(identity);
  if (place == by_identity_.end() || place->second->descriptor != descriptor) {
    return nullptr;
  }
  return place->second;
}

Peer* Connections::find(ConnectionId connection) {
  const auto place = by_id_.find(connection);
  return place == by_id_.end() ? nullptr : &place->second;
}

Peer& Connections::open(std::string_view identity, int descriptor) {
  const auto same_identity = by_identity_.find(identity);
  if (same_identity != by_identity_.end()) {
    close(same_identity->second->id);
  }
  const ConnectionId id{++last_id_};
  auto unsent =
      std::make_shared<UnsentBytes>(reply_bytes_max_, [has_room = has_room_, id] { has_room(id); });
  Peer& peer = by_id_[id];
  peer.id = id;
  peer.identity = identity;
  peer.descriptor = descriptor;
  peer.unsent = std::move(unsent);
  by_identity_.emplace(peer.identity, &peer);
  const auto [place, is_new] = by_descriptor_.try_emplace(descriptor, &peer);
  if (!is_new) {
    depart(*std::exchange(place->second, &peer));
  }
  if (!open_descriptors_.contains(descriptor)) {
    depart(peer);
  }
  return peer;
}

void Connections::depart(Peer& peer) {
  if (!peer.is_departing) {
    peer.is_departing = true;
    departing_.push_back({peer.id});
  }
}

void Connections::close(ConnectionId connection) {
  const auto place = by_id_.find(connection);
  LARDER_CHECK(place != by_id_.end());
  const Peer& peer = place->second;
  by_identity_.erase(peer.identity);
  const auto by_descriptor = by_descriptor_.find(peer.descriptor);
  if (by_descriptor != by_descriptor_.end() && by_descriptor->second == &peer) {
    by_descriptor_.erase(by_descriptor);
  }
  std::erase_if(departing_, [&](const Departing& entry) { return entry.id == connection; });
  by_id_.erase(place);
  closed_(connection);
}

void Connections::round_ended(bool socket_was_empty) {
  if (departing_.empty()) {
    return;
  }
  std::vector<ConnectionId> gone;
  for (Departing& entry : departing_) {
    entry.empty_finds += socket_was_empty ? 1 : 0;
    ++entry.rounds;
    if (entry.empty_finds >= kEmptyFindsToClose || entry.rounds >= kRoundsToClose) {
      gone.push_back(entry.id);
    }
  }
  for (const ConnectionId id : gone) {
    close(id);
  }
}

void Connections::close_all() {
  while (!by_id_.empty()) {
    close(by_id_.begin()->first);
  }
}

}  // namespace larder::transport
