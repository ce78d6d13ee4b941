// log.h - log lines on stderr: "[2026-01-31 12:00:00,123] larder INFO: message".
//
// The logger is the one process-wide object of the server: threads of every room write to it and
// none reads it. INFO is for rare events an operator acts on; detail of single requests goes to
// DEBUG; what a peer can repeat at will goes through a LogLimiter. Any thread may call; a line is
// written whole.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace larder::log {

enum class Level { kDebug, kInfo, kWarning, kError, kOff };

// kInfo when the name is not one of debug, info, warning, error, critical, off (any case), as
// LMCACHE_LOG_LEVEL reads it.
Level level_from_name(std::string_view name);

void set_level(Level level);
bool enabled(Level level);
void write(Level level, std::string_view message);

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) {
    write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) {
    write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarning)) {
    write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
}

template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError)) {
    write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
  }
}

// Lets one line through per interval and counts what it held back. Any thread may call.
//
//   if (auto turn = limiter_.take_turn(clock.now())) log::warning("... ({} more held back)",
//   turn.held_back);
class LogLimiter {
 public:
  explicit LogLimiter(Duration interval = std::chrono::seconds(10)) : interval_(interval) {}

  struct Turn {
    bool granted;
    std::uint64_t held_back;  // lines since the last granted turn

    explicit operator bool() const { return granted; }
  };

  Turn take_turn(TimePoint now);

 private:
  Duration interval_;
  std::atomic<Duration::rep> next_{0};
  std::atomic<std::uint64_t> held_back_{0};
};

}  // namespace larder::log
