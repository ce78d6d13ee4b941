// message.h - a received message: its frames and what keeps their bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "zmtp/buffer.h"
#include "zmtp/frame_sink.h"

namespace larder::zmtp {

using Frame = std::span<const std::byte>;

// A frame pieces of which went elsewhere; among the message's frames is the rest of it.
struct PlacedFrame {
  std::size_t index;
  std::unique_ptr<FrameSink> sink;
  std::size_t bytes;  // that went to the sink
};

struct Message {
  std::vector<Frame> frames;
  std::vector<BufferRef> owners;
  std::vector<PlacedFrame> placed;

  std::size_t byte_count() const;

  // Moves small frames out of the blocks they share with other messages, so that a message that
  // waits keeps no block from being used again. Does nothing where the message is most of a block
  // itself. Throws std::bad_alloc and leaves the message as it was.
  void leave_blocks();
};

}  // namespace larder::zmtp
