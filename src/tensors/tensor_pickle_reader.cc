#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "codec/pickle_reader.h"
#include "tensors/storage_pickle.h"
#include "tensors/tensor_pickle.h"

namespace larder::tensors {
namespace {

using codec::PickleCall;
using codec::PickleDocument;
using codec::PickleGlobal;
using codec::PickleIndex;
using codec::PickleSequence;

static_assert(std::endian::native == std::endian::little, "payloads are used as they are");

constexpr PickleGlobal kRebuildV2 = {"torch._utils", "_rebuild_tensor_v2"};
constexpr PickleGlobal kRebuildV3 = {"torch._utils", "_rebuild_tensor_v3"};
constexpr PickleGlobal kLoadFromBytes = {"torch.storage", "_load_from_bytes"};
constexpr PickleGlobal kOrderedDict = {"collections", "OrderedDict"};
constexpr std::size_t kFixedGlobals = 4;

std::array<PickleGlobal, kFixedGlobals + kDtypeCount> allowed_globals() {
  std::array<PickleGlobal, kFixedGlobals + kDtypeCount> globals = {
      kRebuildV2, kRebuildV3, kLoadFromBytes, kOrderedDict};
  for (std::size_t i = 0; i < kDtypeCount; ++i) {
    globals[kFixedGlobals + i] = PickleGlobal{"torch", name_of(static_cast<Dtype>(i))};
  }
  return globals;
}

// A tensor of eight dimensions with nothing shared is about 40 values; the streams of real clients
// share most of them.
codec::PickleLimits limits_for(std::size_t tensors_max) {
  constexpr std::size_t kTensorsMax = std::size_t{1} << 24;
  const std::size_t tensors = tensors_max < kTensorsMax ? tensors_max : kTensorsMax;
  return codec::PickleLimits{.values_max = 64 * (tensors + 1),
                             .memo_max = 64 * (tensors + 1),
                             .stack_max = tensors + 64,
                             .global_bytes_max = 64};
}

Error malformed(const char* what) {
  return Error{Code::kMalformed, what};
}

// The arguments of node `index` if it is a call of `global`, else nullptr.
const std::vector<PickleIndex>* arguments_of(const PickleDocument& document,
                                             PickleIndex index,
                                             const PickleGlobal& global) {
  const auto* call = std::get_if<PickleCall>(&document[index]);
  if (call == nullptr || std::get<PickleGlobal>(document[call->global]) != global) {
    return nullptr;
  }
  return &std::get<PickleSequence>(document[call->arguments]).items;
}

// A tuple of ints none of which is negative: a size or a stride.
Result<std::vector<std::int64_t>> dimensions(const PickleDocument& document, PickleIndex index) {
  const auto* tuple = std::get_if<PickleSequence>(&document[index]);
  if (tuple == nullptr || !tuple->is_tuple) {
    return malformed("tensor: a size or stride that is no tuple");
  }
  if (tuple->items.size() > kDimensionsMax) {
    return Error{Code::kTooLarge, "tensor: too many dimensions"};
  }
  std::vector<std::int64_t> numbers;
  numbers.reserve(tuple->items.size());
  for (const PickleIndex item : tuple->items) {
    const auto* number = std::get_if<std::int64_t>(&document[item]);
    if (number == nullptr || *number < 0) {
      return malformed("tensor: a size or stride that is no positive int");
    }
    numbers.push_back(*number);
  }
  return numbers;
}

// Whether every element lies inside the storage. A tensor without elements touches nothing.
Result<void> check_bounds(const TensorView& tensor) {
  for (const std::int64_t size : tensor.shape) {
    if (size == 0) {
      return {};
    }
  }
  std::int64_t last = tensor.offset;
  auto count = static_cast<std::int64_t>(item_bytes(tensor.dtype));
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    std::int64_t step = 0;
    if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &step) ||
        __builtin_add_overflow(last, step, &last) ||
        __builtin_mul_overflow(count, tensor.shape[i], &count)) {
      return malformed("tensor: a size that cannot be counted");
    }
  }
  const std::size_t elements = tensor.storage.size() / item_bytes(tensor.dtype);
  if (static_cast<std::uint64_t>(last) >= elements) {
    return malformed("tensor: reaches beyond its storage");
  }
  return {};
}

// Where a list comes from.
struct ListInput {
  std::span<const std::byte> pickle;
  std::span<const CutBytes> cuts;
};

class ListReader {
 public:
  ListReader(const PickleDocument& document, const ListInput& input, std::size_t storage_bytes_max)
      : document_(document), input_(input), storage_bytes_max_(storage_bytes_max) {}

  Result<TensorView> tensor(PickleIndex index);

  // Whether every cut was a storage's.
  bool has_used_all_cuts() const { return cuts_used_ == input_.cuts.size(); }

 private:
  Result<const PickledStorage*> storage(PickleIndex index);
  RawBytesElsewhere find_cut(std::span<const std::byte> blob) const;
  Result<Dtype> dtype(PickleIndex index) const;
  bool is_plain(const std::vector<PickleIndex>& arguments, std::size_t metadata_at) const;

  const PickleDocument& document_;
  const ListInput input_;
  std::size_t storage_bytes_max_;
  std::size_t cuts_used_ = 0;
  // By the value that holds the bytes, so that a blob is read once however many tensors refer to
  // it.
  std::unordered_map<PickleIndex, PickledStorage> storages_;
};

Result<const PickledStorage*> ListReader::storage(PickleIndex index) {
  const std::vector<PickleIndex>* arguments = arguments_of(document_, index, kLoadFromBytes);
  if (arguments == nullptr || arguments->size() != 1) {
    return malformed("tensor: its storage is not loaded from bytes");
  }
  const PickleIndex blob_at = arguments->front();
  const auto* blob = std::get_if<std::span<const std::byte>>(&document_[blob_at]);
  if (blob == nullptr) {
    return malformed("tensor: its storage is not loaded from bytes");
  }
  auto found = storages_.find(blob_at);
  if (found == storages_.end()) {
    const RawBytesElsewhere cut = find_cut(*blob);
    Result<PickledStorage> read = read_storage(*blob, cut, storage_bytes_max_);
    if (!read) {
      return read.error();
    }
    cuts_used_ += cut.has_value() ? 1U : 0U;
    found = storages_.emplace(blob_at, read.value()).first;
  }
  return &found->second;
}

RawBytesElsewhere ListReader::find_cut(std::span<const std::byte> blob) const {
  const auto end = static_cast<std::size_t>(blob.data() + blob.size() - input_.pickle.data());
  const auto cut = std::ranges::lower_bound(input_.cuts, end, {}, &CutBytes::position);
  return cut != input_.cuts.end() && cut->position == end ? RawBytesElsewhere(cut->bytes)
                                                          : std::nullopt;
}

Result<Dtype> ListReader::dtype(PickleIndex index) const {
  const auto* global = std::get_if<PickleGlobal>(&document_[index]);
  if (global == nullptr || global->module != "torch") {
    return malformed("tensor: no dtype");
  }
  const std::optional<Dtype> dtype = dtype_from_name(global->name);
  if (!dtype.has_value()) {
    return malformed("tensor: an unknown dtype");
  }
  return *dtype;
}

// requires_grad and the hooks mean nothing here but must be what they are called. Metadata says
// that the bytes stand for other values (conjugated, negated), so none may be there.
bool ListReader::is_plain(const std::vector<PickleIndex>& arguments,
                          std::size_t metadata_at) const {
  const std::vector<PickleIndex>* hooks = arguments_of(document_, arguments[5], kOrderedDict);
  if (!std::holds_alternative<bool>(document_[arguments[4]]) || hooks == nullptr ||
      !hooks->empty()) {
    return false;
  }
  if (arguments.size() == metadata_at) {
    return true;
  }
  const auto* metadata = std::get_if<codec::PickleDict>(&document_[arguments[metadata_at]]);
  return std::holds_alternative<codec::PickleNone>(document_[arguments[metadata_at]]) ||
         (metadata != nullptr && metadata->items.empty());
}

Result<TensorView> ListReader::tensor(PickleIndex index) {
  const std::vector<PickleIndex>* v3 = arguments_of(document_, index, kRebuildV3);
  const std::vector<PickleIndex>* arguments =
      v3 != nullptr ? v3 : arguments_of(document_, index, kRebuildV2);
  const std::size_t expected = v3 != nullptr ? 7 : 6;
  if (arguments == nullptr || arguments->size() < expected || arguments->size() > expected + 1 ||
      !is_plain(*arguments, expected)) {
    return malformed("tensor: not a plain tensor");
  }
  const Result<const PickledStorage*> stored = storage((*arguments)[0]);
  if (!stored) {
    return stored.error();
  }
  TensorView view;
  if (v3 != nullptr) {
    const Result<Dtype> named = dtype((*arguments)[6]);
    if (!named) {
      return named.error();
    }
    view.dtype = named.value();
  } else if (stored.value()->dtype.has_value()) {
    view.dtype = *stored.value()->dtype;
  } else {
    return malformed("tensor: no dtype");
  }
  const auto* offset = std::get_if<std::int64_t>(&document_[(*arguments)[1]]);
  Result<std::vector<std::int64_t>> shape = dimensions(document_, (*arguments)[2]);
  Result<std::vector<std::int64_t>> strides = dimensions(document_, (*arguments)[3]);
  if (!shape || !strides) {
    return shape ? strides.error() : shape.error();
  }
  if (offset == nullptr || *offset < 0 || shape.value().size() != strides.value().size()) {
    return malformed("tensor: offset, size and stride do not fit together");
  }
  view.offset = *offset;
  view.shape = std::move(shape).value();
  view.strides = std::move(strides).value();
  view.storage = stored.value()->bytes;
  if (const Result<void> inside = check_bounds(view); !inside) {
    return inside.error();
  }
  return view;
}

}  // namespace

Result<std::vector<TensorView>> read_tensor_list(std::span<const std::byte> pickle,
                                                 const TensorListLimits& limits,
                                                 std::span<const CutBytes> cuts) {
  const Result<PickleDocument> read =
      codec::read_pickle(pickle, allowed_globals(), limits_for(limits.tensors_max));
  if (!read) {
    const bool too_large = read.error().code == Code::kTooLarge;
    return Error{too_large ? Code::kTooLarge : Code::kMalformed, read.error().detail};
  }
  const PickleDocument& document = read.value();
  const auto* list = std::get_if<PickleSequence>(&document[document.root]);
  if (list == nullptr || list->is_tuple || document.bytes_read != pickle.size()) {
    return malformed("tensor list: not one list and nothing else");
  }
  if (list->items.size() > limits.tensors_max) {
    return Error{Code::kTooLarge, "tensor list: too many tensors"};
  }
  ListReader reader(document, {pickle, cuts}, limits.storage_bytes_max);
  std::vector<TensorView> tensors;
  tensors.reserve(list->items.size());
  for (const PickleIndex item : list->items) {
    Result<TensorView> tensor = reader.tensor(item);
    if (!tensor) {
      return tensor.error();
    }
    tensors.push_back(std::move(tensor).value());
  }
  if (!reader.has_used_all_cuts()) {
    return malformed("tensor list: bytes were cut out that are no storage's");
  }
  return tensors;
}

}  // namespace larder::tensors
