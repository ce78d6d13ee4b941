#include "codec/pickle_machine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <variant>

namespace larder::codec {
namespace {

constexpr PickleIndex kNoMemo = std::numeric_limits<PickleIndex>::max();

Error malformed(const char* what) {
  return Error{Code::kMalformed, what};
}

Error too_few_values() {
  return malformed("pickle: an opcode needs more values than there are");
}

}  // namespace

Result<void> PickleMachine::push(PickleValue value) {
  if (document_.values.size() >= std::min<std::size_t>(limits_.values_max, kNoMemo)) {
    return Error{Code::kTooLarge, "pickle: too many values"};
  }
  document_.values.push_back(std::move(value));
  contained_.push_back(false);
  return push_again(static_cast<PickleIndex>(document_.values.size() - 1));
}

Result<void> PickleMachine::push_again(PickleIndex index) {
  if (stack_.size() >= limits_.stack_max) {
    return Error{Code::kTooLarge, "pickle: the stack is too deep"};
  }
  stack_.push_back(index);
  return {};
}

Result<void> PickleMachine::push_global(std::string_view module, std::string_view name) {
  const bool allowed = std::ranges::any_of(allowed_globals_, [&](const PickleGlobal& global) {
    return global.name == name && (global.module.empty() || global.module == module);
  });
  if (!allowed) {
    return Error{Code::kUnsupported, "pickle: a global that is not allowed"};
  }
  return push(PickleGlobal{module, name});
}

Result<void> PickleMachine::stack_global() {
  const Result<Values> names = pop(2);
  if (!names) {
    return names.error();
  }
  const auto* module = std::get_if<std::string_view>(&document_[names.value()[0]]);
  const auto* name = std::get_if<std::string_view>(&document_[names.value()[1]]);
  if (module == nullptr || name == nullptr) {
    return malformed("pickle: a global whose names are not str");
  }
  if (std::max(module->size(), name->size()) > limits_.global_bytes_max) {
    return Error{Code::kTooLarge, "pickle: a long global name"};
  }
  return push_global(*module, *name);
}

Result<PickleMachine::Values> PickleMachine::pop(std::size_t count) {
  if (values_above_mark() < count) {
    return too_few_values();
  }
  const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  std::vector<PickleIndex> values(first, stack_.end());
  stack_.erase(first, stack_.end());
  return values;
}

Result<PickleMachine::Values> PickleMachine::pop_to_mark() {
  if (marks_.empty()) {
    return malformed("pickle: an opcode needs a mark");
  }
  Result<Values> values = pop(values_above_mark());
  marks_.pop_back();
  return values;
}

void PickleMachine::contain(std::span<const PickleIndex> values) {
  for (const PickleIndex value : values) {
    contained_[value] = true;
  }
}

// The value on top of the stack, which is about to take in `new_values`. As nothing holds it, the
// only cycle that could arise is that it takes in itself.
Result<PickleIndex> PickleMachine::growing(std::span<const PickleIndex> new_values) const {
  if (values_above_mark() < 1) {
    return too_few_values();
  }
  const PickleIndex top = stack_.back();
  if (contained_[top] || std::ranges::find(new_values, top) != new_values.end()) {
    return malformed("pickle: a container that could contain itself");
  }
  return top;
}

Result<void> PickleMachine::make_sequence(bool is_tuple, Result<Values> items) {
  if (!items) {
    return items.error();
  }
  contain(items.value());
  return push(PickleSequence{is_tuple, std::move(items).value()});
}

Result<void> PickleMachine::append_all(Result<Values> items) {
  if (!items) {
    return items.error();
  }
  const Result<PickleIndex> list = growing(items.value());
  if (!list) {
    return list.error();
  }
  auto* sequence = std::get_if<PickleSequence>(&document_.values[list.value()]);
  if (sequence == nullptr || sequence->is_tuple) {
    return malformed("pickle: an append to something that is no list");
  }
  contain(items.value());
  sequence->items.insert(sequence->items.end(), items.value().begin(), items.value().end());
  return {};
}

Result<void> PickleMachine::set_all(Result<Values> keys_and_values) {
  if (!keys_and_values) {
    return keys_and_values.error();
  }
  const std::vector<PickleIndex>& items = keys_and_values.value();
  if (items.size() % 2 != 0) {
    return malformed("pickle: a dict key without a value");
  }
  const Result<PickleIndex> index = growing(items);
  if (!index) {
    return index.error();
  }
  auto* dict = std::get_if<PickleDict>(&document_.values[index.value()]);
  if (dict == nullptr) {
    return malformed("pickle: an item set in something that is no dict");
  }
  contain(items);
  for (std::size_t i = 0; i < items.size(); i += 2) {
    dict->items.emplace_back(items[i], items[i + 1]);
  }
  return {};
}

Result<void> PickleMachine::call(bool makes_object) {
  const Result<Values> popped = pop(2);
  if (!popped) {
    return popped.error();
  }
  const PickleIndex callee = popped.value()[0];
  const PickleIndex arguments = popped.value()[1];
  const auto* tuple = std::get_if<PickleSequence>(&document_[arguments]);
  if (!std::holds_alternative<PickleGlobal>(document_[callee]) || tuple == nullptr ||
      !tuple->is_tuple) {
    return malformed("pickle: a call of something other than a global with a tuple");
  }
  contain(popped.value());
  if (makes_object) {
    return push(PickleObject{callee, arguments, std::nullopt});
  }
  return push(PickleCall{callee, arguments});
}

Result<void> PickleMachine::build() {
  const Result<Values> state = pop(1);
  if (!state) {
    return state.error();
  }
  const Result<PickleIndex> index = growing(state.value());
  if (!index) {
    return index.error();
  }
  auto* object = std::get_if<PickleObject>(&document_.values[index.value()]);
  if (object == nullptr || object->state.has_value()) {
    return malformed("pickle: a state for something that takes none");
  }
  contain(state.value());
  object->state = state.value()[0];
  return {};
}

Result<void> PickleMachine::persistent_id() {
  const Result<Values> id = pop(1);
  if (!id) {
    return id.error();
  }
  contain(id.value());
  return push(PicklePersistentId{id.value()[0]});
}

Result<void> PickleMachine::put(std::uint64_t slot) {
  if (values_above_mark() < 1) {
    return too_few_values();
  }
  if (slot >= limits_.memo_max) {
    return Error{Code::kTooLarge, "pickle: too many memo entries"};
  }
  if (slot >= memo_.size()) {
    memo_.resize(slot + 1, kNoMemo);
  }
  memo_count_ += memo_[slot] == kNoMemo ? 1U : 0U;
  memo_[slot] = stack_.back();
  return {};
}

Result<void> PickleMachine::get(std::uint64_t slot) {
  if (slot >= memo_.size() || memo_[slot] == kNoMemo) {
    return malformed("pickle: a memo entry that was never put");
  }
  return push_again(memo_[slot]);
}

Result<void> PickleMachine::mark() {
  if (marks_.size() >= limits_.stack_max) {
    return Error{Code::kTooLarge, "pickle: too many marks"};
  }
  marks_.push_back(stack_.size());
  return {};
}

Result<void> PickleMachine::make_tuple(std::size_t items) {
  return make_sequence(true, pop(items));
}

Result<void> PickleMachine::make_sequence_from_mark(bool is_tuple) {
  return make_sequence(is_tuple, pop_to_mark());
}

Result<void> PickleMachine::append() {
  return append_all(pop(1));
}

Result<void> PickleMachine::append_from_mark() {
  return append_all(pop_to_mark());
}

Result<void> PickleMachine::set_item() {
  return set_all(pop(2));
}

Result<void> PickleMachine::set_items_from_mark() {
  return set_all(pop_to_mark());
}

Result<PickleDocument> PickleMachine::stop() {
  if (stack_.size() != 1 || !marks_.empty()) {
    return malformed("pickle: STOP with more or less than one value");
  }
  document_.root = stack_.front();
  return std::move(document_);
}

}  // namespace larder::codec
