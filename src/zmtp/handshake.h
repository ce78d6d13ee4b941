// handshake.h - greeting and READY of ZMTP 3 with the NULL mechanism, server side. Pure functions.
//
// What is refused and what is forgiven follows libzmq's ROUTER, but where libzmq falls back to ZMTP
// 1 or 2, or reads past a property's end, we close.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "zmtp/close_reason.h"

namespace larder::zmtp {

inline constexpr std::size_t kGreetingBytes = 64;

// Our greeting and our READY, to be sent in one piece as soon as a connection is accepted. Nothing
// else may be sent before the peer's READY has been read: libzmq clients give up for ever if they
// meet it before their own READY is out.
std::span<const std::byte> server_hello();

// The decision about a greeting of which any number of bytes has come: nullopt while nothing is
// wrong with it. Decides at bytes 1, 10, 11 and 32.
std::optional<CloseReason> judge_greeting(std::span<const std::byte> received);

// What the peer says of itself; for log lines.
struct PeerReady {
  std::string socket_type;  // empty: not told
  std::string identity;
};

// Reads the properties of READY: what follows the command's name. nullopt: all is well.
std::optional<CloseReason> read_ready(std::span<const std::byte> properties, PeerReady& ready);

}  // namespace larder::zmtp
