// close_reason.h - why a connection was closed. Each reason is a label of one counter.
//
// The first groups are found by the decoder from bytes alone; those about time and load by the
// transport, which has the clock and the other connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace larder::zmtp {

enum class CloseReason : std::uint8_t {
  // The peer speaks something else. Told apart by its first bytes.
  kHttp,
  kTls,
  kOldZmtp,  // ZMTP 1 or 2
  kForeign,

  // The handshake.
  kMechanism,   // not NULL
  kNoReady,     // something else where READY is due
  kBadReady,    // properties that do not parse, or an identity beyond 255 bytes
  kSocketType,  // a type that ROUTER does not talk to

  // Frames and commands.
  kLongCommand,
  kBadPing,
  kMessageBytes,
  kMessageFrames,

  // Time.
  kHandshakeTime,
  kMessageTime,
  kTimeToLive,  // the peer's own wish, in a PING
  kUnreadTime,  // it does not read its replies

  // Load.
  kBufferedBytes,  // of all connections together; this one held most
  kUnreadBytes,    // the same of what waits for peers to read their replies
  kConnections,
  kNoMemory,

  // Its own or our end.
  kLeft,
  kReset,
  kShutdown,
};

inline constexpr std::size_t kCloseReasonCount = 23;

// As in metrics and log lines: "http", "message_bytes".
std::string_view to_string(CloseReason reason);

// Whether the peer never was a client: such ends are counted and not worth a log line.
constexpr bool is_foreign(CloseReason reason) {
  return reason <= CloseReason::kForeign;
}

}  // namespace larder::zmtp
