// receive_memory.h - where one loop's connections receive into.
//
// Small frames of all connections share blocks. A connection that has read to the end of what came
// leaves its block to the next one (leave_block()), so idle connections hold no memory; one that is
// in the middle of a frame keeps it. A large frame has a buffer of its own that grows as its bytes
// arrive, whatever its header announced. Used buffers are kept for the next frames, up to a bound:
// page faults are what receiving into fresh memory costs.
//
// One thread, but buffers come back from any.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "zmtp/buffer.h"

namespace larder::zmtp {

inline constexpr std::size_t kBlockBytes = 64U << 10;

// Frames from here on get a buffer of their own, unless they are in the block already.
inline constexpr std::size_t kLargeFrameBytes = 32U << 10;

// What was used and may be used again. Any thread.
class BufferCache {
 public:
  explicit BufferCache(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  void take_back(std::unique_ptr<Buffer> buffer) noexcept;

  // nullptr: none fits. A large buffer may be smaller or larger than what is wanted.
  std::unique_ptr<Buffer> find_block();
  std::unique_ptr<Buffer> find_large(std::size_t wanted);

  void clear();

  std::size_t byte_count();

 private:
  using Buffers = std::vector<std::unique_ptr<Buffer>>;

  std::unique_ptr<Buffer> take_out(Buffers& buffers, std::size_t index) LARDER_REQUIRES(mutex_);

  const std::size_t bytes_max_;
  Mutex mutex_;
  Buffers blocks_ LARDER_GUARDED_BY(mutex_);
  Buffers large_ LARDER_GUARDED_BY(mutex_);  // the longest unused first
  std::size_t bytes_ LARDER_GUARDED_BY(mutex_) = 0;
};

// A block and how far it has been used.
struct Block {
  BufferRef buffer;
  std::size_t used = 0;
};

class ReceiveMemory {
 public:
  static constexpr std::size_t kCachedBytesMax = 64U << 20;

  explicit ReceiveMemory(std::size_t cached_bytes_max = kCachedBytesMax);

  // A block with room left, the one that was left last if possible. These throw std::bad_alloc.
  Block take_block();
  BufferRef take_fresh_block();
  BufferRef take_large(std::size_t wanted);

  void leave_block(Block block);

  // For a buffer that is not wanted any more: one that is too large to be kept goes back to the
  // system piece by piece, as the kernel takes tens of milliseconds for a gigabyte at once.
  void discard(BufferRef buffer);

  // Gives back the next piece; true while there are more.
  bool release_some();

  // Gives what is kept for later back to the system.
  void trim();

  std::size_t cached_bytes() { return cache_->byte_count(); }

 private:
  BufferRef adopt(std::unique_ptr<Buffer> buffer);

  const std::size_t cached_bytes_max_;
  const std::shared_ptr<BufferCache> cache_;  // shared with the buffers out of it
  std::vector<BufferRef> discarded_;
  Block left_;
};

}  // namespace larder::zmtp
