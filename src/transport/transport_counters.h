// transport_counters.h - what this room counts. All threads of the room add.
#pragma once

#include <array>

#include "metrics/metrics.h"
#include "zmtp/close_reason.h"

namespace larder::transport {

// Why a connection is not read for a while: its peer has to wait. Nothing is lost by it.
enum class Pause : std::uint8_t {
  kRequests,      // too many requests in flight
  kRequestBytes,  // too many bytes of requests in flight
  kUnread,        // too many bytes of replies that its peer has not read
  kMemory,        // a large message, while all connections together hold too much
};

inline constexpr std::size_t kPauseCount = 4;

struct TransportCounters {
  explicit TransportCounters(metrics::Registry& registry);

  metrics::Counter& closed(zmtp::CloseReason reason) {
    return *closed_[static_cast<std::size_t>(reason)];
  }

  metrics::Counter& paused(Pause why) { return *paused_[static_cast<std::size_t>(why)]; }

  metrics::Counter& accepted;
  metrics::Counter& accept_failures;  // no descriptor or no memory for a waiting peer
  metrics::Counter& commands_ignored;
  metrics::Counter& messages;
  metrics::Counter& messages_echo_too_long;  // uid or operation beyond what is echoed
  metrics::Counter& messages_no_memory;
  metrics::Counter& messages_failed;   // the dispatcher threw
  metrics::Counter& requests_refused;  // no memory to queue them
  metrics::Counter& requests_cut_off;  // still waiting when the server's time to drain was over
  metrics::Counter& replies;
  metrics::Counter& replies_peer_gone;
  metrics::Counter& replies_no_memory;

 private:
  std::array<metrics::Counter*, zmtp::kCloseReasonCount> closed_{};
  std::array<metrics::Counter*, kPauseCount> paused_{};
};

}  // namespace larder::transport
