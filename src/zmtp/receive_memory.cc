#include "zmtp/receive_memory.h"

#include <algorithm>
#include <new>
#include <utility>

namespace larder::zmtp {
namespace {

// A new buffer has room for so much, and doubles from there. Never less than a block: the beginning
// of a large frame has come in one.
constexpr std::size_t kFirstLargeBytes = 256U << 10;
static_assert(kFirstLargeBytes >= kBlockBytes);

// A frame does not get a buffer that would keep so many times its size from others.
constexpr std::size_t kOversizeMax = 8;

// Giving so much back takes a fraction of a millisecond. Whole pages of any system.
constexpr std::size_t kReleasedBytes = 8U << 20;

// Less room than this is not worth a call to the kernel.
constexpr std::size_t kRoomMin = 8U << 10;

}  // namespace

void BufferCache::take_back(std::unique_ptr<Buffer> buffer) noexcept {
  Buffers dropped;  // unmapped after the lock is released
  const MutexLock lock(mutex_);
  const std::size_t bytes = buffer->capacity();
  if (buffer->kind() == Buffer::Kind::kExact || bytes > bytes_max_) {
    return;
  }
  try {
    Buffers& kept = buffer->kind() == Buffer::Kind::kBlock ? blocks_ : large_;
    kept.reserve(kept.size() + 1);
    while (bytes_ + bytes > bytes_max_) {
      dropped.push_back(take_out(large_.empty() ? blocks_ : large_, 0));
    }
    bytes_ += bytes;
    kept.push_back(std::move(buffer));
  } catch (const std::bad_alloc&) {
    // It is freed instead.
  }
}

std::unique_ptr<Buffer> BufferCache::take_out(Buffers& buffers, std::size_t index) {
  std::unique_ptr<Buffer> buffer = std::move(buffers[index]);
  buffers.erase(buffers.begin() + static_cast<std::ptrdiff_t>(index));
  bytes_ -= buffer->capacity();
  return buffer;
}

std::unique_ptr<Buffer> BufferCache::find_block() {
  const MutexLock lock(mutex_);
  return blocks_.empty() ? nullptr : take_out(blocks_, blocks_.size() - 1);
}

std::unique_ptr<Buffer> BufferCache::find_large(std::size_t wanted) {
  const MutexLock lock(mutex_);
  std::size_t best = large_.size();
  for (std::size_t i = 0; i < large_.size(); ++i) {
    const std::size_t bytes = large_[i]->capacity();
    if (bytes / kOversizeMax > wanted) {
      continue;
    }
    // The smallest that suffices, else the largest.
    const std::size_t so_far = best == large_.size() ? 0 : large_[best]->capacity();
    if (so_far < wanted ? bytes > so_far : bytes >= wanted && bytes < so_far) {
      best = i;
    }
  }
  return best == large_.size() ? nullptr : take_out(large_, best);
}

void BufferCache::clear() {
  Buffers blocks;
  Buffers large;
  const MutexLock lock(mutex_);
  blocks.swap(blocks_);
  large.swap(large_);
  bytes_ = 0;
}

std::size_t BufferCache::byte_count() {
  const MutexLock lock(mutex_);
  return bytes_;
}

ReceiveMemory::ReceiveMemory(std::size_t cached_bytes_max)
    : cached_bytes_max_(cached_bytes_max),
      cache_(std::make_shared<BufferCache>(cached_bytes_max)) {}

BufferRef ReceiveMemory::adopt(std::unique_ptr<Buffer> buffer) {
  buffer->home_ = cache_;
  return BufferRef(std::move(buffer));
}

Block ReceiveMemory::take_block() {
  Block block = std::exchange(left_, Block{});
  if (block.buffer && block.buffer.is_unique()) {
    block.used = 0;
  }
  if (!block.buffer || block.buffer->capacity() - block.used < kRoomMin) {
    block = {take_fresh_block(), 0};
  }
  return block;
}

BufferRef ReceiveMemory::take_fresh_block() {
  if (std::unique_ptr<Buffer> kept = cache_->find_block()) {
    return adopt(std::move(kept));
  }
  return adopt(std::make_unique<Buffer>(Buffer::Kind::kBlock, kBlockBytes));
}

BufferRef ReceiveMemory::take_large(std::size_t wanted) {
  if (std::unique_ptr<Buffer> kept = cache_->find_large(wanted)) {
    return adopt(std::move(kept));
  }
  const std::size_t bytes = std::clamp(wanted, kBlockBytes, kFirstLargeBytes);
  return adopt(std::make_unique<Buffer>(Buffer::Kind::kLarge, bytes));
}

void ReceiveMemory::leave_block(Block block) {
  const bool has_more_room = !left_.buffer || left_.buffer->capacity() - left_.used <
                                                  block.buffer->capacity() - block.used;
  if (has_more_room) {
    left_ = std::move(block);
  }
}

void ReceiveMemory::discard(BufferRef buffer) {
  if (buffer && buffer.is_unique() && buffer->kind() == Buffer::Kind::kLarge &&
      buffer->capacity() > cached_bytes_max_) {
    discarded_.push_back(std::move(buffer));
  }
}

bool ReceiveMemory::release_some() {
  if (!discarded_.empty()) {
    Buffer& last = *discarded_.back();
    if (last.capacity() > kReleasedBytes) {
      last.shrink((last.capacity() - 1) / kReleasedBytes * kReleasedBytes);
    } else {
      discarded_.pop_back();
    }
  }
  return !discarded_.empty();
}

void ReceiveMemory::trim() {
  cache_->clear();
}

}  // namespace larder::zmtp
