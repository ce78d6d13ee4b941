// port_owner.h - who listens on a TCP port, for the message that says it is taken.
//
// Reads /proc, best effort: other users' processes and those of other containers stay unnamed.
#pragma once

#include <cstdint>
#include <string>

namespace larder::transport {

// "pid 123, python3", or "" when it cannot be found. `address` is an IP literal without brackets;
// anything else stands for all addresses.
std::string find_port_owner(const std::string& address, std::uint16_t port);

}  // namespace larder::transport
