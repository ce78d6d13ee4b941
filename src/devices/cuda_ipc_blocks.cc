#include "devices/cuda_ipc_blocks.h"

#include <fmt/core.h>

#include "base/check.h"
#include "base/log.h"

namespace larder::devices {

IpcBlockLease::~IpcBlockLease() {
  if (blocks_ != nullptr) {
    blocks_->give_back(handle_);
  }
}

IpcBlocks::~IpcBlocks() {
  LARDER_CHECK(open_count() == 0);
}

Result<IpcBlockLease> IpcBlocks::open(const IpcHandle& handle, std::size_t bytes_needed) {
  const MutexLock lock(mutex_);
  const auto known = blocks_.find(handle);
  if (known != blocks_.end()) {
    if (auto fits = check_size(known->second.address, bytes_needed); !fits) {
      return fits.error();
    }
    known->second.leases += 1;
    return IpcBlockLease(*this, handle, known->second.address);
  }
  Block block{.address = 0, .leases = 1};
  auto opened =
      driver_.check(driver_.ipc_open_mem_handle(&block.address, handle, kCuIpcLazyPeerAccess),
                    "cuIpcOpenMemHandle");
  if (!opened) {
    return opened.error();
  }
  if (auto fits = check_size(block.address, bytes_needed); !fits) {
    driver_.ipc_close_mem_handle(block.address);
    return fits.error();
  }
  blocks_.emplace(handle, block);
  return IpcBlockLease(*this, handle, block.address);
}

// The block's length is the engine's word alone unless the driver knows better: a copy beyond its
// end would break the context for everybody.
Result<void> IpcBlocks::check_size(CuAddress address, std::size_t bytes_needed) const {
  CuAddress base = 0;
  std::size_t bytes = 0;
  if (driver_.mem_get_address_range(&base, &bytes, address) != kCuSuccess) {
    return {};
  }
  if (address < base || address - base > bytes || bytes_needed > bytes - (address - base)) {
    return Error{Code::kInvalid,
                 fmt::format("a tensor ends at byte {} of a block of {}", bytes_needed, bytes)};
  }
  return {};
}

void IpcBlocks::give_back(const IpcHandle& handle) {
  const MutexLock lock(mutex_);
  const auto known = blocks_.find(handle);
  LARDER_CHECK(known != blocks_.end());
  known->second.leases -= 1;
  if (known->second.leases > 0) {
    return;
  }
  auto closed =
      driver_.check(driver_.ipc_close_mem_handle(known->second.address), "cuIpcCloseMemHandle");
  if (!closed) {
    log::warning("an engine's memory could not be unmapped: {}", closed.error().detail);
  }
  blocks_.erase(known);
}

std::size_t IpcBlocks::open_count() const {
  const MutexLock lock(mutex_);
  return blocks_.size();
}

}  // namespace larder::devices
