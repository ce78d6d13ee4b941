// frame_sink.h - somebody else's places for pieces of one large frame, so that they are received
// where they are wanted instead of being copied there.
//
// Asked for when the frame's header has been read and the frames before it are known. What is not
// such a piece stays in the frame, in a buffer as any frame's. The decoder owns the sink while it
// receives, the message afterwards; a connection that ends in between destroys it. One thread at a
// time.
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

  // Where the next bytes of a piece go. Empty: the next bytes are to be seen by keep(). Changes
  // with arrived() and keep() only.
  virtual std::span<std::byte> room() = 0;

  // So many more are at the front of room().
  virtual void arrived(std::size_t bytes) = 0;

  // Sees what came while room() was empty, and says how many at its front stay in the frame: all,
  // or those in front of a piece, for which there is room() then.
  virtual std::size_t keep(std::span<const std::byte> bytes) = 0;

  // So many more stay in the frame whatever they are: they are received in one go. May be 0.
  virtual std::size_t kept_ahead() const = 0;

  // The whole frame has come, and this is what stayed in it; the sink may put it right.
  virtual void finish(std::span<std::byte> kept) = 0;
};

class FrameSinks {
 public:
  FrameSinks() = default;
  FrameSinks(const FrameSinks&) = delete;
  FrameSinks& operator=(const FrameSinks&) = delete;
  virtual ~FrameSinks() = default;

  // nullptr: there is none for this frame, and all of it is received into a buffer.
  virtual std::unique_ptr<FrameSink> find(std::span<const std::span<const std::byte>> begun,
                                          std::uint64_t body_bytes) = 0;
};

}  // namespace larder::zmtp
