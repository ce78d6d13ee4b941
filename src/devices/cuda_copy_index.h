// cuda_copy_index.h - which bytes the copy kernel's threads move: its arithmetic, for host and
// device.
//
// A rectangle is a CopyRun (geometry/copy_runs.h) cut into units of equal size: the largest of 16,
// 8, 4, 2 and 1 bytes that divides all its addresses, strides and widths. The units are numbered
// row by row; one thread moves one unit at a time. Compiled by nvcc for the kernel
// (cuda_copy_kernel.cu) and by the host compiler for the code that launches it, so it includes
// nothing of the server and uses no C++ beyond what both know.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): also compiled by nvcc

#if defined(__CUDACC__)
#define LARDER_HOST_DEVICE __host__ __device__
#else
#define LARDER_HOST_DEVICE
#endif

namespace larder::devices {

struct CopyRectangle {
  uint64_t engine = 0;
  uint64_t object = 0;
  uint64_t engine_stride = 0;
  uint64_t object_stride = 0;
  uint32_t rows = 0;
  uint32_t row_units = 0;
  uint32_t unit_bytes = 0;
  uint32_t unused = 0;
};

// The kernel's one parameter, passed by value: a launch keeps a copy, so nothing has to be kept in
// memory until it has run. 4 KiB is what every driver takes.
inline constexpr uint32_t kRectanglesPerLaunch = 84;
inline constexpr uint32_t kThreadsPerBlock = 256;
inline constexpr uint32_t kBlocksPerRectangleMax = 32;
inline constexpr uint32_t kUnitsPerRectangleMax = uint32_t{1} << 30;
inline constexpr uint32_t kLaunchBytesMax = 4096;
inline constexpr const char* kCopyKernelName = "larder_copy_rectangles";

struct CopyLaunch {
  CopyRectangle rectangles[kRectanglesPerLaunch];  // NOLINT(modernize-avoid-c-arrays): device code
  uint32_t count = 0;
  uint32_t to_engine = 0;  // 1: RETRIEVE
};

static_assert(sizeof(CopyLaunch) <= kLaunchBytesMax);

struct UnitPlace {
  uint64_t engine = 0;
  uint64_t object = 0;
};

// The addresses of one unit. REQUIRES: unit < rows * row_units.
LARDER_HOST_DEVICE inline UnitPlace place_of_unit(const CopyRectangle& rectangle, uint32_t unit) {
  const uint32_t row = unit / rectangle.row_units;
  const uint64_t in_row = uint64_t{unit - (row * rectangle.row_units)} * rectangle.unit_bytes;
  return {rectangle.engine + (row * rectangle.engine_stride) + in_row,
          rectangle.object + (row * rectangle.object_stride) + in_row};
}

// The largest unit that divides all of a rectangle's numbers, given their bitwise or.
LARDER_HOST_DEVICE inline uint32_t unit_bytes_of(uint64_t numbers) {
  constexpr uint32_t kUnitBytesMax = 16;
  uint32_t unit = kUnitBytesMax;
  while (numbers % unit != 0) {
    unit /= 2;
  }
  return unit;
}

}  // namespace larder::devices
