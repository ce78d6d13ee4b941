#include "devices/copy_kernel_image.h"

namespace larder::devices {

#if LARDER_COPY_KERNEL
// Written by cmake/embed_bytes.cmake.
extern const std::span<const unsigned char> kCopyKernelBytes;

std::span<const std::byte> copy_kernel_image() {
  return std::as_bytes(kCopyKernelBytes);
}
#else
std::span<const std::byte> copy_kernel_image() {
  return {};
}
#endif

}  // namespace larder::devices
