// connections.h - who is connected: libzmq identity <-> ConnectionId, and when a connection has
// gone.
//
// libzmq names a connection by its identity, tells the descriptor with each frame, and reports
// accepted and disconnected descriptors on a monitor that runs beside the messages. From these:
//   * A connection opens with its first message. REQUIRES of open(): the monitor was read after
//   that message was
//     received. libzmq reports ACCEPTED before it delivers, so a descriptor not reported open then
//     has gone already.
//   * Descriptors are reused and explicit identities can move to another connection: the newest
//   frame is right, the
//     older connection departs.
//   * Messages may still be queued when DISCONNECTED comes (a client that sends END_SESSION and
//   exits). A departing
//     connection therefore closes only after the socket was found empty twice; or after many
//     rounds, if it never is.
// No libzmq here. One thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/dispatcher.h"
#include "transport/unsent_bytes.h"

namespace larder::transport {

struct Peer {
  ConnectionId id{};
  std::string identity;
  int descriptor = -1;
  bool is_departing = false;
  std::shared_ptr<UnsentBytes>
      unsent;  // shared with requests and replies under way; set by the owner
};

class Connections {
 public:
  using Listener = std::function<void(ConnectionId)>;

  static constexpr int kEmptyFindsToClose = 2;
  static constexpr int kRoundsToClose = 4096;

  // `has_room` is called on any thread (unsent_bytes.h), also when this is no more.
  Connections(std::size_t reply_bytes_max, Listener has_room, Listener closed);

  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // The monitor's events.
  void accepted(int descriptor);
  void disconnected(int descriptor);

  // The connection that a message belongs to; nullptr: read the monitor, then open() it.
  Peer* find(std::string_view identity, int descriptor);
  Peer& open(std::string_view identity, int descriptor);

  Peer* find(ConnectionId connection);  // nullptr: gone

  // Call after each round of receiving. Peers may be gone afterwards.
  void round_ended(bool socket_was_empty);

  bool has_departing() const { return !departing_.empty(); }

  std::size_t size() const { return by_id_.size(); }

  void close_all();

 private:
  struct Departing {
    ConnectionId id{};
    int empty_finds = 0;
    int rounds = 0;
  };

  struct TextHash {
    using is_transparent = void;

    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  void depart(Peer& peer);
  void close(ConnectionId connection);

  const std::size_t reply_bytes_max_;
  const Listener has_room_;
  const Listener closed_;
  std::unordered_map<ConnectionId, Peer> by_id_;  // owns; nodes do not move
  std::unordered_map<std::string, Peer*, TextHash, std::equal_to<>> by_identity_;
  std::unordered_map<int, Peer*> by_descriptor_;  // the newest one
  std::unordered_set<int> open_descriptors_;
  std::vector<Departing> departing_;
  std::uint64_t last_id_ = 0;
};

}  // namespace larder::transport
