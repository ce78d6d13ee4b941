#include "zmtp/message.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "zmtp/receive_memory.h"

namespace larder::zmtp {
namespace {

bool is_block(const BufferRef& buffer) {
  return buffer->kind() == Buffer::Kind::kBlock;
}

bool lies_in_block(const Message& message, Frame frame) {
  return std::any_of(message.owners.begin(), message.owners.end(), [frame](const BufferRef& owner) {
    return is_block(owner) && owner->contains(frame);
  });
}

}  // namespace

std::size_t Message::byte_count() const {
  std::size_t total = 0;
  for (const Frame& frame : frames) {
    total += frame.size();
  }
  return total;
}

void Message::leave_blocks() {
  std::size_t bytes = 0;
  for (const Frame& frame : frames) {
    bytes += lies_in_block(*this, frame) ? frame.size() : 0;
  }
  if (bytes > kBlockBytes / 2 || std::none_of(owners.begin(), owners.end(), is_block)) {
    return;
  }
  BufferRef copies(std::make_unique<Buffer>(Buffer::Kind::kExact, std::max<std::size_t>(bytes, 1)));
  owners.reserve(owners.size() + 1);
  std::byte* place = copies->bytes().data();
  for (Frame& frame : frames) {
    if (lies_in_block(*this, frame)) {
      std::copy(frame.begin(), frame.end(), place);
      frame = Frame(place, frame.size());
      place += frame.size();
    }
  }
  std::erase_if(owners, is_block);
  owners.push_back(std::move(copies));
}

}  // namespace larder::zmtp
