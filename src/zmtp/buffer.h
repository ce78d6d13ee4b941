// buffer.h - memory that received frames lie in, shared by all of them.
//
// A Buffer belongs to the BufferRefs that name it; the last one to go, on whichever thread, gives
// it back to the ReceiveMemory it came from, or frees it. Its bytes are written by the decoder that
// receives into it and by nobody once a frame of it has been handed out, except where no frame
// lies.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace larder::zmtp {

class Buffer;
class BufferCache;
class ReceiveMemory;

class BufferRef {
 public:
  BufferRef() = default;

  // Takes the buffer over from its unique_ptr.
  explicit BufferRef(std::unique_ptr<Buffer> buffer) noexcept;

  BufferRef(const BufferRef& other) noexcept;

  BufferRef(BufferRef&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}

  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }

  ~BufferRef();

  explicit operator bool() const { return buffer_ != nullptr; }

  bool operator==(const BufferRef& other) const { return buffer_ == other.buffer_; }

  Buffer* operator->() const { return buffer_; }

  Buffer& operator*() const { return *buffer_; }

  // True when no other reference exists; everything the others read has been read then.
  bool is_unique() const;

 private:
  Buffer* buffer_ = nullptr;
};

class Buffer {
 public:
  enum class Kind : std::uint8_t {
    kBlock,  // many small frames, of any connections
    kLarge,  // one large frame; can grow
    kExact,  // copies of the small frames of one message
  };

  // The first two are whole pages of their own, so with room for more. Throws std::bad_alloc.
  Buffer(Kind kind, std::size_t bytes);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  Kind kind() const { return kind_; }

  std::span<std::byte> bytes() const { return {data_, capacity_}; }

  std::size_t capacity() const { return capacity_; }

  bool contains(std::span<const std::byte> frame) const {
    return frame.data() >= data_ && frame.data() < data_ + capacity_;
  }

  // To so many or more. The bytes keep their content and may move; what was not written costs no
  // memory.
  // REQUIRES: kLarge, and no frame of it has been handed out. Throws std::bad_alloc.
  void grow(std::size_t bytes);

  // Gives what is beyond so many bytes back to the system. REQUIRES: as grow(); whole pages.
  void shrink(std::size_t bytes);

 private:
  friend class BufferRef;
  friend class ReceiveMemory;

  const Kind kind_;
  std::size_t capacity_;
  std::vector<std::byte> heap_;  // of kExact
  std::byte* data_ = nullptr;    // of the heap or of a mapping
  std::atomic<std::uint32_t> references_{0};
  std::shared_ptr<BufferCache> home_;  // where it goes afterwards; shared by everything out of it
};

inline bool BufferRef::is_unique() const {
  return buffer_->references_.load(std::memory_order_acquire) == 1;
}

inline BufferRef::BufferRef(std::unique_ptr<Buffer> buffer) noexcept : buffer_(buffer.release()) {
  buffer_->references_.store(1, std::memory_order_relaxed);
}

inline BufferRef::BufferRef(const BufferRef& other) noexcept : buffer_(other.buffer_) {
  if (buffer_ != nullptr) {
    buffer_->references_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace larder::zmtp
