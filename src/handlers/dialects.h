// dialects.h - the release that each connection speaks: kept, logged once and shown.
//
// A connection is logged when it is known as closely as its messages usually tell, that is, down to
// two dialects of one family; no more than kLinesPerMinute lines, whatever connects.
//
// read() is called by the thread that receives, for each message in order of arrival; the rest by
// any thread. The mutex is held for one message's detection, which looks at a bounded part of it
// (release_detector.h), and for copying what the status shows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "handlers/release_detector.h"
#include "metrics/metrics.h"
#include "sessions/ids.h"

namespace larder::handlers {

struct ConnectionStatus {
  sessions::ConnectionId connection{};
  protocol::ReleaseSet releases;  // all: nothing is known yet
  DecidedBy decided_by = DecidedBy::kNothing;
};

class Dialects {
 public:
  static constexpr std::uint32_t kLinesPerMinute = 100;

  Dialects(std::optional<protocol::Release> default_release,
           metrics::Registry& registry,
           const Clock& clock);
  Dialects(const Dialects&) = delete;
  Dialects& operator=(const Dialects&) = delete;
  ~Dialects() = default;

  Reading read(sessions::ConnectionId connection, protocol::Frames frames);

  // What a connection is taken to speak, before its next message is there to be read; nullopt while
  // it could be one of several families.
  std::optional<protocol::Release> release_of(sessions::ConnectionId connection) const;

  void connection_closed(sessions::ConnectionId connection);

  // Oldest connection first.
  std::vector<ConnectionStatus> status() const;

 private:
  struct Kept {
    Dialect dialect;
    protocol::ReleaseSet announced;  // what the log said; empty: nothing yet
  };

  void announce(sessions::ConnectionId connection, Kept& kept) LARDER_REQUIRES(mutex_);
  bool may_write_line() LARDER_REQUIRES(mutex_);

  const Clock& clock_;
  metrics::CounterFamily& settled_;
  mutable Mutex mutex_;
  ReleaseDetector detector_ LARDER_GUARDED_BY(mutex_);
  std::unordered_map<sessions::ConnectionId, Kept, sessions::IdHash> kept_
      LARDER_GUARDED_BY(mutex_);
  std::uint32_t lines_of_minute_ LARDER_GUARDED_BY(mutex_) = 0;
  TimePoint minute_ LARDER_GUARDED_BY(mutex_){};  // its start
};

}  // namespace larder::handlers
