#include "zmtp/frame_header.h"

namespace larder::zmtp {
namespace {

constexpr std::byte kMoreBit{1};
constexpr std::byte kLongBit{2};
constexpr std::byte kCommandBit{4};
constexpr unsigned kBitsOfByte = 8;

bool has(std::byte flags, std::byte bit) {
  return (flags & bit) != std::byte{0};
}

std::byte flags_of(FrameKind kind) {
  switch (kind) {
    case FrameKind::kMore:
      return kMoreBit;
    case FrameKind::kCommand:
      return kCommandBit;
    case FrameKind::kLast:
      break;
  }
  return std::byte{0};
}

}  // namespace

std::optional<FrameHeader> read_frame_header(std::span<const std::byte> bytes) {
  if (bytes.empty() || bytes.size() < header_bytes_from_flags(bytes[0])) {
    return std::nullopt;
  }
  FrameHeader header;
  header.has_more = has(bytes[0], kMoreBit);
  header.is_command = has(bytes[0], kCommandBit);
  header.header_bytes = header_bytes_from_flags(bytes[0]);
  for (const std::byte digit : bytes.subspan(1, header.header_bytes - 1)) {
    header.body_bytes = header.body_bytes << kBitsOfByte | std::to_integer<std::uint64_t>(digit);
  }
  return header;
}

WrittenHeader write_frame_header(FrameKind kind, std::uint64_t body_bytes) {
  WrittenHeader header;
  const bool is_long = body_bytes > kShortBodyMax;
  header.bytes[0] = flags_of(kind) | (is_long ? kLongBit : std::byte{0});
  header.size = is_long ? kLongHeaderBytes : kShortHeaderBytes;
  for (std::size_t i = header.size - 1; i > 0; --i) {
    header.bytes[i] = static_cast<std::byte>(body_bytes);
    body_bytes >>= kBitsOfByte;
  }
  return header;
}

}  // namespace larder::zmtp
