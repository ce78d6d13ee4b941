// cuda_driver.h - the part of NVIDIA's driver interface that larder calls, loaded at run time.
//
// No CUDA header or library is needed to build, and none to start: load() opens the driver's
// library with dlopen and looks every function up by the name of the version declared here. The
// declarations are our own; cuda_driver_test.cc compares them with cuda.h where a toolkit is
// installed. CudaDriver is a table without state: copy it freely, call it from any thread.
//
// The functions act on the calling thread's current context: make_current() of a CudaDevice
// (cuda_device.h) comes first on every thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "devices/shared_tensor.h"

namespace larder::devices {

using CuResult = int;
using CuOrdinal = int;            // a device
using CuAddress = std::uint64_t;  // of device memory, or of host memory in the same space
using CuUuid = std::array<std::byte, 16>;
using CuContext = struct CuContextBody*;
using CuStream = struct CuStreamBody*;
using CuEvent = struct CuEventBody*;
using CuModule = struct CuModuleBody*;
using CuFunction = struct CuFunctionBody*;
using CuHostFunction = void (*)(void* argument);

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuNotReady = 600;

inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuEventInterprocess = 4;
inline constexpr unsigned kCuEventDisableTiming = 2;
inline constexpr unsigned kCuIpcLazyPeerAccess = 1;
inline constexpr unsigned kCuHostRegisterPortable = 1;
inline constexpr unsigned kCuHostRegisterDeviceMap = 2;
inline constexpr int kCuMemoryHost = 1;
inline constexpr int kCuMemoryDevice = 2;
inline constexpr int kCuSourceInStreamOrder = 1;

// The host functions' and kernels' structs, laid out as the driver has them.
struct CuCopy2d {
  std::size_t source_x = 0;
  std::size_t source_y = 0;
  int source_memory = 0;
  const void* source_host = nullptr;
  CuAddress source_device = 0;
  void* source_array = nullptr;
  std::size_t source_pitch = 0;
  std::size_t target_x = 0;
  std::size_t target_y = 0;
  int target_memory = 0;
  void* target_host = nullptr;
  CuAddress target_device = 0;
  void* target_array = nullptr;
  std::size_t target_pitch = 0;
  std::size_t width = 0;
  std::size_t height = 0;
};

struct CuBatchAttributes {
  int source_order = kCuSourceInStreamOrder;
  std::array<int, 2> source_hint{};
  std::array<int, 2> target_hint{};
  unsigned flags = 0;
};

struct CudaDriver {
  // kUnsupported: there is no usable driver; the detail says why. `path`: a library to load instead
  // of libcuda.so.1; "" for that. The library stays loaded to the end of the process.
  static Result<CudaDriver> load(const std::string& path);

  // "cuCtxSetCurrent: CUDA_ERROR_INVALID_CONTEXT" as kSystem unless `result` is success.
  Result<void> check(CuResult result, std::string_view function) const;

  // clang-format off
  CuResult (*init)(unsigned flags) = nullptr;
  CuResult (*driver_get_version)(int* version) = nullptr;
  CuResult (*get_error_name)(CuResult result, const char** name) = nullptr;
  CuResult (*device_get_count)(int* count) = nullptr;
  CuResult (*device_get)(CuOrdinal* device, int ordinal) = nullptr;
  CuResult (*device_get_uuid)(CuUuid* uuid, CuOrdinal device) = nullptr;
  CuResult (*primary_context_retain)(CuContext* context, CuOrdinal device) = nullptr;
  CuResult (*primary_context_release)(CuOrdinal device) = nullptr;
  CuResult (*context_set_current)(CuContext context) = nullptr;
  CuResult (*stream_create)(CuStream* stream, unsigned flags) = nullptr;
  CuResult (*stream_destroy)(CuStream stream) = nullptr;
  CuResult (*stream_synchronize)(CuStream stream) = nullptr;
  CuResult (*stream_wait_event)(CuStream stream, CuEvent event, unsigned flags) = nullptr;
  CuResult (*launch_host_function)(CuStream stream, CuHostFunction function, void* argument) = nullptr;
  CuResult (*event_create)(CuEvent* event, unsigned flags) = nullptr;
  CuResult (*event_destroy)(CuEvent event) = nullptr;
  CuResult (*event_record)(CuEvent event, CuStream stream) = nullptr;
  CuResult (*event_query)(CuEvent event) = nullptr;
  CuResult (*ipc_get_event_handle)(IpcHandle* handle, CuEvent event) = nullptr;
  CuResult (*ipc_open_event_handle)(CuEvent* event, IpcHandle handle) = nullptr;
  CuResult (*ipc_open_mem_handle)(CuAddress* address, IpcHandle handle, unsigned flags) = nullptr;
  CuResult (*ipc_close_mem_handle)(CuAddress address) = nullptr;
  CuResult (*mem_get_address_range)(CuAddress* base, std::size_t* bytes, CuAddress address) = nullptr;
  CuResult (*mem_host_register)(void* base, std::size_t bytes, unsigned flags) = nullptr;
  CuResult (*mem_host_unregister)(void* base) = nullptr;
  CuResult (*mem_host_get_device_pointer)(CuAddress* address, void* host, unsigned flags) = nullptr;
  CuResult (*copy)(CuAddress target, CuAddress source, std::size_t bytes, CuStream stream) = nullptr;
  CuResult (*copy_2d)(const CuCopy2d* copy, CuStream stream) = nullptr;
  CuResult (*module_load_data)(CuModule* module, const void* image) = nullptr;
  CuResult (*module_unload)(CuModule module) = nullptr;
  CuResult (*module_get_function)(CuFunction* function, CuModule module, const char* name) = nullptr;
  CuResult (*launch_kernel)(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            CuStream stream, void** parameters, void** extra) = nullptr;
  // Either may be missing: the first came with drivers for CUDA 13.0, the second with 12.8.
  CuResult (*copy_batch)(CuAddress* targets, CuAddress* sources, std::size_t* bytes, std::size_t count,
                         CuBatchAttributes* attributes, std::size_t* first_of_attributes,
                         std::size_t attribute_count, CuStream stream) = nullptr;
  CuResult (*copy_batch_128)(CuAddress* targets, CuAddress* sources, std::size_t* bytes, std::size_t count,
                             CuBatchAttributes* attributes, std::size_t* first_of_attributes,
                             std::size_t attribute_count, std::size_t* failed, CuStream stream) = nullptr;
  // clang-format on
};

}  // namespace larder::devices
