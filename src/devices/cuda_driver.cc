#include "devices/cuda_driver.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <bit>

namespace larder::devices {

namespace {

constexpr const char* kDriverLibrary = "libcuda.so.1";

// Looks functions up in a loaded library and keeps the name of the first one that is missing.
class SymbolTable {
 public:
  explicit SymbolTable(void* library) : library_(library) {}

  template <typename Function>
  void require(const char* name, Function*& slot) {
    find(name, slot);
    if (slot == nullptr && missing_.empty()) {
      missing_ = name;
    }
  }

  template <typename Function>
  void find(const char* name, Function*& slot) const {
    slot = std::bit_cast<Function*>(::dlsym(library_, name));
  }

  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

void find_contexts(SymbolTable& symbols, CudaDriver& driver) {
  symbols.require("cuInit", driver.init);
  symbols.require("cuDriverGetVersion", driver.driver_get_version);
  symbols.require("cuGetErrorName", driver.get_error_name);
  symbols.require("cuDeviceGetCount", driver.device_get_count);
  symbols.require("cuDeviceGet", driver.device_get);
  symbols.require("cuDeviceGetUuid_v2", driver.device_get_uuid);
  symbols.require("cuDevicePrimaryCtxRetain", driver.primary_context_retain);
  symbols.require("cuDevicePrimaryCtxRelease_v2", driver.primary_context_release);
  symbols.require("cuCtxSetCurrent", driver.context_set_current);
}

void find_streams(SymbolTable& symbols, CudaDriver& driver) {
  symbols.require("cuStreamCreate", driver.stream_create);
  symbols.require("cuStreamDestroy_v2", driver.stream_destroy);
  symbols.require("cuStreamSynchronize", driver.stream_synchronize);
  symbols.require("cuStreamWaitEvent", driver.stream_wait_event);
  symbols.require("cuLaunchHostFunc", driver.launch_host_function);
  symbols.require("cuEventCreate", driver.event_create);
  symbols.require("cuEventDestroy_v2", driver.event_destroy);
  symbols.require("cuEventRecord", driver.event_record);
  symbols.require("cuEventQuery", driver.event_query);
}

void find_memory(SymbolTable& symbols, CudaDriver& driver) {
  symbols.require("cuIpcGetEventHandle", driver.ipc_get_event_handle);
  symbols.require("cuIpcOpenEventHandle", driver.ipc_open_event_handle);
  symbols.require("cuIpcOpenMemHandle_v2", driver.ipc_open_mem_handle);
  symbols.require("cuIpcCloseMemHandle", driver.ipc_close_mem_handle);
  symbols.require("cuMemGetAddressRange_v2", driver.mem_get_address_range);
  symbols.require("cuMemHostRegister_v2", driver.mem_host_register);
  symbols.require("cuMemHostUnregister", driver.mem_host_unregister);
  symbols.require("cuMemHostGetDevicePointer_v2", driver.mem_host_get_device_pointer);
}

void find_copies(SymbolTable& symbols, CudaDriver& driver) {
  symbols.require("cuMemcpyAsync", driver.copy);
  symbols.require("cuMemcpy2DAsync_v2", driver.copy_2d);
  symbols.require("cuModuleLoadData", driver.module_load_data);
  symbols.require("cuModuleUnload", driver.module_unload);
  symbols.require("cuModuleGetFunction", driver.module_get_function);
  symbols.require("cuLaunchKernel", driver.launch_kernel);
  symbols.find("cuMemcpyBatchAsync_v2", driver.copy_batch);
  symbols.find("cuMemcpyBatchAsync", driver.copy_batch_128);
}

std::string last_library_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "unknown error";
}

}  // namespace

Result<CudaDriver> CudaDriver::load(const std::string& path) {
  // Never closed: the driver has threads and exit functions of its own.
  void* library = ::dlopen(path.empty() ? kDriverLibrary : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{Code::kUnsupported, "no CUDA driver: " + last_library_error()};
  }
  CudaDriver driver;
  SymbolTable symbols(library);
  find_contexts(symbols, driver);
  find_streams(symbols, driver);
  find_memory(symbols, driver);
  find_copies(symbols, driver);
  if (!symbols.missing().empty()) {
    return Error{Code::kUnsupported, "the CUDA driver is too old: no " + symbols.missing()};
  }
  if (auto started = driver.check(driver.init(0), "cuInit"); !started) {
    return Error{Code::kUnsupported, "no usable CUDA driver: " + started.error().detail};
  }
  return driver;
}

Result<void> CudaDriver::check(CuResult result, std::string_view function) const {
  if (result == kCuSuccess) {
    return {};
  }
  const char* name = nullptr;
  if (get_error_name(result, &name) != kCuSuccess || name == nullptr) {
    return Error{Code::kSystem, fmt::format("{}: CUDA error {}", function, result)};
  }
  return Error{Code::kSystem, fmt::format("{}: {}", function, name)};
}

}  // namespace larder::devices
