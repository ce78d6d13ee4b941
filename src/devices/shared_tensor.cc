#include "devices/shared_tensor.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "devices/tensor_fields.h"

namespace larder::devices {
namespace {

constexpr std::size_t kNameBytesMax = 255;  // of a file in /dev/shm
constexpr std::byte kPickle{0x80};

Error invalid(std::string what) {
  return Error{Code::kInvalid, std::move(what)};
}

// The name of a segment, and no path to somewhere else.
bool is_segment_name(std::string_view name) {
  return name.size() > 1 && name.size() <= kNameBytesMax && name.front() == '/' &&
         name.find('/', 1) == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

IpcHandle ipc_handle_of(std::span<const std::byte> bytes) {
  IpcHandle handle{};
  std::copy_n(bytes.begin(), handle.size(), handle.begin());
  return handle;
}

// torch puts a version and a kind before CUDA's handle; its older releases put nothing.
Result<IpcHandle> block_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kPrefixBytes = 2;
  constexpr std::byte kWholeAllocation{'c'};
  constexpr std::byte kExpandableSegment{'e'};
  if (bytes.size() == kIpcHandleBytes) {
    return ipc_handle_of(bytes);
  }
  if (bytes.size() >= kPrefixBytes && bytes[1] == kExpandableSegment) {
    return Error{Code::kUnsupported,
                 "CUDA memory in torch's expandable segments (PYTORCH_CUDA_ALLOC_CONF)"};
  }
  if (bytes.size() == kPrefixBytes + kIpcHandleBytes && bytes[1] == kWholeAllocation) {
    return ipc_handle_of(bytes.subspan(kPrefixBytes));
  }
  return Error{Code::kUnsupported, "CUDA memory handle of an unknown form"};
}

Result<SharedSegmentHandle> memory_of(const SegmentFields& fields) {
  if (fields.bytes < 0) {
    return invalid("segment of negative size");
  }
  if (fields.bytes == 0) {
    return SharedSegmentHandle{};
  }
  if (!is_segment_name(fields.name)) {
    return invalid("segment name");
  }
  return SharedSegmentHandle{std::string(fields.name), static_cast<std::uint64_t>(fields.bytes)};
}

Result<CudaMemoryHandle> memory_at(std::int64_t offset, std::int64_t bytes) {
  std::int64_t end = 0;
  if (offset < 0 || bytes < 0 || __builtin_add_overflow(offset, bytes, &end)) {
    return invalid("CUDA memory: offset and size");
  }
  CudaMemoryHandle memory;
  memory.block_offset = static_cast<std::uint64_t>(offset);
  memory.storage_bytes = static_cast<std::uint64_t>(bytes);
  return memory;
}

Result<CudaMemoryHandle> memory_of(const StorageFields& fields) {
  Result<CudaMemoryHandle> memory = memory_at(fields.block_offset, fields.storage_bytes);
  if (!memory) {
    return memory;
  }
  if (memory->storage_bytes == 0) {
    return memory;
  }
  if (!fields.block) {
    return invalid("CUDA storage without a block");
  }
  const Result<IpcHandle> block = block_of(*fields.block);
  if (!block) {
    return block.error();
  }
  memory->block = *block;
  if (fields.counter_name && !fields.counter_name->empty()) {
    const std::string_view name = text_of(*fields.counter_name);
    if (!is_segment_name(name) || fields.counter_index < 0) {
      return invalid("CUDA storage: name or index of its counter");
    }
    memory->counter =
        StorageCounter{std::string(name), static_cast<std::uint64_t>(fields.counter_index)};
  }
  if (fields.must_wait) {
    if (!fields.event || fields.event->size() != kIpcHandleBytes) {
      return invalid("CUDA storage without the event that it waits for");
    }
    memory->ready = ipc_handle_of(*fields.event);
  }
  return memory;
}

Result<CudaMemoryHandle> memory_of(const AllocationFields& fields) {
  Result<CudaMemoryHandle> memory = memory_at(fields.offset, fields.bytes);
  if (memory) {
    if (fields.handle.size() != kIpcHandleBytes) {
      return invalid("CUDA memory handle of " + std::to_string(fields.handle.size()) + " bytes");
    }
    memory->block = ipc_handle_of(fields.handle);
  }
  return memory;
}

std::uint64_t bytes_of(const SharedSegmentHandle& memory) {
  return memory.bytes;
}

std::uint64_t bytes_of(const CudaMemoryHandle& memory) {
  return memory.storage_bytes;
}

bool is_hex(char letter) {
  return (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'f');
}

// As torch prints it: lower case, without the driver's "GPU-".
Result<std::string> cuda_uuid_of(std::string_view text) {
  constexpr std::string_view kPattern = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  constexpr std::string_view kPrefix = "GPU-";
  if (text.substr(0, kPrefix.size()) == kPrefix) {
    text.remove_prefix(kPrefix.size());
  }
  std::string uuid(text);
  std::transform(uuid.begin(), uuid.end(), uuid.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'F' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  const bool fits = uuid.size() == kPattern.size() &&
                    std::equal(uuid.begin(), uuid.end(), kPattern.begin(), [](char given, char is) {
                      return is == 'x' ? is_hex(given) : given == is;
                    });
  return fits ? Result<std::string>(std::move(uuid)) : invalid("CUDA device's UUID");
}

Result<std::string> device_of(const HandleFields& fields) {
  return std::holds_alternative<SegmentFields>(fields.memory) ? Result<std::string>("cpu")
                                                              : cuda_uuid_of(fields.device_uuid);
}

Result<TensorHandle> handle_of(HandleFields fields) {
  const std::optional<tensors::Dtype> dtype = tensors::dtype_from_name(fields.dtype_name);
  if (!dtype) {
    return Error{Code::kUnsupported, "tensor of an unknown dtype"};
  }
  if (fields.shape.size() > tensors::kDimensionsMax) {
    return Error{Code::kTooLarge, "tensor of too many dimensions"};
  }
  Result<std::string> device = device_of(fields);
  if (!device) {
    return device.error();
  }
  TensorHandle handle;
  handle.tensor = {*dtype, std::move(fields.shape), std::move(fields.stride)};
  handle.storage_offset = fields.storage_offset;
  handle.device_uuid = std::move(device).value();
  const Result<std::size_t> needed = geometry::storage_bytes(handle.tensor, handle.storage_offset);
  if (!needed) {
    return needed.error();
  }
  return std::visit(
      [&](const auto& written) -> Result<TensorHandle> {
        auto memory = memory_of(written);
        if (!memory) {
          return memory.error();
        }
        if (*needed > bytes_of(*memory)) {
          return invalid("tensor that leaves its memory: " + std::to_string(*needed) + " of " +
                         std::to_string(bytes_of(*memory)) + " bytes");
        }
        handle.memory = std::move(memory).value();
        return std::move(handle);
      },
      fields.memory);
}

}  // namespace

Result<TensorHandle> read_tensor_handle(std::span<const std::byte> body) {
  if (body.empty()) {
    return Error{Code::kMalformed, "tensor handle: empty"};
  }
  if (body.size() > kHandleBodyBytesMax) {
    return Error{Code::kTooLarge, "tensor handle"};
  }
  // 80 is msgpack for a map without fields, which no handle is.
  Result<HandleFields> fields =
      body[0] == kPickle ? read_handle_pickle(body) : read_handle_map(body);
  return fields ? handle_of(std::move(fields).value()) : Result<TensorHandle>(fields.error());
}

}  // namespace larder::devices
