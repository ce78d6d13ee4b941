// cuda_device.h - one GPU that engines keep their cache on: its context and what belongs to it.
//
// Opened when the first engine on it registers, as a context takes hundreds of MB of the device's
// memory, and kept to the end. The context is the device's primary one. Thread-safe. Outlives what
// is made from it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "devices/cuda_driver.h"
#include "devices/cuda_events.h"
#include "devices/cuda_ipc_blocks.h"
#include "devices/device.h"
#include "devices/primary_context.h"

namespace larder::devices {

class CudaDevice {
 public:
  // `kernel_image`: the copy kernel as a fat binary, or nothing. An image that the driver does not
  // take is logged and done without.
  static Result<std::unique_ptr<CudaDevice>> open(const CudaDriver& driver,
                                                  int ordinal,
                                                  std::span<const std::byte> kernel_image);

  CudaDevice(const CudaDriver& driver, PrimaryContext context, int ordinal);
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  // For the calling thread.
  Result<void> make_current() const;

  // A stream that runs beside all others.
  Result<CuStream> create_stream() const;

  // `stream` goes on when the engine's event is complete. The event is opened, and dropped as soon
  // as the driver knows of the wait.
  Result<void> wait_for(const IpcHandle& engine_event, CuStream stream) const;

  // An event that is complete. When the device makes no more (its context is broken, or too many
  // are in use), the one recorded at the start is handed out again.
  EventHandle completed_event();

  const CudaDriver& driver() const { return driver_; }

  CuContext context() const { return context_.get(); }

  CuFunction copy_kernel() const { return copy_kernel_; }  // null: there is none

  IpcBlocks& blocks() { return blocks_; }

  ExportedEvents& events() { return events_; }

  const std::string& name() const { return name_; }  // "cuda:0"

 private:
  Result<void> prepare();
  void load_kernel(std::span<const std::byte> image);
  Result<EventHandle> record_completed();

  const CudaDriver& driver_;
  const PrimaryContext context_;  // goes last
  const std::string name_;
  CuStream idle_stream_ = nullptr;  // nothing ever waits on it
  CuModule module_ = nullptr;
  CuFunction copy_kernel_ = nullptr;
  IpcBlocks blocks_;
  ExportedEvents events_;
  EventHandle first_event_;
};

// The bytes of a handle as they travel, and back; kInvalid for another length than 64.
EventHandle bytes_of(const IpcHandle& handle);
Result<IpcHandle> ipc_handle_of(std::span<const std::byte> bytes);

}  // namespace larder::devices
