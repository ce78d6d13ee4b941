// ids.h - the identities of this room. Two integers of one meaning each, so that they cannot be
// swapped.
#pragma once

#include <cstdint>
#include <functional>

namespace larder::sessions {

// Chosen by the engine worker (63 random bits, or a pid); any 64 bits.
enum class InstanceId : std::uint64_t {};

// Counted by the transport from 1, never reused: a reconnecting client is a new connection.
enum class ConnectionId : std::uint64_t {};

struct IdHash {
  template <typename Id>
  std::size_t operator()(Id id) const {
    return std::hash<std::uint64_t>()(static_cast<std::uint64_t>(id));
  }
};

}  // namespace larder::sessions
