#include "transport/connection_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "zmtp/receive_memory.h"

namespace larder::transport {

Connection& ConnectionTable::add(std::unique_ptr<Connection> connection) {
  const int descriptor = connection->descriptor();
  const auto [place, is_new] = connections_.emplace(descriptor, std::move(connection));
  LARDER_CHECK(is_new);
  return *place->second;
}

void ConnectionTable::bury(Connection& connection) {
  connection.stage = Connection::Stage::kGone;
  if (connection.alarm) {
    alarms_.erase(*std::exchange(connection.alarm, std::nullopt));
  }
  if (connection.is_ready) {
    std::erase(ready_, &connection);
  }
  if (connection.waits_for_memory) {
    std::erase(memory_waiters_, &connection);
  }
  unfinished_bytes_ -= std::exchange(connection.counted_bytes, 0);
  const auto place = connections_.find(connection.descriptor());
  LARDER_CHECK(place != connections_.end());
  graveyard_.push_back(std::move(place->second));
  connections_.erase(place);
  connection.close();
}

std::vector<Connection*> ConnectionTable::all() {
  std::vector<Connection*> all;
  all.reserve(connections_.size());
  for (const auto& [descriptor, connection] : connections_) {
    all.push_back(connection.get());
  }
  std::sort(all.begin(), all.end(), [](const Connection* left, const Connection* right) {
    return left->id < right->id;
  });
  return all;
}

void ConnectionTable::assign_id(Connection& connection) {
  connection.id = ConnectionId{++last_id_};
  by_id_.emplace(connection.id, &connection);
}

void ConnectionTable::forget_id(Connection& connection) {
  by_id_.erase(connection.id);
  held_bytes_ -= std::exchange(connection.held_bytes, 0);  // nothing holds what it left behind
}

Connection* ConnectionTable::find(ConnectionId id) {
  const auto place = by_id_.find(id);
  return place == by_id_.end() ? nullptr : place->second;
}

void ConnectionTable::make_ready(Connection& connection) {
  if (!std::exchange(connection.is_ready, true)) {
    ready_.push_back(&connection);
  }
}

std::vector<Connection*> ConnectionTable::take_ready() {
  for (Connection* const connection : ready_) {
    connection->is_ready = false;
  }
  return std::exchange(ready_, {});
}

void ConnectionTable::set_alarm(Connection& connection, std::optional<Connection::Due> due) {
  if (!due || (connection.alarm && (*connection.alarm)->first <= due->time)) {
    return;
  }
  if (connection.alarm) {
    alarms_.erase(*connection.alarm);
  }
  connection.alarm = alarms_.emplace(due->time, &connection);
}

std::optional<TimePoint> ConnectionTable::next_alarm() const {
  return alarms_.empty() ? std::nullopt : std::optional(alarms_.begin()->first);
}

std::vector<Connection*> ConnectionTable::take_due(TimePoint now) {
  std::vector<Connection*> due;
  while (!alarms_.empty() && alarms_.begin()->first <= now) {
    Connection* const connection = alarms_.begin()->second;
    alarms_.erase(alarms_.begin());
    connection->alarm.reset();
    due.push_back(connection);
  }
  return due;
}

void ConnectionTable::count_unfinished(Connection& connection) {
  const std::size_t bytes = connection.decoder.unfinished_bytes();
  unfinished_bytes_ += bytes - std::exchange(connection.counted_bytes, bytes);
}

void ConnectionTable::count_held(Connection& connection) {
  const std::size_t bytes = connection.unsent->is_full() ? connection.request_bytes_in_flight : 0;
  held_bytes_ += bytes - std::exchange(connection.held_bytes, bytes);
}

template <typename BytesOf>
Connection* ConnectionTable::largest_by(BytesOf bytes_of) {
  Connection* largest = nullptr;
  std::size_t most = zmtp::kBlockBytes;
  for (const auto& [descriptor, connection] : connections_) {
    const std::size_t bytes = bytes_of(*connection);
    if (bytes > most) {
      most = bytes;
      largest = connection.get();
    }
  }
  return largest;
}

Connection* ConnectionTable::largest_unfinished() {
  return largest_by([](const Connection& connection) { return connection.counted_bytes; });
}

Connection* ConnectionTable::largest_stuck() {
  return largest_by([](const Connection& connection) {
    return connection.counted_bytes + connection.held_bytes;
  });
}

Connection* ConnectionTable::largest_unread(std::size_t heap_bytes_max) {
  // Without replies on their way here: those of a connection that is gone are about to be dropped.
  const auto unread_bytes = [](const Connection& connection) {
    return connection.queue.is_empty() ? 0 : connection.unsent->heap_bytes();
  };
  std::size_t sum = 0;
  for (const auto& [descriptor, connection] : connections_) {
    sum += unread_bytes(*connection);
  }
  return sum > heap_bytes_max ? largest_by(unread_bytes) : nullptr;
}

void ConnectionTable::wait_for_memory(Connection& connection) {
  if (!std::exchange(connection.waits_for_memory, true)) {
    memory_waiters_.push_back(&connection);
  }
}

std::vector<Connection*> ConnectionTable::take_memory_waiters() {
  for (Connection* const connection : memory_waiters_) {
    connection->waits_for_memory = false;
  }
  return std::exchange(memory_waiters_, {});
}

}  // namespace larder::transport
