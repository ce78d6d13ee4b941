#include "tensors/storage_pickle.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>

#include "codec/pickle_reader.h"

namespace larder::tensors {
namespace {

using codec::PickleDocument;
using codec::PickleGlobal;
using codec::PickleIndex;
using codec::PickleSequence;

constexpr std::array<std::uint8_t, 10> kMagic = {
    0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr std::int64_t kVersion = 1001;

// The real streams hold at most 15 values; a version of torch may add a few.
constexpr codec::PickleLimits kStreamLimits = {
    .values_max = 64, .memo_max = 64, .stack_max = 64, .global_bytes_max = 64};

struct StorageType {
  PickleGlobal global;
  std::optional<Dtype> dtype;
};

// clang-format off
constexpr auto kStorageTypes = std::to_array<StorageType>({
    {{"torch", "BoolStorage"},             Dtype::kBool},
    {{"torch", "ByteStorage"},             Dtype::kUint8},
    {{"torch", "CharStorage"},             Dtype::kInt8},
    {{"torch", "ShortStorage"},            Dtype::kInt16},
    {{"torch", "IntStorage"},              Dtype::kInt32},
    {{"torch", "LongStorage"},             Dtype::kInt64},
    {{"torch", "HalfStorage"},             Dtype::kFloat16},
    {{"torch", "BFloat16Storage"},         Dtype::kBfloat16},
    {{"torch", "FloatStorage"},            Dtype::kFloat32},
    {{"torch", "DoubleStorage"},           Dtype::kFloat64},
    {{"torch", "ComplexFloatStorage"},     Dtype::kComplex64},
    {{"torch", "ComplexDoubleStorage"},    Dtype::kComplex128},
    {{"torch.storage", "UntypedStorage"},  std::nullopt},
});

// clang-format on

constexpr std::array<PickleGlobal, kStorageTypes.size()> storage_globals() {
  std::array<PickleGlobal, kStorageTypes.size()> globals{};
  for (std::size_t i = 0; i < globals.size(); ++i) {
    globals[i] = kStorageTypes[i].global;
  }
  return globals;
}

constexpr auto kStorageGlobals = storage_globals();

struct StorageDescription {
  std::optional<Dtype> dtype;
  std::string_view key;
  std::uint64_t count;
};

Error malformed(const char* what) {
  return Error{Code::kMalformed, what};
}

// The next of the five pickles; moves `rest` past it.
Result<PickleDocument> next_pickle(std::span<const std::byte>& rest) {
  Result<PickleDocument> document = codec::read_pickle(rest, kStorageGlobals, kStreamLimits);
  if (document) {
    rest = rest.subspan(document.value().bytes_read);
  }
  return document;
}

template <typename T>
bool equals(const PickleDocument& document, PickleIndex index, const T& value) {
  const T* found = std::get_if<T>(&document[index]);
  return found != nullptr && *found == value;
}

bool is_magic(const PickleDocument& document) {
  const auto* number = std::get_if<codec::PickleBigInt>(&document[document.root]);
  return number != nullptr &&
         std::ranges::equal(
             number->little_endian, kMagic, [](std::byte byte, std::uint8_t expected) {
               return std::to_integer<std::uint8_t>(byte) == expected;
             });
}

// A dict {protocol_version: 1001, little_endian: True, ...}; its type sizes are not used by
// anybody.
bool is_little_endian_writer(const PickleDocument& document) {
  const auto* dict = std::get_if<codec::PickleDict>(&document[document.root]);
  if (dict == nullptr) {
    return false;
  }
  bool version_seen = false;
  bool order_seen = false;
  for (const auto& [key, value] : dict->items) {
    if (equals(document, key, std::string_view("protocol_version"))) {
      version_seen = equals(document, value, kVersion);
      if (!version_seen) {
        return false;
      }
    } else if (equals(document, key, std::string_view("little_endian"))) {
      order_seen = equals(document, value, true);
      if (!order_seen) {
        return false;
      }
    }
  }
  return version_seen && order_seen;
}

// The persistent id ("storage", type, key, "cpu", count, None).
Result<StorageDescription> description(const PickleDocument& document) {
  const auto* persistent = std::get_if<codec::PicklePersistentId>(&document[document.root]);
  const auto* fields =
      persistent == nullptr ? nullptr : std::get_if<PickleSequence>(&document[persistent->id]);
  if (fields == nullptr || !fields->is_tuple || fields->items.size() != 6) {
    return malformed("storage: no description of six fields");
  }
  const std::vector<PickleIndex>& items = fields->items;
  const auto* global = std::get_if<PickleGlobal>(&document[items[1]]);
  const auto* key = std::get_if<std::string_view>(&document[items[2]]);
  const auto* count = std::get_if<std::int64_t>(&document[items[4]]);
  if (!equals(document, items[0], std::string_view("storage")) || global == nullptr ||
      key == nullptr || !equals(document, items[3], std::string_view("cpu")) || count == nullptr ||
      *count < 0 || !std::holds_alternative<codec::PickleNone>(document[items[5]])) {
    return malformed("storage: a description that is not one of a CPU storage");
  }
  const auto* type = std::ranges::find(kStorageTypes, *global, &StorageType::global);
  if (type == kStorageTypes.end()) {
    return malformed("storage: not a storage type");
  }
  return StorageDescription{type->dtype, *key, static_cast<std::uint64_t>(*count)};
}

bool is_list_of_key(const PickleDocument& document, std::string_view key) {
  const auto* list = std::get_if<PickleSequence>(&document[document.root]);
  return list != nullptr && !list->is_tuple && list->items.size() == 1 &&
         equals(document, list->items[0], key);
}

// What follows the pickles: the count once more, and exactly that many elements.
Result<std::span<const std::byte>> raw_bytes(std::span<const std::byte> rest,
                                             RawBytesElsewhere elsewhere,
                                             const StorageDescription& storage,
                                             std::size_t bytes_max) {
  if (rest.size() < sizeof(std::uint64_t)) {
    return malformed("storage: ends before its count");
  }
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < sizeof(count); ++i) {
    count |= std::to_integer<std::uint64_t>(rest[i]) << (8 * i);
  }
  const std::span<const std::byte> behind = rest.subspan(sizeof(count));
  if (elsewhere.has_value() && !behind.empty()) {
    return malformed("storage: bytes that should be elsewhere");
  }
  const std::span<const std::byte> bytes = elsewhere.value_or(behind);
  const std::size_t element_bytes = storage.dtype.has_value() ? item_bytes(*storage.dtype) : 1;
  if (count != storage.count || bytes.size() % element_bytes != 0 ||
      bytes.size() / element_bytes != count) {
    return malformed("storage: its size is not the one announced");
  }
  if (bytes.size() > bytes_max) {
    return Error{Code::kTooLarge, "storage: more bytes than allowed"};
  }
  return bytes;
}

}  // namespace

Result<PickledStorage> read_storage(std::span<const std::byte> blob,
                                    RawBytesElsewhere elsewhere,
                                    std::size_t bytes_max) {
  std::span<const std::byte> rest = blob;
  const Result<PickleDocument> magic = next_pickle(rest);
  if (!magic || !is_magic(magic.value())) {
    return malformed("storage: no magic number");
  }
  const Result<PickleDocument> version = next_pickle(rest);
  if (!version || !equals(version.value(), version.value().root, kVersion)) {
    return malformed("storage: an unknown version");
  }
  const Result<PickleDocument> writer = next_pickle(rest);
  if (!writer || !is_little_endian_writer(writer.value())) {
    return malformed("storage: not written on a little-endian machine");
  }
  const Result<PickleDocument> described = next_pickle(rest);
  if (!described) {
    return malformed("storage: no description");
  }
  const Result<StorageDescription> storage = description(described.value());
  if (!storage) {
    return storage.error();
  }
  const Result<PickleDocument> keys = next_pickle(rest);
  if (!keys || !is_list_of_key(keys.value(), storage.value().key)) {
    return malformed("storage: the list of keys does not name it");
  }
  const Result<std::span<const std::byte>> bytes =
      raw_bytes(rest, elsewhere, storage.value(), bytes_max);
  if (!bytes) {
    return bytes.error();
  }
  return PickledStorage{storage.value().dtype, bytes.value()};
}

}  // namespace larder::tensors
