// command.h - the commands of ZMTP 3: their names, PING and PONG. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace larder::zmtp {

// Nothing in the protocol limits a command; READY and PING, all that we act on, are short.
inline constexpr std::size_t kCommandBytesMax = 4096;

struct Command {
  std::string_view name;  // empty: the body has no whole name
  std::span<const std::byte> content;
};

Command read_command(std::span<const std::byte> body);

struct Ping {
  std::uint16_t ttl_tenths = 0;  // tenths of a second; 0: none
  std::span<const std::byte> context;
};

// nullopt: too short to be one.
std::optional<Ping> read_ping(std::span<const std::byte> content);

// Appends the answer as a whole frame. At most 16 bytes of the context are echoed, as libzmq does,
// so that an answer is never longer than its question.
void append_pong(std::span<const std::byte> context, std::vector<std::byte>& to);

}  // namespace larder::zmtp
