// Any bytes as requests: the first two choose an operation and a release, the rest is cut into
// frames. As payloads of that operation they must decode or not, and its refusal must encode; as a
// whole message, said twice by a stranger, they must be read as something or dropped.
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "handlers/operations.h"
#include "handlers/release_detector.h"
#include "protocol/release.h"

namespace {

using larder::protocol::Frame;

// Each frame is one length byte (two for 255 and more) and that many bytes, as far as the input
// goes.
std::vector<Frame> cut(std::span<const std::byte> input) {
  std::vector<Frame> frames;
  while (!input.empty() && frames.size() < 12) {
    std::size_t length = std::to_integer<std::size_t>(input[0]);
    input = input.subspan(1);
    if (length == 0xFF && !input.empty()) {
      length += std::to_integer<std::size_t>(input[0]);
      input = input.subspan(1);
    }
    length = std::min(length, input.size());
    frames.push_back(input.first(length));
    input = input.subspan(length);
  }
  return frames;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const auto operations = larder::handlers::operations();
  const auto& operation = operations[bytes[0] % operations.size()];
  const auto release =
      static_cast<larder::protocol::Release>(bytes[1] % larder::protocol::kReleaseCount);
  const std::vector<Frame> frames = cut(std::as_bytes(std::span(bytes, size)).subspan(2));
  static_cast<void>(operation.decodes(frames, release));
  static_cast<void>(larder::protocol::fits(frames, operation.payloads(release), release));
  const larder::protocol::EncodedReply reply = operation.refusal(frames, release);
  LARDER_CHECK(reply.has_value == !reply.value.empty());
  larder::handlers::ReleaseDetector detector(release);
  larder::handlers::Dialect dialect;
  for (int time = 0; time < 2; ++time) {
    const larder::handlers::Reading reading = detector.read(dialect, frames);
    const bool is_dropped = reading.treatment == larder::handlers::Treatment::kDrop;
    LARDER_CHECK(is_dropped == (reading.operation == nullptr));
    LARDER_CHECK(dialect.possible.contains(dialect.spoken) && !dialect.spoken.empty());
  }
  return 0;
}
