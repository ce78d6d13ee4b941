// reply_sender.h - replies to the ROUTER socket: whole or not at all, and never waiting.
//
// Short values are copied into the frame; longer ones are lent to libzmq, which frees them (and
// with them the reply's owner and charge) when they have left, on a thread of its own. Replies that
// are too short to be worth a charge are bounded by the socket's high-water mark, which counts
// messages.
#pragma once

#include <cstddef>
#include <string_view>

#include "transport/dispatcher.h"
#include "transport/outbox.h"
#include "transport/transport_counters.h"

namespace larder::transport {

inline constexpr std::size_t kCopiedBytesMax = 512;

// What a reply's value costs its connection until it has left.
std::size_t charged_bytes(const Reply& reply);

class ReplySender {
 public:
  ReplySender(void* router, TransportCounters& counters) : router_(router), counters_(counters) {}

  // Wire thread. A peer that is gone or has no room loses the reply, which is counted.
  void send(std::string_view identity, Answer answer);

 private:
  void* const router_;
  TransportCounters& counters_;
};

}  // namespace larder::transport
