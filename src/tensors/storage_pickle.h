// storage_pickle.h - one storage as torch.save's legacy form has it: five pickles and the raw
// bytes.
//
// Private to this room. The five pickles are the magic number, the version, the writer's byte
// order, the storage's description (type, key, place, size) and the list of keys. Only CPU storages
// of little-endian writers are read.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/result.h"
#include "tensors/dtype.h"

namespace larder::tensors {

struct PickledStorage {
  std::optional<Dtype> dtype;  // empty: an untyped storage, plain bytes
  std::span<const std::byte> bytes;
};

// Where the raw bytes are: behind the five pickles, or elsewhere, and then the blob ends there.
using RawBytesElsewhere = std::optional<std::span<const std::byte>>;

// kMalformed for anything else, also when bytes follow or are missing; kTooLarge beyond
// `bytes_max`.
Result<PickledStorage> read_storage(std::span<const std::byte> blob,
                                    RawBytesElsewhere elsewhere,
                                    std::size_t bytes_max);

}  // namespace larder::tensors
