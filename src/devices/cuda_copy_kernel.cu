// The one kernel: copies rectangles between engine memory and the pool, which is mapped into the
// device's address space. Grid: x shares one rectangle, y is the rectangle; rectangles do not
// overlap, so no thread waits for another. A block works on one rectangle, so the choice of the
// unit does not diverge.
#include "devices/cuda_copy_index.h"

namespace larder::devices {

template <typename Unit>
__device__ void copy_units(const CopyRectangle& rectangle, bool to_engine) {
  const uint32_t units = rectangle.rows * rectangle.row_units;
  const uint32_t step = gridDim.x * blockDim.x;
  for (uint32_t unit = blockIdx.x * blockDim.x + threadIdx.x; unit < units; unit += step) {
    const UnitPlace place = place_of_unit(rectangle, unit);
    const uint64_t source = to_engine ? place.object : place.engine;
    const uint64_t target = to_engine ? place.engine : place.object;
    *reinterpret_cast<Unit*>(target) = *reinterpret_cast<const Unit*>(source);
  }
}

// The name is kCopyKernelName.
extern "C" __global__ void larder_copy_rectangles(const __grid_constant__ CopyLaunch launch) {
  if (blockIdx.y >= launch.count) {
    return;
  }
  const CopyRectangle& rectangle = launch.rectangles[blockIdx.y];
  const bool to_engine = launch.to_engine != 0;
  switch (rectangle.unit_bytes) {
    case 16:
      copy_units<uint4>(rectangle, to_engine);
      break;
    case 8:
      copy_units<uint2>(rectangle, to_engine);
      break;
    case 4:
      copy_units<uint32_t>(rectangle, to_engine);
      break;
    case 2:
      copy_units<uint16_t>(rectangle, to_engine);
      break;
    default:
      copy_units<uint8_t>(rectangle, to_engine);
      break;
  }
}

}  // namespace larder::devices
