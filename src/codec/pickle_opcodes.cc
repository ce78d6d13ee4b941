#include "codec/pickle_opcodes.h"

namespace larder::codec {

std::optional<PickleArgument> argument_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBinInt1:
    case Opcode::kBinGet:
    case Opcode::kBinPut:
    case Opcode::kProto:
      return PickleArgument{.bytes = 1};
    case Opcode::kBinInt2:
      return PickleArgument{.bytes = 2};
    case Opcode::kBinInt:
    case Opcode::kLongBinGet:
    case Opcode::kLongBinPut:
      return PickleArgument{.bytes = 4};
    case Opcode::kFrame:
      return PickleArgument{.bytes = 8};
    case Opcode::kShortBinBytes:
    case Opcode::kShortBinUnicode:
    case Opcode::kLong1:
      return PickleArgument{.length_bytes = 1};
    case Opcode::kBinBytes:
    case Opcode::kBinUnicode:
      return PickleArgument{.length_bytes = 4};
    case Opcode::kBinBytes8:
    case Opcode::kBinUnicode8:
      return PickleArgument{.length_bytes = 8};
    case Opcode::kGlobal:
      return PickleArgument{.lines = 2};
    case Opcode::kMark:
    case Opcode::kStop:
    case Opcode::kEmptyTuple:
    case Opcode::kNone:
    case Opcode::kBinPersId:
    case Opcode::kReduce:
    case Opcode::kEmptyList:
    case Opcode::kAppend:
    case Opcode::kBuild:
    case Opcode::kAppends:
    case Opcode::kList:
    case Opcode::kSetItem:
    case Opcode::kTuple:
    case Opcode::kSetItems:
    case Opcode::kEmptyDict:
    case Opcode::kNewObj:
    case Opcode::kTuple1:
    case Opcode::kTuple2:
    case Opcode::kTuple3:
    case Opcode::kNewTrue:
    case Opcode::kNewFalse:
    case Opcode::kStackGlobal:
    case Opcode::kMemoize:
      return PickleArgument{};
  }
  return std::nullopt;
}

}  // namespace larder::codec
