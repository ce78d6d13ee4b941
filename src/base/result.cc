#include "base/result.h"

namespace larder {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kMalformed:
      return "malformed";
    case Code::kInvalid:
      return "invalid";
    case Code::kTooLarge:
      return "too_large";
    case Code::kNoSpace:
      return "no_space";
    case Code::kNotFound:
      return "not_found";
    case Code::kMismatch:
      return "mismatch";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kBusy:
      return "busy";
    case Code::kSystem:
      return "system";
  }
  LARDER_UNREACHABLE();
}

}  // namespace larder
