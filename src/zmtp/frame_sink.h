// frame_sink.h - somebody else's place for the body of one large frame, so that it is received
// where it is wanted instead of being copied there.
//
// Asked for when the frame's header has been read and the frames before it are known. The decoder
// owns the sink while it receives, the message afterwards; a connection that ends in between
// destroys it. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace larder::zmtp {

class FrameSink {
 public:
  FrameSink() = default;
  FrameSink(const FrameSink&) = delete;
  FrameSink& operator=(const FrameSink&) = delete;
  virtual ~FrameSink() = default;

  // Where the next bytes go, of any size but none. May change with what has arrived: headers here,
  // an object's bytes there.
  virtual std::span<std::byte> room() = 0;

  // So many more are at the front of room().
  virtual void arrived(std::size_t bytes) = 0;
};

class FrameSinks {
 public:
  FrameSinks() = default;
  FrameSinks(const FrameSinks&) = delete;
  FrameSinks& operator=(const FrameSinks&) = delete;
  virtual ~FrameSinks() = default;

  // nullptr: there is none for this frame, and it is received into a buffer.
  virtual std::unique_ptr<FrameSink> find(std::span<const std::span<const std::byte>> begun,
                                          std::uint64_t body_bytes) = 0;
};

}  // namespace larder::zmtp
