#include "zmtp/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "base/check.h"
#include "zmtp/receive_memory.h"

namespace larder::zmtp {
namespace {

std::byte* checked(void* memory) {
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<std::byte*>(memory);
}

// What the kernel maps for so many bytes. Only the borders of pages can be given back.
std::size_t whole_pages(std::size_t bytes) {
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

Buffer::Buffer(Kind kind, std::size_t bytes)
    : kind_(kind), capacity_(kind == Kind::kExact ? bytes : whole_pages(bytes)) {
  if (kind == Kind::kExact) {
    heap_.resize(bytes);
    data_ = heap_.data();
    return;
  }
  // No huge pages: the kernel takes milliseconds to find them, in the middle of receiving.
  data_ =
      checked(mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

Buffer::~Buffer() {
  if (kind_ != Kind::kExact) {
    LARDER_CHECK(munmap(data_, capacity_) == 0);
  }
}

void Buffer::grow(std::size_t bytes) {
  LARDER_CHECK(kind_ == Kind::kLarge && bytes >= capacity_);
  const std::size_t grown = whole_pages(bytes);
  data_ = checked(mremap(data_, capacity_, grown, MREMAP_MAYMOVE));
  capacity_ = grown;
}

void Buffer::shrink(std::size_t bytes) {
  LARDER_CHECK(kind_ == Kind::kLarge && bytes > 0 && bytes < capacity_);
  LARDER_CHECK(munmap(data_ + bytes, capacity_ - bytes) == 0);
  capacity_ = bytes;
}

BufferRef::~BufferRef() {
  if (buffer_ == nullptr || buffer_->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) {
    return;
  }
  std::unique_ptr<Buffer> last(buffer_);
  if (const std::shared_ptr<BufferCache> home = std::move(last->home_)) {
    home->take_back(std::move(last));
  }
}

}  // namespace larder::zmtp
