// frame_header.h - the two or nine bytes before every frame. Pure functions.
//
//   short: flags, 1 byte length, body        long: flags | 2, 8 bytes big-endian length, body
//
// Reserved bits are ignored, and a long header is read for any length, as libzmq does both. We
// write the short one up to 255 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace larder::zmtp {

inline constexpr std::size_t kShortHeaderBytes = 2;
inline constexpr std::size_t kLongHeaderBytes = 9;
inline constexpr std::size_t kShortBodyMax = 255;

struct FrameHeader {
  bool has_more = false;  // of no meaning on a command
  bool is_command = false;
  std::uint64_t body_bytes = 0;
  std::size_t header_bytes = 0;
};

// nullopt: more bytes are needed.
std::optional<FrameHeader> read_frame_header(std::span<const std::byte> bytes);

// How many bytes the header of a frame begins with: known from its first byte.
inline std::size_t header_bytes_from_flags(std::byte flags) {
  constexpr std::byte kLong{2};
  return (flags & kLong) == std::byte{0} ? kShortHeaderBytes : kLongHeaderBytes;
}

enum class FrameKind : std::uint8_t { kLast, kMore, kCommand };

struct WrittenHeader {
  std::array<std::byte, kLongHeaderBytes> bytes{};
  std::size_t size = 0;

  std::span<const std::byte> span() const { return std::span(bytes).first(size); }
};

WrittenHeader write_frame_header(FrameKind kind, std::uint64_t body_bytes);

}  // namespace larder::zmtp
