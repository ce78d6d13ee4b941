// cuda_ipc_blocks.h - the engines' memory blocks that are open on one device.
//
// An engine's allocator puts several layers into one block, and every layer's handle carries the
// whole block. A process may have a block open once only, so it is opened for the first that asks
// and closed when the last lease is gone. Thread-safe; make the device's context current first,
// also before a lease is dropped. Outlives its leases.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"
#include "devices/cuda_driver.h"
#include "devices/shared_tensor.h"

namespace larder::devices {

class IpcBlocks;

// Keeps a block open.
class [[nodiscard]] IpcBlockLease {
 public:
  IpcBlockLease(IpcBlocks& blocks, const IpcHandle& handle, CuAddress address)
      : blocks_(&blocks), handle_(handle), address_(address) {}

  IpcBlockLease(IpcBlockLease&& other) noexcept
      : blocks_(std::exchange(other.blocks_, nullptr)),
        handle_(other.handle_),
        address_(other.address_) {}

  IpcBlockLease(const IpcBlockLease&) = delete;
  IpcBlockLease& operator=(const IpcBlockLease&) = delete;
  IpcBlockLease& operator=(IpcBlockLease&&) = delete;
  ~IpcBlockLease();

  CuAddress address() const { return address_; }

 private:
  IpcBlocks* blocks_;
  IpcHandle handle_;
  CuAddress address_;
};

class IpcBlocks {
 public:
  explicit IpcBlocks(const CudaDriver& driver) : driver_(driver) {}

  IpcBlocks(const IpcBlocks&) = delete;
  IpcBlocks& operator=(const IpcBlocks&) = delete;
  ~IpcBlocks();

  // kSystem when the driver refuses. kInvalid: the block is shorter than `bytes_needed`.
  Result<IpcBlockLease> open(const IpcHandle& handle, std::size_t bytes_needed);

  std::size_t open_count() const;

 private:
  friend class IpcBlockLease;

  struct Block {
    CuAddress address = 0;
    std::size_t leases = 0;
  };

  Result<void> check_size(CuAddress address, std::size_t bytes_needed) const;
  void give_back(const IpcHandle& handle);

  const CudaDriver& driver_;
  mutable Mutex mutex_;
  std::map<IpcHandle, Block> blocks_ LARDER_GUARDED_BY(mutex_);
};

}  // namespace larder::devices
