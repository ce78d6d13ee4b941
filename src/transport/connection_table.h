// connection_table.h - the connections of one loop: who they are, which of them to serve again,
// when to look at them, and what all of them together hold in memory.
//
// Bookkeeping only: no system calls, no dispatcher. A buried connection stays valid until
// empty_graveyard(), so that events of the same round may still name it. Wire thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "transport/connection.h"

namespace larder::transport {

class ConnectionTable {
 public:
  ConnectionTable() = default;
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;
  ~ConnectionTable() = default;

  Connection& add(std::unique_ptr<Connection> connection);
  void bury(Connection& connection);

  void empty_graveyard() { graveyard_.clear(); }

  std::size_t size() const { return connections_.size(); }

  // In the order of their ids; those without first.
  std::vector<Connection*> all();

  // Gives it the next id, by which find() knows it until forget_id().
  void assign_id(Connection& connection);
  void forget_id(Connection& connection);
  Connection* find(ConnectionId id);  // nullptr: gone

  // Connections that have something to do although no event will say so.
  void make_ready(Connection& connection);
  std::vector<Connection*> take_ready();

  bool has_ready() const { return !ready_.empty(); }

  // Sees to it that the connection is among take_due() when `due` has come; earlier alarms stay.
  void set_alarm(Connection& connection, std::optional<Connection::Due> due);
  std::optional<TimePoint> next_alarm() const;
  std::vector<Connection*> take_due(TimePoint now);

  // Memory: what unfinished messages hold, and what requests in flight hold, also of connections
  // that are gone. Some of the latter are held: they wait until their peer reads its replies.
  void count_unfinished(Connection& connection);
  void count_held(Connection& connection);

  void add_in_flight(std::size_t bytes) { in_flight_bytes_ += bytes; }

  void subtract_in_flight(std::size_t bytes) { in_flight_bytes_ -= bytes; }

  std::size_t buffered_bytes() const { return in_flight_bytes_ + unfinished_bytes_; }

  // What ends by itself, and what ends when its peer does something.
  std::size_t running_bytes() const { return in_flight_bytes_ - held_bytes_; }

  std::size_t stuck_bytes() const { return held_bytes_ + unfinished_bytes_; }

  // Whose unfinished message is the largest, and who has most that is stuck; nullptr when nobody
  // has more than a little.
  Connection* largest_unfinished();
  Connection* largest_stuck();

  // Who has the most bytes of replies on the heap to send; nullptr when all together are within the
  // limit.
  Connection* largest_unread(std::size_t heap_bytes_max);

  // Connections that are not read until there is memory again, or no use in waiting.
  void wait_for_memory(Connection& connection);
  std::vector<Connection*> take_memory_waiters();

 private:
  template <typename BytesOf>
  Connection* largest_by(BytesOf bytes_of);

  std::unordered_map<int, std::unique_ptr<Connection>> connections_;  // by descriptor
  std::unordered_map<ConnectionId, Connection*> by_id_;
  std::vector<std::unique_ptr<Connection>> graveyard_;
  std::vector<Connection*> ready_;
  std::vector<Connection*> memory_waiters_;
  Alarms alarms_;
  std::size_t unfinished_bytes_ = 0;
  std::size_t in_flight_bytes_ = 0;
  std::size_t held_bytes_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace larder::transport
