// short_string.h - reads a string that no client makes longer than a bound.
//
// Reading checks that the whole string is UTF-8, which takes a tenth of a second where a peer sends
// one of a hundred megabytes. Here the length it announces is judged first, so the wire thread can
// look at any payload.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"
#include "codec/msgpack_reader.h"

namespace larder::protocol {

// kTooLarge beyond `bytes_max`, else as MsgpackReader::read_string().
inline Result<std::string_view> read_short_string(codec::MsgpackReader& reader,
                                                  std::size_t bytes_max) {
  constexpr std::size_t kHeadBytesMax = 5;
  codec::MsgpackReader ahead = reader;
  const Result<codec::MsgpackType> type = ahead.peek();
  if (type && *type == codec::MsgpackType::kString && ahead.skip() &&
      ahead.position() - reader.position() > bytes_max + kHeadBytesMax) {
    return Error{Code::kTooLarge, "a string is longer than any real one"};
  }
  Result<std::string_view> text = reader.read_string();
  if (text && text->size() > bytes_max) {
    return Error{Code::kTooLarge, "a string is longer than any real one"};
  }
  return text;
}

}  // namespace larder::protocol
