// shared_tensor.h - one tensor of an engine's KV cache, as its registration hands it over.
//
// Up to 0.5.5 the handle is a Python pickle of one of LMCache's wrapper classes, from 0.5.6 on a
// tagged msgpack map; the first byte tells. The pickle is read by the closed-world reader
// (codec/pickle_reader.h) with a whitelist of class names; the classes moved between modules, so
// any module is accepted. Nothing is opened or mapped here. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>

#include "base/result.h"
#include "geometry/engine_cache.h"

namespace larder::devices {

inline constexpr std::size_t kIpcHandleBytes = 64;  // CUDA's memory and event handles
inline constexpr std::size_t kHandleBodyBytesMax = std::size_t{64} << 10;

using IpcHandle = std::array<std::byte, kIpcHandleBytes>;

// A POSIX shared-memory segment that the engine created, and unlinks.
struct SharedSegmentHandle {
  std::string name;  // with the leading '/'; empty when bytes is 0
  std::uint64_t bytes = 0;
};

// torch counts the receivers of a shared storage in a file of its own.
struct StorageCounter {
  std::string file_name;
  std::uint64_t index = 0;  // in int64s
};

struct CudaMemoryHandle {
  IpcHandle block{};               // of a whole allocation; unused when storage_bytes is 0
  std::uint64_t block_offset = 0;  // bytes to the storage
  std::uint64_t storage_bytes = 0;
  std::optional<StorageCounter> counter;
  std::optional<IpcHandle> ready;  // an event to wait for before the first use
};

struct TensorHandle {
  geometry::EngineTensor tensor;
  std::int64_t storage_offset = 0;  // elements from the storage's start to the first element
  std::string device_uuid;          // "cpu", or 8-4-4-4-12 hex digits in lower case
  std::variant<SharedSegmentHandle, CudaMemoryHandle> memory;
};

// kMalformed: does not decode. kUnsupported: a kind of memory or a dtype that is not served (the
// detail names it). kInvalid: sizes that contradict each other, e.g. a view that leaves its
// storage, or names that are none. kTooLarge: beyond the limits.
Result<TensorHandle> read_tensor_handle(std::span<const std::byte> body);

}  // namespace larder::devices
