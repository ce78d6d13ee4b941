// The msgpack form, from 0.5.6 on: a map whose "type" says which other fields there are. All fields
// are required and others forbidden.
#include <array>
#include <string>
#include <utility>

#include "codec/msgpack_reader.h"
#include "devices/tensor_fields.h"
#include "tensors/layout.h"

namespace larder::devices {
namespace {

using codec::MsgpackReader;
using codec::MsgpackType;
using Blob = std::span<const std::byte>;

Error malformed(std::string_view what) {
  return Error{Code::kMalformed, "tensor handle: " + std::string(what)};
}

template <typename T, typename U>
Result<void> assign(T& to, Result<U> value) {
  if (!value) {
    return value.error();
  }
  to = std::move(value).value();
  return {};
}

// Calls `field(name)` for each pair; it reads the value, or fails. Every one of `required` has to
// be there.
template <typename Field>
Result<void> read_fields(MsgpackReader& reader,
                         std::span<const std::string_view> required,
                         const Field& field) {
  const Result<std::size_t> pairs = reader.read_map_header();
  if (!pairs) {
    return pairs.error();
  }
  std::uint32_t seen = 0;
  for (std::size_t i = 0; i < *pairs; ++i) {
    const Result<std::string_view> name = reader.read_string();
    if (!name) {
      return name.error();
    }
    for (std::size_t known = 0; known < required.size(); ++known) {
      seen |= required[known] == *name ? 1U << known : 0U;
    }
    if (Result<void> read = field(*name); !read) {
      return read;
    }
  }
  const std::uint32_t all = (1U << required.size()) - 1;
  return seen == all ? Result<void>() : malformed("a field is missing");
}

Result<std::vector<std::int64_t>> read_ints(MsgpackReader& reader) {
  const Result<std::size_t> count = reader.read_array_header();
  if (!count) {
    return count.error();
  }
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < *count; ++i) {
    const Result<std::int64_t> number = reader.read_int64();
    if (!number) {
      return number.error();
    }
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::optional<Blob>> read_optional_binary(MsgpackReader& reader) {
  const Result<MsgpackType> type = reader.peek();
  if (!type) {
    return type.error();
  }
  if (*type == MsgpackType::kNil) {
    const Result<void> nil = reader.read_nil();
    return nil ? Result<std::optional<Blob>>(std::nullopt) : nil.error();
  }
  const Result<Blob> blob = reader.read_binary();
  return blob ? Result<std::optional<Blob>>(*blob) : blob.error();
}

Result<void> read_metadata(MsgpackReader& reader, HandleFields& to) {
  constexpr auto kRequired = std::to_array<std::string_view>(
      {"dtype", "shape", "stride", "storage_offset", "device_uuid"});
  return read_fields(reader, kRequired, [&](std::string_view name) -> Result<void> {
    if (name == "dtype") {
      return assign(to.dtype_name, reader.read_string());
    }
    if (name == "shape") {
      return assign(to.shape, read_ints(reader));
    }
    if (name == "stride") {
      return assign(to.stride, read_ints(reader));
    }
    if (name == "storage_offset") {
      return assign(to.storage_offset, reader.read_int64());
    }
    if (name == "device_uuid") {
      return assign(to.device_uuid, reader.read_string());
    }
    return malformed("unknown field of the metadata");
  });
}

Result<void> read_version(MsgpackReader& reader) {
  const Result<std::int64_t> version = reader.read_int64();
  if (!version) {
    return version.error();
  }
  return *version == 1
             ? Result<void>()
             : Error{Code::kUnsupported, "tensor handle of version " + std::to_string(*version)};
}

// torch's tuple, as in the pickled form.
Result<void> read_storage(MsgpackReader& reader, StorageFields& to) {
  constexpr std::size_t kItems = 8;
  const Result<std::size_t> count = reader.read_array_header();
  if (!count || *count != kItems) {
    return malformed("handle of a CUDA storage");
  }
  if (const Result<codec::MsgpackInt> device = reader.read_int(); !device) {
    return device.error();
  }
  Result<void> read = assign(to.block, read_optional_binary(reader));
  read = read ? assign(to.storage_bytes, reader.read_int64()) : read;
  read = read ? assign(to.block_offset, reader.read_int64()) : read;
  read = read ? assign(to.counter_name, read_optional_binary(reader)) : read;
  read = read ? assign(to.counter_index, reader.read_int64()) : read;
  read = read ? assign(to.event, read_optional_binary(reader)) : read;
  return read ? assign(to.must_wait, reader.read_bool()) : read;
}

Result<void> read_field(std::string_view name, MsgpackReader& reader, SegmentFields& to) {
  if (name == "shm_name") {
    return assign(to.name, reader.read_string());
  }
  return name == "nbytes" ? assign(to.bytes, reader.read_int64()) : malformed("unknown field");
}

Result<void> read_field(std::string_view name, MsgpackReader& reader, StorageFields& to) {
  return name == "handle" ? read_storage(reader, to) : malformed("unknown field");
}

Result<void> read_field(std::string_view name, MsgpackReader& reader, AllocationFields& to) {
  if (name == "ipc_handle") {
    return assign(to.handle, reader.read_binary());
  }
  if (name == "alloc_offset") {
    return assign(to.offset, reader.read_int64());
  }
  return name == "nbytes" ? assign(to.bytes, reader.read_int64()) : malformed("unknown field");
}

template <typename Memory, std::size_t kCount>
Result<HandleFields> read_kind(Blob body, const std::array<std::string_view, kCount>& own_fields) {
  std::array<std::string_view, kCount + 3> required = {"type", "version", "metadata"};
  for (std::size_t i = 0; i < kCount; ++i) {
    required[i + 3] = own_fields[i];
  }
  HandleFields fields;
  Memory memory;
  MsgpackReader reader(body);
  const Result<void> read =
      read_fields(reader, required, [&](std::string_view name) -> Result<void> {
        if (name == "type") {
          return reader.skip();
        }
        if (name == "version") {
          return read_version(reader);
        }
        return name == "metadata" ? read_metadata(reader, fields)
                                  : read_field(name, reader, memory);
      });
  if (!read) {
    return read.error();
  }
  if (!reader.at_end()) {
    return malformed("bytes after the map");
  }
  fields.memory = memory;
  return fields;
}

Result<std::string_view> type_of(Blob body) {
  MsgpackReader reader(body);
  std::string_view type;
  constexpr auto kRequired = std::to_array<std::string_view>({"type"});
  const Result<void> read =
      read_fields(reader, kRequired, [&](std::string_view name) -> Result<void> {
        return name == "type" ? assign(type, reader.read_string()) : reader.skip();
      });
  return read ? Result<std::string_view>(type) : read.error();
}

}  // namespace

Result<HandleFields> read_handle_map(std::span<const std::byte> body) {
  const Result<std::string_view> type = type_of(body);
  if (!type) {
    return type.error();
  }
  if (*type == "cpu_shm") {
    return read_kind<SegmentFields>(body, std::to_array<std::string_view>({"shm_name", "nbytes"}));
  }
  if (*type == "cuda") {
    return read_kind<StorageFields>(body, std::to_array<std::string_view>({"handle"}));
  }
  if (*type == "cuda_raw") {
    return read_kind<AllocationFields>(
        body, std::to_array<std::string_view>({"ipc_handle", "alloc_offset", "nbytes"}));
  }
  if (*type == "cuda_vmm" || *type == "musa" || *type == "npu") {
    return Error{Code::kUnsupported, "tensors as " + std::string(*type)};
  }
  return Error{Code::kUnsupported, "tensors of an unknown kind"};
}

}  // namespace larder::devices
