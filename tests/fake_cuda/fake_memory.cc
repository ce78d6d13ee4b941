// Device memory, its sharing, host memory, copies and the kernel. The functions have the driver's
// names.
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "devices/cuda_copy_index.h"
#include "fake_cuda.h"
#include "fake_state.h"

namespace fake_cuda {

namespace {

using larder::devices::CopyLaunch;
using larder::devices::CopyRectangle;
using larder::devices::CuBatchAttributes;
using larder::devices::CuCopy2d;

void* pointer(CuAddress address) {
  return std::bit_cast<void*>(address);
}

template <typename Map, typename BytesOf>
bool within(const Map& ranges, CuAddress address, std::size_t bytes, BytesOf bytes_of) {
  auto range = ranges.upper_bound(address);
  if (range == ranges.begin()) {
    return false;
  }
  --range;
  return address - range->first <= bytes_of(range->second) &&
         bytes <= bytes_of(range->second) - (address - range->first);
}

// Whether all of it is device memory that is there now.
bool on_device(CuAddress address, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  const auto file_bytes = [](const auto& file) { return file->bytes(); };
  return within(state().blocks, address, bytes, file_bytes) ||
         within(state().allocations, address, bytes, file_bytes);
}

bool is_registered(CuAddress address, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  return within(state().registrations, address, bytes, [](std::size_t size) { return size; });
}

struct Piece {
  CuAddress target = 0;
  CuAddress source = 0;
  std::size_t bytes = 0;
};

// Where the bytes are when the stream gets there: the device's end must still be open.
void copy_now(const Piece& piece) {
  if (on_device(piece.target, piece.bytes) == on_device(piece.source, piece.bytes)) {
    state().violations += 1;
    state().broken = true;
    return;
  }
  std::memcpy(pointer(piece.target), pointer(piece.source), piece.bytes);
}

void take_time() {
  if (state().copy_us > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(state().copy_us));
  }
}

// As the driver treats memory that it does not know: it reads host memory before it returns, and
// returns only when host memory is written.
CuResult copy_pageable(const std::vector<Piece>& pieces, Stream& stream) {
  if (on_device(pieces.front().source, 1)) {
    stream.push([pieces] {
      take_time();
      for (const Piece& piece : pieces) {
        copy_now(piece);
      }
    });
    stream.synchronize();
    return state().broken ? kIllegalAddress : kSuccess;
  }
  std::vector<std::vector<std::byte>> staged;
  for (const Piece& piece : pieces) {
    const auto* source = static_cast<const std::byte*>(pointer(piece.source));
    staged.emplace_back(source, source + piece.bytes);
  }
  stream.push([pieces, staged = std::move(staged)] {
    take_time();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      copy_now({.target = pieces[i].target,
                .source = std::bit_cast<CuAddress>(staged[i].data()),
                .bytes = pieces[i].bytes});
    }
  });
  return kSuccess;
}

CuResult copy_pieces(std::vector<Piece> pieces, const void* stream) {
  Stream* found = find_stream(stream);
  if (found == nullptr || pieces.empty()) {
    return kInvalidValue;
  }
  bool is_pinned = true;
  for (const Piece& piece : pieces) {
    const bool is_store = on_device(piece.source, piece.bytes);
    if (is_store == on_device(piece.target, piece.bytes)) {
      return kInvalidValue;
    }
    is_pinned = is_pinned && is_registered(is_store ? piece.target : piece.source, piece.bytes);
  }
  if (!is_pinned) {
    return copy_pageable(pieces, *found);
  }
  found->push([pieces = std::move(pieces)] {
    take_time();
    for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {  // in no promised order
      copy_now(*piece);
    }
  });
  return kSuccess;
}

CuResult copy_batch(const char* function,
                    std::vector<Piece> pieces,
                    const CuBatchAttributes* attributes,
                    const void* stream) {
  const CuResult entered = enter(function, Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  if (attributes->source_order != larder::devices::kCuSourceInStreamOrder) {
    return kInvalidValue;
  }
  for (const Piece& piece : pieces) {
    if (!is_registered(piece.source, piece.bytes) && !is_registered(piece.target, piece.bytes)) {
      return kInvalidValue;
    }
  }
  return copy_pieces(std::move(pieces), stream);
}

std::vector<Piece> pieces_of(const CuAddress* targets,
                             const CuAddress* sources,
                             const std::size_t* bytes,
                             std::size_t count) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < count; ++i) {
    pieces.push_back({.target = targets[i], .source = sources[i], .bytes = bytes[i]});
  }
  return pieces;
}

// One thread of the kernel.
void run_kernel_thread(const CopyRectangle& rectangle,
                       bool to_engine,
                       std::uint32_t first,
                       std::uint32_t step) {
  const std::uint32_t units = rectangle.rows * rectangle.row_units;
  for (std::uint32_t unit = first; unit < units; unit += step) {
    const auto place = larder::devices::place_of_unit(rectangle, unit);
    const CuAddress object = place.object - kDeviceShift;
    if ((place.engine | place.object) % rectangle.unit_bytes != 0 ||
        !is_registered(object, rectangle.unit_bytes)) {
      state().violations += 1;
      return;
    }
    copy_now({.target = to_engine ? place.engine : object,
              .source = to_engine ? object : place.engine,
              .bytes = rectangle.unit_bytes});
  }
}

struct Grid {
  std::uint32_t x = 0;
  std::uint32_t y = 0;
  std::uint32_t threads = 0;
};

void run_kernel(const CopyLaunch& launch, const Grid& grid) {
  take_time();
  const std::uint32_t step = grid.x * grid.threads;
  for (std::uint32_t y = 0; y < grid.y && y < launch.count; ++y) {
    for (std::uint32_t thread = 0; thread < step; ++thread) {
      run_kernel_thread(launch.rectangles[y], launch.to_engine != 0, thread, step);
    }
  }
}

}  // namespace

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): the driver's names are global

// NOLINTBEGIN(readability-identifier-naming, readability-function-size): the driver's names and
// parameters
extern "C" {

CuResult cuMemAlloc_v2(CuAddress* address, std::size_t bytes) {
  const CuResult entered = enter("cuMemAlloc_v2", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const std::lock_guard lock(state().mutex);
  const std::uint64_t number = state().next_number++;
  auto file = SharedFile::create(
      file_name(static_cast<std::uint32_t>(::getpid()), state().nonce, number), bytes);
  if (file == nullptr) {
    return kOutOfMemory;
  }
  *address = file->address();
  state().allocation_numbers[*address] = number;
  state().allocations.emplace(*address, std::move(file));
  return kSuccess;
}

CuResult cuMemFree_v2(CuAddress address) {
  enter("cuMemFree_v2", Needs::kNothing);
  const std::lock_guard lock(state().mutex);
  state().allocation_numbers.erase(address);
  return state().allocations.erase(address) == 1 ? kSuccess : kInvalidValue;
}

CuResult cuIpcGetMemHandle(IpcHandle* handle, CuAddress address) {
  const CuResult entered = enter("cuIpcGetMemHandle", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const std::lock_guard lock(state().mutex);
  const auto number = state().allocation_numbers.find(address);
  if (number == state().allocation_numbers.end()) {
    return kInvalidValue;
  }
  *handle = make_handle(number->second);
  return kSuccess;
}

CuResult cuIpcOpenMemHandle_v2(CuAddress* address, IpcHandle handle, unsigned /*flags*/) {
  const CuResult entered = enter("cuIpcOpenMemHandle_v2", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const HandleOrigin origin = origin_of(handle);
  if (origin.is_own) {
    return kInvalidContext;
  }
  const std::lock_guard lock(state().mutex);
  for (const auto& [base, open] : state().block_handles) {
    if (open == handle) {
      return kAlreadyMapped;
    }
  }
  auto file = SharedFile::open(origin.file);
  if (file == nullptr) {
    return kMapFailed;
  }
  *address = file->address();
  state().block_handles.emplace(*address, handle);
  state().blocks.emplace(*address, std::move(file));
  return kSuccess;
}

CuResult cuIpcCloseMemHandle(CuAddress address) {
  const CuResult entered = enter("cuIpcCloseMemHandle", Needs::kContext);
  const std::lock_guard lock(state().mutex);
  state().block_handles.erase(address);
  if (state().blocks.erase(address) != 1) {
    state().violations += 1;
    return kInvalidValue;
  }
  return entered;
}

CuResult cuMemGetAddressRange_v2(CuAddress* base, std::size_t* bytes, CuAddress address) {
  const CuResult entered = enter("cuMemGetAddressRange_v2", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const std::lock_guard lock(state().mutex);
  const auto block = state().blocks.find(address);
  if (block == state().blocks.end()) {
    return kInvalidValue;
  }
  *base = address;
  *bytes = block->second->bytes();
  return kSuccess;
}

CuResult cuMemHostRegister_v2(void* base, std::size_t bytes, unsigned /*flags*/) {
  const CuResult entered = enter("cuMemHostRegister_v2", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const std::lock_guard lock(state().mutex);
  const bool added = state().registrations.emplace(std::bit_cast<CuAddress>(base), bytes).second;
  return added ? kSuccess : kAlreadyRegistered;
}

CuResult cuMemHostUnregister(void* base) {
  const CuResult entered = enter("cuMemHostUnregister", Needs::kContext);
  const std::lock_guard lock(state().mutex);
  const bool removed = state().registrations.erase(std::bit_cast<CuAddress>(base)) == 1;
  return removed ? entered : kNotRegistered;
}

CuResult cuMemHostGetDevicePointer_v2(CuAddress* address, void* host, unsigned /*flags*/) {
  const CuResult entered = enter("cuMemHostGetDevicePointer_v2", Needs::kContext);
  *address = std::bit_cast<CuAddress>(host) + kDeviceShift;
  return entered;
}

CuResult cuMemcpyAsync(CuAddress target,
                       CuAddress source,
                       std::size_t bytes,
                       larder::devices::CuStream stream) {
  const CuResult entered = enter("cuMemcpyAsync", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  return copy_pieces({{.target = target, .source = source, .bytes = bytes}}, stream);
}

CuResult cuMemcpy2DAsync_v2(const larder::devices::CuCopy2d* copy,
                            larder::devices::CuStream stream) {
  const CuResult entered = enter("cuMemcpy2DAsync_v2", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  if (copy->source_pitch < copy->width || copy->target_pitch < copy->width) {
    return kInvalidValue;
  }
  const bool is_store = copy->source_memory == larder::devices::kCuMemoryDevice;
  const CuAddress source =
      is_store ? copy->source_device : std::bit_cast<CuAddress>(copy->source_host);
  const CuAddress target =
      is_store ? std::bit_cast<CuAddress>(copy->target_host) : copy->target_device;
  std::vector<Piece> pieces;
  for (std::size_t row = 0; row < copy->height; ++row) {
    pieces.push_back({.target = target + (row * copy->target_pitch),
                      .source = source + (row * copy->source_pitch),
                      .bytes = copy->width});
  }
  return copy_pieces(std::move(pieces), stream);
}

CuResult cuMemcpyBatchAsync_v2(CuAddress* targets,
                               CuAddress* sources,
                               std::size_t* bytes,
                               std::size_t count,
                               larder::devices::CuBatchAttributes* attributes,
                               std::size_t* /*first*/,
                               std::size_t /*attribute_count*/,
                               larder::devices::CuStream stream) {
  return copy_batch(
      "cuMemcpyBatchAsync_v2", pieces_of(targets, sources, bytes, count), attributes, stream);
}

CuResult cuMemcpyBatchAsync(CuAddress* targets,
                            CuAddress* sources,
                            std::size_t* bytes,
                            std::size_t count,
                            larder::devices::CuBatchAttributes* attributes,
                            std::size_t* /*first*/,
                            std::size_t /*attribute_count*/,
                            std::size_t* failed,
                            larder::devices::CuStream stream) {
  *failed = 0;
  return copy_batch(
      "cuMemcpyBatchAsync", pieces_of(targets, sources, bytes, count), attributes, stream);
}

CuResult cuModuleLoadData(larder::devices::CuModule* module, const void* image) {
  const CuResult entered = enter("cuModuleLoadData", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const std::lock_guard lock(state().mutex);
  state().modules += 1;
  *module = static_cast<larder::devices::CuModule>(const_cast<void*>(image));
  return kSuccess;
}

CuResult cuModuleUnload(larder::devices::CuModule /*module*/) {
  const CuResult entered = enter("cuModuleUnload", Needs::kContext);
  const std::lock_guard lock(state().mutex);
  state().modules -= 1;
  return entered;
}

CuResult cuModuleGetFunction(larder::devices::CuFunction* function,
                             larder::devices::CuModule module,
                             const char* name) {
  const CuResult entered = enter("cuModuleGetFunction", Needs::kContext);
  *function = reinterpret_cast<larder::devices::CuFunction>(module);
  if (entered == kSuccess && std::strcmp(name, larder::devices::kCopyKernelName) != 0) {
    return kNotFound;
  }
  return entered;
}

CuResult cuLaunchKernel(larder::devices::CuFunction /*function*/,
                        unsigned grid_x,
                        unsigned grid_y,
                        unsigned grid_z,
                        unsigned block_x,
                        unsigned block_y,
                        unsigned block_z,
                        unsigned /*shared_bytes*/,
                        larder::devices::CuStream stream,
                        void** parameters,
                        void** /*extra*/) {
  const CuResult entered = enter("cuLaunchKernel", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  Stream* found = find_stream(stream);
  if (found == nullptr || grid_z != 1 || block_y != 1 || block_z != 1 || grid_x == 0) {
    return kInvalidValue;
  }
  const CopyLaunch launch = *static_cast<const CopyLaunch*>(parameters[0]);
  found->push([launch, grid = Grid{.x = grid_x, .y = grid_y, .threads = block_x}] {
    run_kernel(launch, grid);
  });
  return kSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming, readability-function-size)
