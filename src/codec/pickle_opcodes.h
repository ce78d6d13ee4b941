// pickle_opcodes.h - the opcodes of pickles that are read here, and what follows each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace larder::codec {

enum class Opcode : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

// What follows an opcode. At most one of the three is not 0.
struct PickleArgument {
  std::uint8_t bytes = 0;         // so many
  std::uint8_t length_bytes = 0;  // a little-endian length of so many bytes, and that many bytes
  std::uint8_t lines = 0;         // so many lines, each with its newline
};

// nullopt: not an opcode that is read here.
std::optional<PickleArgument> argument_of(Opcode opcode);

}  // namespace larder::codec
