// Any bytes, once with a whitelist of tensor lists and once with one of device handles: every
// reference of the tree is inside it, every global is allowed, text is UTF-8, and the tree has no
// cycle.
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "codec/pickle_reader.h"
#include "codec/utf8.h"

namespace {

using larder::codec::PickleDocument;
using larder::codec::PickleGlobal;
using larder::codec::PickleIndex;
using larder::codec::PickleValue;

constexpr larder::codec::PickleLimits kLimits = {
    .values_max = 4096, .memo_max = 1024, .stack_max = 2048, .global_bytes_max = 64};

constexpr std::array<PickleGlobal, 5> kTensorGlobals = {{{"torch._utils", "_rebuild_tensor_v2"},
                                                         {"torch._utils", "_rebuild_tensor_v3"},
                                                         {"torch.storage", "_load_from_bytes"},
                                                         {"collections", "OrderedDict"},
                                                         {"torch", "bfloat16"}}};
constexpr std::array<PickleGlobal, 2> kHandleGlobals = {
    {{"", "CpuShmTensorWrapper"}, {"torch", "bfloat16"}}};

std::vector<PickleIndex> references_of(const PickleValue& value) {
  using namespace larder::codec;
  if (const auto* sequence = std::get_if<PickleSequence>(&value)) {
    return sequence->items;
  }
  std::vector<PickleIndex> references;
  if (const auto* dict = std::get_if<PickleDict>(&value)) {
    for (const auto& [key, item] : dict->items) {
      references.push_back(key);
      references.push_back(item);
    }
  } else if (const auto* call = std::get_if<PickleCall>(&value)) {
    references = {call->global, call->arguments};
  } else if (const auto* object = std::get_if<PickleObject>(&value)) {
    references = {object->global, object->arguments};
    if (object->state.has_value()) {
      references.push_back(*object->state);
    }
  } else if (const auto* persistent = std::get_if<PicklePersistentId>(&value)) {
    references = {persistent->id};
  }
  return references;
}

// Depth first without recursion; a reference to a value that is still open closes a cycle.
void check_no_cycle(const std::vector<std::vector<PickleIndex>>& references) {
  enum class Visit : std::uint8_t { kNew, kOpen, kDone };
  std::vector<Visit> visits(references.size(), Visit::kNew);
  for (std::size_t start = 0; start < references.size(); ++start) {
    std::vector<std::pair<std::size_t, std::size_t>> path;  // value, its next reference
    if (visits[start] == Visit::kNew) {
      visits[start] = Visit::kOpen;
      path.emplace_back(start, 0);
    }
    while (!path.empty()) {
      auto& [value, next] = path.back();
      if (next == references[value].size()) {
        visits[value] = Visit::kDone;
        path.pop_back();
        continue;
      }
      const PickleIndex inner = references[value][next++];
      LARDER_CHECK(visits[inner] != Visit::kOpen);
      if (visits[inner] == Visit::kNew) {
        visits[inner] = Visit::kOpen;
        path.emplace_back(inner, 0);
      }
    }
  }
}

void check_document(const PickleDocument& document,
                    std::span<const PickleGlobal> allowed,
                    std::size_t size) {
  LARDER_CHECK(document.root < document.values.size());
  LARDER_CHECK(document.bytes_read <= size && document.values.size() <= kLimits.values_max);
  std::vector<std::vector<PickleIndex>> references;
  std::size_t count = 0;
  for (const PickleValue& value : document.values) {
    references.push_back(references_of(value));
    for (const PickleIndex reference : references.back()) {
      LARDER_CHECK(reference < document.values.size());
    }
    count += references.back().size();
    if (const auto* text = std::get_if<std::string_view>(&value)) {
      LARDER_CHECK(larder::codec::is_valid_utf8(*text));
    }
    if (const auto* global = std::get_if<PickleGlobal>(&value)) {
      bool found = false;
      for (const PickleGlobal& entry : allowed) {
        found = found || (entry.name == global->name &&
                          (entry.module.empty() || entry.module == global->module));
      }
      LARDER_CHECK(found);
    }
  }
  LARDER_CHECK(count <= 3 * size);  // linear in the input
  check_no_cycle(references);
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  for (const std::span<const PickleGlobal> allowed :
       {std::span<const PickleGlobal>(kTensorGlobals),
        std::span<const PickleGlobal>(kHandleGlobals)}) {
    const auto document = larder::codec::read_pickle(input, allowed, kLimits);
    if (document) {
      check_document(document.value(), allowed, size);
    }
  }
  return 0;
}
