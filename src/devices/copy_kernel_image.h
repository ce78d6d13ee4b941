// copy_kernel_image.h - the copy kernel (cuda_copy_kernel.cu) as a fat binary inside the program.
#pragma once

#include <cstddef>
#include <span>

namespace larder::devices {

// Empty when it was built without nvcc.
std::span<const std::byte> copy_kernel_image();

}  // namespace larder::devices
