// bytes.h - growable byte buffers whose new bytes are not zeroed first.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace larder::codec {

// A std::allocator that leaves trivially constructible elements uninitialised on resize().
template <typename T>
class UninitializedAllocator : public std::allocator<T> {
 public:
  using std::allocator<T>::allocator;

  template <typename U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }

  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};

using Bytes = std::vector<std::byte, UninitializedAllocator<std::byte>>;

}  // namespace larder::codec
