// tensor_fields.h - a tensor handle as it was written, before its parts are held against each
// other. Private to this room.
//
// Both wire forms have the same fields under other names. Text and bytes are views into the body.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace larder::devices {

struct SegmentFields {
  std::string_view name;
  std::int64_t bytes = 0;
};

// What torch tells another process of a CUDA storage. An empty storage has no block.
struct StorageFields {
  std::optional<std::span<const std::byte>> block;
  std::int64_t storage_bytes = 0;
  std::int64_t block_offset = 0;
  std::optional<std::span<const std::byte>> counter_name;
  std::int64_t counter_index = 0;
  std::optional<std::span<const std::byte>> event;
  bool must_wait = false;
};

// The driver's handle of a CUDA allocation.
struct AllocationFields {
  std::span<const std::byte> handle;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
};

struct HandleFields {
  std::string_view dtype_name;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;
  std::int64_t storage_offset = 0;
  std::string_view device_uuid;
  std::variant<SegmentFields, StorageFields, AllocationFields> memory;
};

Result<HandleFields> read_handle_pickle(std::span<const std::byte> body);

Result<HandleFields> read_handle_map(std::span<const std::byte> body);

}  // namespace larder::devices
