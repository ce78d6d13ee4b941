// Goal: a driver is used only if it has everything and works, and any other is named with its
// reason; our declarations agree with the toolkit's.
// Method: the fake driver, one that has a single function, and paths to nothing; cuda.h where the
// build found it.
#include "devices/cuda_driver.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "devices/test_cuda.h"

#if LARDER_CUDA_HEADER
#include <cuda.h>
#endif

namespace larder::devices {
namespace {

TEST(CudaDriver, IsLoadedFromThePathThatIsGiven) {
  const auto driver = CudaDriver::load(LARDER_FAKE_CUDA);
  ASSERT_TRUE(driver.has_value()) << driver.error().detail;
  int version = 0;
  EXPECT_EQ(driver->driver_get_version(&version), kCuSuccess);
  EXPECT_EQ(version, 13000);
}

TEST(CudaDriver, IsAbsentWhereThereIsNoLibrary) {
  const auto driver = CudaDriver::load("/nowhere/libcuda.so.1");
  ASSERT_FALSE(driver.has_value());
  EXPECT_EQ(driver.error().code, Code::kUnsupported);
  EXPECT_NE(driver.error().detail.find("/nowhere/libcuda.so.1"), std::string::npos)
      << driver.error().detail;
}

TEST(CudaDriver, IsRefusedWhenAFunctionIsMissing) {
  const auto driver = CudaDriver::load(LARDER_OLD_CUDA);
  ASSERT_FALSE(driver.has_value());
  EXPECT_EQ(driver.error().detail, "the CUDA driver is too old: no cuDriverGetVersion");
}

TEST(CudaDriver, IsRefusedWhenItDoesNotStart) {
  const FakeLibrary fake(LARDER_FAKE_CUDA);
  fake.fail("cuInit", 0, 100);
  const auto driver = CudaDriver::load(LARDER_FAKE_CUDA);
  ASSERT_FALSE(driver.has_value());
  EXPECT_EQ(driver.error().code, Code::kUnsupported);
  EXPECT_EQ(driver.error().detail, "no usable CUDA driver: cuInit: CUDA_ERROR_NO_DEVICE");
}

TEST(CudaDriver, NamesItsErrors) {
  const CudaDriver driver = fake_driver();
  EXPECT_TRUE(driver.check(kCuSuccess, "cuInit").has_value());
  EXPECT_EQ(driver.check(700, "cuX").error().detail, "cuX: CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(driver.check(98765, "cuX").error().detail, "cuX: CUDA error 98765");
}

TEST(CudaDriver, MayLackBatches) {
  CudaDriver driver = fake_driver();
  EXPECT_NE(driver.copy_batch, nullptr);
  EXPECT_NE(driver.copy_batch_128, nullptr);
}

#if LARDER_CUDA_HEADER
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(IpcHandle) == sizeof(CUipcEventHandle));
static_assert(sizeof(CuUuid) == sizeof(CUuuid));
static_assert(sizeof(CuAddress) == sizeof(CUdeviceptr));
static_assert(sizeof(CuResult) == sizeof(CUresult));
static_assert(sizeof(CuOrdinal) == sizeof(CUdevice));
static_assert(sizeof(CuCopy2d) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(CuCopy2d, source_host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(CuCopy2d, source_device) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(CuCopy2d, source_pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(CuCopy2d, target_memory) == offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(CuCopy2d, target_host) == offsetof(CUDA_MEMCPY2D, dstHost));
static_assert(offsetof(CuCopy2d, target_device) == offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(CuCopy2d, target_pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(CuCopy2d, width) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(CuCopy2d, height) == offsetof(CUDA_MEMCPY2D, Height));
static_assert(sizeof(CuBatchAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(CuBatchAttributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(CuBatchAttributes, target_hint) == offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(CuBatchAttributes, flags) == offsetof(CUmemcpyAttributes, flags));
static_assert(kCuSuccess == static_cast<int>(CUDA_SUCCESS));
static_assert(kCuNotReady == static_cast<int>(CUDA_ERROR_NOT_READY));
static_assert(kCuStreamNonBlocking == static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
static_assert(kCuEventInterprocess == static_cast<unsigned>(CU_EVENT_INTERPROCESS));
static_assert(kCuEventDisableTiming == static_cast<unsigned>(CU_EVENT_DISABLE_TIMING));
static_assert(kCuIpcLazyPeerAccess == static_cast<unsigned>(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
static_assert(kCuHostRegisterPortable == unsigned{CU_MEMHOSTREGISTER_PORTABLE});
static_assert(kCuHostRegisterDeviceMap == unsigned{CU_MEMHOSTREGISTER_DEVICEMAP});
static_assert(kCuMemoryHost == static_cast<int>(CU_MEMORYTYPE_HOST));
static_assert(kCuMemoryDevice == static_cast<int>(CU_MEMORYTYPE_DEVICE));
static_assert(kCuSourceInStreamOrder == static_cast<int>(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM));

template <typename... Parameters>
constexpr auto parameter_bytes(CuResult (*)(Parameters...)) {
  return std::array<std::size_t, sizeof...(Parameters)>{sizeof(Parameters)...};
}

template <typename... Parameters>
constexpr auto parameter_bytes(CUresult (*)(Parameters...)) {
  return std::array<std::size_t, sizeof...(Parameters)>{sizeof(Parameters)...};
}

// The functions are only named, never linked: parameters of the same number and sizes.
#define LARDER_SAME_PARAMETERS(ours, theirs)                            \
  static_assert(parameter_bytes(decltype(CudaDriver::ours){nullptr}) == \
                parameter_bytes(static_cast<decltype(&(theirs))>(nullptr)))

LARDER_SAME_PARAMETERS(init, cuInit);
LARDER_SAME_PARAMETERS(driver_get_version, cuDriverGetVersion);
LARDER_SAME_PARAMETERS(get_error_name, cuGetErrorName);
LARDER_SAME_PARAMETERS(device_get_count, cuDeviceGetCount);
LARDER_SAME_PARAMETERS(device_get, cuDeviceGet);
LARDER_SAME_PARAMETERS(device_get_uuid, cuDeviceGetUuid);
LARDER_SAME_PARAMETERS(primary_context_retain, cuDevicePrimaryCtxRetain);
LARDER_SAME_PARAMETERS(primary_context_release, cuDevicePrimaryCtxRelease);
LARDER_SAME_PARAMETERS(context_set_current, cuCtxSetCurrent);
LARDER_SAME_PARAMETERS(stream_create, cuStreamCreate);
LARDER_SAME_PARAMETERS(stream_destroy, cuStreamDestroy);
LARDER_SAME_PARAMETERS(stream_synchronize, cuStreamSynchronize);
LARDER_SAME_PARAMETERS(stream_wait_event, cuStreamWaitEvent);
LARDER_SAME_PARAMETERS(launch_host_function, cuLaunchHostFunc);
LARDER_SAME_PARAMETERS(event_create, cuEventCreate);
LARDER_SAME_PARAMETERS(event_destroy, cuEventDestroy);
LARDER_SAME_PARAMETERS(event_record, cuEventRecord);
LARDER_SAME_PARAMETERS(event_query, cuEventQuery);
LARDER_SAME_PARAMETERS(ipc_get_event_handle, cuIpcGetEventHandle);
LARDER_SAME_PARAMETERS(ipc_open_event_handle, cuIpcOpenEventHandle);
LARDER_SAME_PARAMETERS(ipc_open_mem_handle, cuIpcOpenMemHandle);
LARDER_SAME_PARAMETERS(ipc_close_mem_handle, cuIpcCloseMemHandle);
LARDER_SAME_PARAMETERS(mem_get_address_range, cuMemGetAddressRange);
LARDER_SAME_PARAMETERS(mem_host_register, cuMemHostRegister);
LARDER_SAME_PARAMETERS(mem_host_unregister, cuMemHostUnregister);
LARDER_SAME_PARAMETERS(mem_host_get_device_pointer, cuMemHostGetDevicePointer);
LARDER_SAME_PARAMETERS(copy, cuMemcpyAsync);
LARDER_SAME_PARAMETERS(copy_2d, cuMemcpy2DAsync);
LARDER_SAME_PARAMETERS(module_load_data, cuModuleLoadData);
LARDER_SAME_PARAMETERS(module_unload, cuModuleUnload);
LARDER_SAME_PARAMETERS(module_get_function, cuModuleGetFunction);
LARDER_SAME_PARAMETERS(launch_kernel, cuLaunchKernel);
LARDER_SAME_PARAMETERS(copy_batch, cuMemcpyBatchAsync);
#undef LARDER_SAME_PARAMETERS

TEST(CudaDriver, IsDeclaredAsInCudaH) {
  // The versions behind the header's names are the ones that are looked up.
  const FakeLibrary fake(LARDER_FAKE_CUDA);
#define LARDER_TEXT(name) #name
#define LARDER_NAME(name) LARDER_TEXT(name)
  for (const char* name : {LARDER_NAME(cuDeviceGetUuid),
                           LARDER_NAME(cuDevicePrimaryCtxRelease),
                           LARDER_NAME(cuStreamDestroy),
                           LARDER_NAME(cuEventDestroy),
                           LARDER_NAME(cuIpcOpenMemHandle),
                           LARDER_NAME(cuMemGetAddressRange),
                           LARDER_NAME(cuMemHostRegister),
                           LARDER_NAME(cuMemHostGetDevicePointer),
                           LARDER_NAME(cuMemcpy2DAsync),
                           LARDER_NAME(cuMemcpyBatchAsync)}) {
    EXPECT_NE(fake.find<CuResult()>(name), nullptr) << name;
  }
#undef LARDER_NAME
#undef LARDER_TEXT
}
#else
TEST(CudaDriver, IsDeclaredAsInCudaH) {
  GTEST_SKIP() << "there is no cuda.h on this machine";
}
#endif

}  // namespace
}  // namespace larder::devices
