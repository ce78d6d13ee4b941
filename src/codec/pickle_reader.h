// pickle_reader.h - a closed-world reader of Python pickles: builds a value tree, calls nothing.
//
// Knows the opcodes that pickles of tensor lists and of device memory handles contain, protocols 2
// to 5, and refuses every other one. A GLOBAL or STACK_GLOBAL must be on the caller's whitelist;
// REDUCE does not call it but makes a node {global, arguments} for the caller to interpret, and
// NEWOBJ with BUILD a node {global, arguments, state}. So one reader serves several kinds of
// payload, each with a whitelist of its own.
//
// Values live in the PickleDocument and refer to each other by index; a memo reference is the same
// index again, so sharing is visible and a bomb of nested references costs nothing. Strings and
// bytes are views into the input. Pure; any thread; the input outlives the document.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"

namespace larder::codec {

struct PickleLimits {
  std::size_t values_max = 1U << 20;   // nodes of the tree
  std::size_t memo_max = 1U << 18;     // memo slots; never more than the input has bytes
  std::size_t stack_max = 1U << 16;    // depth of the machine's stack
  std::size_t global_bytes_max = 256;  // of a module's or a name's text
};

struct PickleGlobal {
  std::string_view module;
  std::string_view name;

  bool operator==(const PickleGlobal&) const = default;
};

using PickleIndex = std::uint32_t;

struct PickleNone {};

struct PickleSequence {  // list or tuple
  bool is_tuple;
  std::vector<PickleIndex> items;
};

struct PickleDict {
  std::vector<std::pair<PickleIndex, PickleIndex>> items;
};

struct PickleCall {  // REDUCE: what would have been called; arguments is a tuple
  PickleIndex global;
  PickleIndex arguments;
};

struct PickleObject {  // NEWOBJ: an instance made without a call; BUILD adds the state, at most
                       // once
  PickleIndex global;
  PickleIndex arguments;
  std::optional<PickleIndex> state;
};

struct PicklePersistentId {
  PickleIndex id;
};

struct PickleBigInt {  // LONG1 of more than 8 bytes, little-endian two's complement
  std::span<const std::byte> little_endian;
};

using PickleValue = std::variant<PickleNone,
                                 bool,
                                 std::int64_t,
                                 PickleBigInt,
                                 std::string_view,
                                 std::span<const std::byte>,
                                 PickleSequence,
                                 PickleDict,
                                 PickleGlobal,
                                 PickleCall,
                                 PickleObject,
                                 PicklePersistentId>;

struct PickleDocument {
  std::vector<PickleValue> values;
  PickleIndex root = 0;
  std::size_t bytes_read = 0;  // up to and including STOP; what follows is the caller's

  const PickleValue& operator[](PickleIndex index) const { return values[index]; }
};

// kMalformed for a stream that does not end in one value and STOP; kUnsupported for an opcode or a
// global outside what is allowed; kTooLarge beyond a limit. A tree cannot contain itself: a list,
// dict or object that already is part of another value cannot grow any more (kMalformed), which no
// pickler of a tree asks for. An allowed global with an empty module allows that name in any
// module, for classes that moved from release to release.
Result<PickleDocument> read_pickle(std::span<const std::byte> input,
                                   std::span<const PickleGlobal> allowed_globals,
                                   const PickleLimits& limits);

}  // namespace larder::codec
