#include "zmtp/close_reason.h"

#include <array>

namespace larder::zmtp {
namespace {

constexpr auto kNames = std::to_array<std::string_view>({
    "http",           "tls",          "old_zmtp",      "foreign",
    "mechanism",      "no_ready",     "bad_ready",     "socket_type",
    "command_bytes",  "bad_ping",     "message_bytes", "message_frames",
    "handshake_time", "message_time", "time_to_live",  "unread_time",
    "buffered_bytes", "unread_bytes", "connections",   "no_memory",
    "left",           "reset",        "shutdown",
});

static_assert(kNames.size() == kCloseReasonCount);
static_assert(static_cast<std::size_t>(CloseReason::kShutdown) + 1 == kCloseReasonCount);

}  // namespace

std::string_view to_string(CloseReason reason) {
  return kNames[static_cast<std::size_t>(reason)];
}

}  // namespace larder::zmtp
