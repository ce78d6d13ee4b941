// storage_counter.h - tells torch that a shared storage is not used any more.
//
// torch counts the receivers of each storage in a shared-memory file of its own, and keeps the
// memory from reuse until the count is zero, even after the engine freed it. Nothing breaks when it
// is not told, so every failure here is ignored.
#pragma once

#include "devices/shared_tensor.h"

namespace larder::devices {

// Takes one off, never below zero. A name that is not one of torch's is not touched: it comes from
// a peer, and the file might be anybody's. True when the count was changed.
bool release_storage(const StorageCounter& counter);

}  // namespace larder::devices
