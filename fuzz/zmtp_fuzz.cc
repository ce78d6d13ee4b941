// Any bytes as what a peer sends on a connection: the first chooses how they are cut and which
// limits hold, the rest is the stream. The decoder must return, must make the same of the bytes
// however they are cut, and must never hold more than its limits allow.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "zmtp/decoder.h"

namespace {

using larder::zmtp::Decoder;
using larder::zmtp::DecoderLimits;
using larder::zmtp::Event;
using larder::zmtp::Frame;
using larder::zmtp::kBlockBytes;
using larder::zmtp::Message;
using larder::zmtp::ReceiveMemory;
using larder::zmtp::to_string;

using Bytes = std::span<const std::byte>;

// Everything that came out, as text: two ways of reading must agree on it.
std::string drain(Decoder& decoder) {
  std::string story;
  for (;;) {
    const Event event = decoder.next();
    story += static_cast<char>('0' + static_cast<int>(event));
    switch (event) {
      case Event::kNeedsInput:
        story.pop_back();
        return story;
      case Event::kRefused:
        return story.append(to_string(decoder.reason()));
      case Event::kMessage: {
        Message message = decoder.take_message();
        message.leave_blocks();
        for (const Frame& frame : message.frames) {
          story += std::to_string(frame.size()) + ':';
          story.append(reinterpret_cast<const char*>(frame.data()), frame.size());
        }
        break;
      }
      case Event::kPing:
        story += std::to_string(decoder.ping().ttl_tenths) + '/' +
                 std::to_string(decoder.ping().context.size());
        break;
      case Event::kHandshaken:
        story += decoder.peer().socket_type;
        break;
      case Event::kIgnored:
        break;
    }
  }
}

bool is_refused(Decoder& decoder) {
  return decoder.next() == Event::kRefused;
}

std::string read(Bytes stream, std::size_t piece, const DecoderLimits& limits) {
  ReceiveMemory memory;
  Decoder decoder(limits, memory);
  std::string story = drain(decoder);
  while (!stream.empty() && !is_refused(decoder)) {
    const std::span<std::byte> room = decoder.writable(piece);
    LARDER_CHECK(!room.empty());
    const Bytes front = stream.first(std::min(room.size(), stream.size()));
    std::copy(front.begin(), front.end(), room.begin());
    decoder.received(front.size());
    stream = stream.subspan(front.size());
    story += drain(decoder);
    LARDER_CHECK(decoder.unfinished_bytes() <= limits.message_bytes_max + kBlockBytes);
    decoder.rest();
  }
  return story;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  constexpr std::size_t kPiecesMask = 0x3f;
  const std::size_t piece = 1 + (bytes[0] & kPiecesMask);
  const DecoderLimits limits{bytes[0] > kPiecesMask ? std::size_t{1} << 20 : std::size_t{300}, 5};
  const Bytes stream = std::as_bytes(std::span(bytes, size)).subspan(1);
  LARDER_CHECK(read(stream, piece, limits) == read(stream, kBlockBytes, limits));
  return 0;
}
