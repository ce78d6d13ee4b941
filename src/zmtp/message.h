// message.h - a received message: its frames and what keeps their bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "zmtp/buffer.h"

namespace larder::zmtp {

using Frame = std::span<const std::byte>;

struct Message {
  std::vector<Frame> frames;
  std::vector<BufferRef> owners;

  std::size_t byte_count() const;

  // Moves small frames out of the blocks they share with other messages, so that a message that
  // waits keeps no block from being used again. Does nothing where the message is most of a block
  // itself. Throws std::bad_alloc and leaves the message as it was.
  void leave_blocks();
};

}  // namespace larder::zmtp
