// reply_encoder.h - a reply as bytes for the wire: uid and operation of the request, echoed byte
// for byte, and the value. Pure but for the charge that it makes.
#pragma once

#include <cstddef>

#include "transport/dispatcher.h"
#include "transport/send_queue.h"

namespace larder::transport {

// Uid and operation are copied into the reply; more than this is no client's.
inline constexpr std::size_t kEchoedBytesMax = 64U << 10;

// REQUIRES: at least two frames, the first two of at most kEchoedBytesMax. Throws std::bad_alloc.
OutgoingMessage encode_reply(const Request& request, Reply reply);

}  // namespace larder::transport
