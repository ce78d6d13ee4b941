// transport_counters.h - what this room counts. All threads of the room add.
#pragma once

#include "metrics/metrics.h"

namespace larder::transport {

struct TransportCounters {
  explicit TransportCounters(metrics::Registry& registry);

  metrics::Counter& messages;
  metrics::Counter& messages_too_long;  // more frames than frames_max
  metrics::Counter&
      messages_old_protocol;  // the peer speaks ZMTP 1 or 2: a stray probe, not a client
  metrics::Counter& messages_no_memory;
  metrics::Counter& messages_failed;  // the dispatcher threw
  metrics::Counter& requests_refused;
  metrics::Counter& requests_cut_off;  // still waiting when the server's time to drain was over
  metrics::Counter& replies;
  metrics::Counter& replies_peer_gone;
  metrics::Counter& replies_peer_slow;
  metrics::Counter& replies_no_memory;
};

}  // namespace larder::transport
