#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <string>

namespace larder::log {
namespace {

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

std::string_view label(Level level) {
  switch (level) {
    case Level::kDebug:
      return "DEBUG";
    case Level::kInfo:
      return "INFO";
    case Level::kWarning:
      return "WARNING";
    case Level::kError:
      return "ERROR";
    case Level::kOff:
      break;
  }
  return "OFF";
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("larder",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("[%Y-%m-%d %H:%M:%S,%e] larder %v");
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *instance;
}

}  // namespace

Level level_from_name(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  if (lower == "debug") {
    return Level::kDebug;
  }
  if (lower == "warning") {
    return Level::kWarning;
  }
  if (lower == "error" || lower == "critical") {
    return Level::kError;
  }
  return lower == "off" ? Level::kOff : Level::kInfo;
}

void set_level(Level level) {
  logger().set_level(to_spdlog(level));
}

bool enabled(Level level) {
  return logger().should_log(to_spdlog(level));
}

void write(Level level, std::string_view message) {
  logger().log(to_spdlog(level), "{}: {}", label(level), message);
}

LogLimiter::Turn LogLimiter::take_turn(TimePoint now) {
  const Duration::rep ticks = now.time_since_epoch().count();
  Duration::rep next = next_.load();
  if (ticks < next || !next_.compare_exchange_strong(next, ticks + interval_.count())) {
    held_back_.fetch_add(1);
    return {false, 0};
  }
  return {true, held_back_.exchange(0)};
}

}  // namespace larder::log
