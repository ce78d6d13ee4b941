#include "handlers/dialects.h"

#include <algorithm>

#include "base/log.h"

namespace larder::handlers {
namespace {

constexpr std::size_t kAnnouncedDialectsMax = 2;

}  // namespace

Dialects::Dialects(std::optional<protocol::Release> default_release,
                   metrics::Registry& registry,
                   const Clock& clock)
    : clock_(clock),
      settled_(registry.counter_family("larder_connections_recognised_total",
                                       "Connections whose LMCache release was recognised")),
      detector_(default_release) {}

Reading Dialects::read(sessions::ConnectionId connection, protocol::Frames frames) {
  const MutexLock lock(mutex_);
  Kept& kept = kept_[connection];
  Reading reading = detector_.read(kept.dialect, frames);
  reading.is_reconnect = kept.dialect.is_reconnect;
  if (kept.dialect.is_settled() && kept.dialect.spoken.size() <= kAnnouncedDialectsMax &&
      !kept.announced.contains(kept.dialect.spoken)) {
    announce(connection, kept);
  }
  return reading;
}

std::optional<protocol::Release> Dialects::release_of(sessions::ConnectionId connection) const {
  const MutexLock lock(mutex_);
  const auto kept = kept_.find(connection);
  return kept != kept_.end() && kept->second.dialect.is_settled()
             ? std::optional(kept->second.dialect.spoken.oldest())
             : std::nullopt;
}

void Dialects::connection_closed(sessions::ConnectionId connection) {
  const MutexLock lock(mutex_);
  kept_.erase(connection);
}

std::vector<ConnectionStatus> Dialects::status() const {
  std::vector<ConnectionStatus> all;
  {
    const MutexLock lock(mutex_);
    all.reserve(kept_.size());
    for (const auto& [connection, kept] : kept_) {
      all.push_back({connection, kept.dialect.spoken, kept.dialect.decided_by});
    }
  }
  std::sort(
      all.begin(), all.end(), [](const ConnectionStatus& left, const ConnectionStatus& right) {
        return left.connection < right.connection;
      });
  return all;
}

void Dialects::announce(sessions::ConnectionId connection, Kept& kept) {
  const std::string releases = to_string(kept.dialect.spoken);
  kept.announced = kept.dialect.spoken;
  settled_
      .with({{"release", releases}, {"decided_by", std::string(name_of(kept.dialect.decided_by))}})
      .add();
  if (may_write_line()) {
    log::info("connection {} speaks LMCache {} (decided by {})",
              static_cast<std::uint64_t>(connection),
              releases,
              name_of(kept.dialect.decided_by));
  }
}

bool Dialects::may_write_line() {
  const TimePoint now = clock_.now();
  if (now - minute_ >= std::chrono::minutes(1)) {
    minute_ = now;
    lines_of_minute_ = 0;
  }
  return lines_of_minute_++ < kLinesPerMinute;
}

}  // namespace larder::handlers
