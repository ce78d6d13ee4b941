// pickle_machine.h - Python's unpickling machine: a stack of values, marks in it, and a memo.
//
// Private to this room; pickle_reader.cc decodes the opcodes and drives it. Every operation either
// does what the opcode of that name does or fails; none reaches below the newest mark, as Python's
// does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/pickle_reader.h"

namespace larder::codec {

class PickleMachine {
 public:
  PickleMachine(std::span<const PickleGlobal> allowed_globals, const PickleLimits& limits)
      : allowed_globals_(allowed_globals), limits_(limits) {}

  Result<void> push(PickleValue value);
  Result<void> push_global(std::string_view module, std::string_view name);
  Result<void> stack_global();
  Result<void> mark();

  Result<void> make_tuple(std::size_t items);
  Result<void> make_sequence_from_mark(bool is_tuple);
  Result<void> append();
  Result<void> append_from_mark();
  Result<void> set_item();
  Result<void> set_items_from_mark();

  Result<void> call(bool makes_object);  // REDUCE, or NEWOBJ
  Result<void> build();
  Result<void> persistent_id();

  Result<void> memoize() { return put(memo_count_); }

  Result<void> put(std::uint64_t slot);
  Result<void> get(std::uint64_t slot);

  // STOP: the one value that is left. The machine is empty afterwards.
  Result<PickleDocument> stop();

 private:
  using Values = std::vector<PickleIndex>;

  // Opcodes never reach below the newest mark.
  std::size_t values_above_mark() const {
    return stack_.size() - (marks_.empty() ? 0 : marks_.back());
  }

  Result<void> push_again(PickleIndex index);
  Result<Values> pop(std::size_t count);
  Result<Values> pop_to_mark();
  void contain(std::span<const PickleIndex> values);
  Result<PickleIndex> growing(std::span<const PickleIndex> new_values) const;
  Result<void> make_sequence(bool is_tuple, Result<Values> items);
  Result<void> append_all(Result<Values> items);
  Result<void> set_all(Result<Values> keys_and_values);

  std::span<const PickleGlobal> allowed_globals_;
  PickleLimits limits_;
  PickleDocument document_;
  std::vector<bool> contained_;  // per value: part of another value, so it may not grow any more
  Values stack_;
  std::vector<std::size_t> marks_;
  Values memo_;
  std::size_t memo_count_ = 0;  // where MEMOIZE puts the next one: the number of slots in use
};

}  // namespace larder::codec
