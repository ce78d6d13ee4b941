#include "zmtp/command.h"

#include <algorithm>
#include <array>

#include "zmtp/frame_header.h"

namespace larder::zmtp {
namespace {

constexpr std::size_t kEchoedBytesMax = 16;
constexpr std::size_t kTtlBytes = 2;
constexpr unsigned kBitsOfByte = 8;
constexpr auto kPongName = std::to_array<std::byte>(
    {std::byte{4}, std::byte{'P'}, std::byte{'O'}, std::byte{'N'}, std::byte{'G'}});

}  // namespace

Command read_command(std::span<const std::byte> body) {
  if (body.empty()) {
    return {};
  }
  const auto name_bytes = std::to_integer<std::size_t>(body[0]);
  if (body.size() - 1 < name_bytes) {
    return {};
  }
  const std::span<const std::byte> name = body.subspan(1, name_bytes);
  return {{reinterpret_cast<const char*>(name.data()), name.size()}, body.subspan(1 + name_bytes)};
}

std::optional<Ping> read_ping(std::span<const std::byte> content) {
  if (content.size() < kTtlBytes) {
    return std::nullopt;
  }
  const unsigned high = std::to_integer<unsigned>(content[0]);
  const unsigned low = std::to_integer<unsigned>(content[1]);
  return Ping{static_cast<std::uint16_t>(high << kBitsOfByte | low), content.subspan(kTtlBytes)};
}

void append_pong(std::span<const std::byte> context, std::vector<std::byte>& to) {
  const std::span<const std::byte> echoed =
      context.first(std::min(context.size(), kEchoedBytesMax));
  const WrittenHeader header =
      write_frame_header(FrameKind::kCommand, kPongName.size() + echoed.size());
  to.insert(to.end(), header.span().begin(), header.span().end());
  to.insert(to.end(), kPongName.begin(), kPongName.end());
  to.insert(to.end(), echoed.begin(), echoed.end());
}

}  // namespace larder::zmtp
