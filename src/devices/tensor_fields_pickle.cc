// The pickled form, up to 0.5.5: an object of one of the wrapper classes, made without arguments,
// with a dict of attributes.
#include <array>
#include <string>

#include "codec/pickle_reader.h"
#include "devices/tensor_fields.h"
#include "tensors/dtype.h"

namespace larder::devices {
namespace {

using codec::PickleDict;
using codec::PickleDocument;
using codec::PickleGlobal;
using codec::PickleIndex;
using codec::PickleSequence;

constexpr std::string_view kSegmentClass = "CpuShmTensorWrapper";
constexpr std::string_view kStorageClass = "CudaIPCWrapper";
constexpr std::string_view kAllocationClass = "RawCudaIPCWrapper";

// The module moved from release to release, so the class alone counts.
constexpr auto kClasses = std::to_array<PickleGlobal>({
    {"", kSegmentClass},
    {"", kStorageClass},
    {"", kAllocationClass},
    {"", "VmmCudaIPCWrapper"},
    {"", "MusaIPCWrapper"},
    {"", "NpuIPCWrapper"},
});

std::array<PickleGlobal, kClasses.size() + tensors::kDtypeCount> allowed_globals() {
  std::array<PickleGlobal, kClasses.size() + tensors::kDtypeCount> globals{};
  for (std::size_t i = 0; i < kClasses.size(); ++i) {
    globals[i] = kClasses[i];
  }
  for (std::size_t i = 0; i < tensors::kDtypeCount; ++i) {
    globals[kClasses.size() + i] = {"torch", tensors::name_of(static_cast<tensors::Dtype>(i))};
  }
  return globals;
}

// A real handle has about 60 values.
constexpr codec::PickleLimits kLimits = {
    .values_max = 1024, .memo_max = 1024, .stack_max = 256, .global_bytes_max = 256};

Error malformed(std::string_view what) {
  return Error{Code::kMalformed, "tensor handle: " + std::string(what)};
}

class Attributes {
 public:
  Attributes(const PickleDocument& document, const PickleDict& dict)
      : document_(document), dict_(dict) {}

  // nullptr when it is missing or of another type. What comes twice counts as it came last.
  template <typename T>
  const T* get(std::string_view name) const {
    const T* found = nullptr;
    for (const auto& [key, value] : dict_.items) {
      const auto* text = std::get_if<std::string_view>(&document_[key]);
      if (text != nullptr && *text == name) {
        found = std::get_if<T>(&document_[value]);
      }
    }
    return found;
  }

  bool has(std::string_view name) const {
    for (const auto& [key, value] : dict_.items) {
      const auto* text = std::get_if<std::string_view>(&document_[key]);
      if (text != nullptr && *text == name) {
        return true;
      }
    }
    return false;
  }

  const PickleSequence* tuple(std::string_view name) const {
    const auto* sequence = get<PickleSequence>(name);
    return sequence != nullptr && sequence->is_tuple ? sequence : nullptr;
  }

  Result<std::vector<std::int64_t>> ints(std::string_view name) const {
    const PickleSequence* sequence = tuple(name);
    if (sequence == nullptr) {
      return malformed(name);
    }
    std::vector<std::int64_t> numbers;
    for (const PickleIndex item : sequence->items) {
      const auto* number = std::get_if<std::int64_t>(&document_[item]);
      if (number == nullptr) {
        return malformed(name);
      }
      numbers.push_back(*number);
    }
    return numbers;
  }

  const PickleDocument& document() const { return document_; }

 private:
  const PickleDocument& document_;
  const PickleDict& dict_;
};

Result<HandleFields> tensor_fields(const Attributes& attributes) {
  const auto* dtype = attributes.get<PickleGlobal>("dtype");
  const auto* offset = attributes.get<std::int64_t>("storage_offset");
  const auto* device = attributes.get<std::string_view>("device_uuid");
  if (dtype == nullptr || dtype->module != "torch" || offset == nullptr || device == nullptr) {
    return malformed("dtype, offset or device");
  }
  Result<std::vector<std::int64_t>> shape = attributes.ints("shape");
  Result<std::vector<std::int64_t>> stride = attributes.ints("stride");
  if (!shape || !stride) {
    return shape ? stride.error() : shape.error();
  }
  HandleFields fields;
  fields.dtype_name = dtype->name;
  fields.shape = std::move(shape).value();
  fields.stride = std::move(stride).value();
  fields.storage_offset = *offset;
  fields.device_uuid = *device;
  return fields;
}

Result<SegmentFields> segment_fields(const Attributes& attributes) {
  const auto* name = attributes.get<std::string_view>("shm_name");
  const auto* bytes = attributes.get<std::int64_t>("nbytes");
  if (name == nullptr || bytes == nullptr) {
    return malformed("shm_name or nbytes");
  }
  return SegmentFields{*name, *bytes};
}

using Blob = std::span<const std::byte>;

// False when it is neither bytes nor None.
bool read_optional(const codec::PickleValue& value, std::optional<Blob>& to) {
  if (const auto* bytes = std::get_if<Blob>(&value); bytes != nullptr) {
    to = *bytes;
    return true;
  }
  return std::holds_alternative<codec::PickleNone>(value);
}

// torch's tuple: device, block, size, offset, counter's file and index, event, whether to wait.
Result<StorageFields> storage_fields(const Attributes& attributes) {
  constexpr std::size_t kItems = 8;
  const PickleSequence* handle = attributes.tuple("handle");
  if (handle == nullptr || handle->items.size() != kItems) {
    return malformed("handle of a CUDA storage");
  }
  const auto item = [&](std::size_t index) -> const codec::PickleValue& {
    return attributes.document()[handle->items[index]];
  };
  StorageFields fields;
  const auto* bytes = std::get_if<std::int64_t>(&item(2));
  const auto* offset = std::get_if<std::int64_t>(&item(3));
  const auto* index = std::get_if<std::int64_t>(&item(5));
  const auto* must_wait = std::get_if<bool>(&item(7));
  const bool has_flag = must_wait != nullptr || std::holds_alternative<codec::PickleNone>(item(7));
  if (bytes == nullptr || offset == nullptr || index == nullptr || !has_flag ||
      !read_optional(item(1), fields.block) || !read_optional(item(4), fields.counter_name) ||
      !read_optional(item(6), fields.event)) {
    return malformed("an item of a CUDA storage's handle");
  }
  fields.storage_bytes = *bytes;
  fields.block_offset = *offset;
  fields.counter_index = *index;
  fields.must_wait = must_wait != nullptr && *must_wait;
  return fields;
}

// The offset came with 0.5.5.
Result<AllocationFields> allocation_fields(const Attributes& attributes) {
  const auto* handle = attributes.get<Blob>("_ipc_handle_reserved");
  const auto* bytes = attributes.get<std::int64_t>("_nbytes");
  const auto* offset = attributes.get<std::int64_t>("_alloc_offset");
  if (handle == nullptr || bytes == nullptr ||
      (offset == nullptr && attributes.has("_alloc_offset"))) {
    return malformed("handle or size of a CUDA allocation");
  }
  return AllocationFields{*handle, *bytes, offset != nullptr ? *offset : 0};
}

template <typename Fields>
Result<HandleFields> with_memory(const Attributes& attributes,
                                 Result<Fields> (*read)(const Attributes&)) {
  Result<HandleFields> fields = tensor_fields(attributes);
  if (!fields) {
    return fields;
  }
  Result<Fields> memory = read(attributes);
  if (!memory) {
    return memory.error();
  }
  fields->memory = std::move(memory).value();
  return fields;
}

}  // namespace

Result<HandleFields> read_handle_pickle(std::span<const std::byte> body) {
  const auto globals = allowed_globals();
  const Result<PickleDocument> document = codec::read_pickle(body, globals, kLimits);
  if (!document) {
    return document.error();
  }
  if (document->bytes_read != body.size()) {
    return malformed("bytes after the pickle");
  }
  const auto* object = std::get_if<codec::PickleObject>(&(*document)[document->root]);
  if (object == nullptr || !object->state) {
    return malformed("not an object with attributes");
  }
  const auto* made_of = std::get_if<PickleGlobal>(&(*document)[object->global]);
  const auto* state = std::get_if<PickleDict>(&(*document)[*object->state]);
  if (made_of == nullptr || state == nullptr) {
    return malformed("not an object with attributes");
  }
  const Attributes attributes(*document, *state);
  if (made_of->name == kSegmentClass) {
    return with_memory(attributes, segment_fields);
  }
  if (made_of->name == kStorageClass) {
    return with_memory(attributes, storage_fields);
  }
  if (made_of->name == kAllocationClass) {
    return with_memory(attributes, allocation_fields);
  }
  return Error{Code::kUnsupported, "tensors as " + std::string(made_of->name)};
}

}  // namespace larder::devices
