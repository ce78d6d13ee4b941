// frames.h - a request's payload frames, and how whole payloads are read.
//
// Each payload frame is one complete msgpack value. Fields inside maps and lists are strict; a
// payload that is declared int or bool as a whole is coerced from 0.4.7 on, as Python's int() and
// bool() would (wire.md section 4). All functions are pure; views point into the frames.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "codec/msgpack_reader.h"
#include "protocol/release.h"

namespace larder::protocol {

using Frame = std::span<const std::byte>;
using Frames = std::span<const Frame>;  // payloads only: no uid, no operation

// kMalformed unless there are exactly `count` payloads.
Result<void> expect_count(Frames frames, std::size_t count);

// Whole payloads. Each fails on trailing bytes.
Result<std::int64_t> whole_int(Frame frame, Release release);  // saturates at the ends of int64
Result<std::uint64_t> whole_id(Frame frame,
                               Release release);  // an instance id: any int, as 64 bits
Result<std::optional<std::uint64_t>> whole_optional_id(Frame frame);
Result<bool> whole_bool(Frame frame, Release release);
Result<double> whole_float(Frame frame);
Result<std::string_view> whole_string(Frame frame);
Result<std::span<const std::byte>> whole_binary(Frame frame);

// Fields. An int beyond int64 saturates; ids keep their 64 bits.
std::int64_t saturate(const codec::MsgpackInt& value);
Result<std::int64_t> field_int(codec::MsgpackReader& reader);
Result<std::optional<std::int64_t>> field_optional_int(codec::MsgpackReader& reader);
Result<std::string> field_string(codec::MsgpackReader& reader);

// Runs `read` on a reader over the frame and fails on trailing bytes.
template <typename Read>
auto read_whole(Frame frame, Read read) -> decltype(read(std::declval<codec::MsgpackReader&>())) {
  codec::MsgpackReader reader(frame);
  auto value = read(reader);
  if (value.has_value() && !reader.at_end()) {
    return Error{Code::kMalformed, "bytes after the payload"};
  }
  return value;
}

// Walks a map with string keys; `field(key, reader)` reads the value of a known key or skips an
// unknown one.
template <typename Field>
Result<void> read_map(codec::MsgpackReader& reader, Field field) {
  const Result<std::size_t> pairs = reader.read_map_header();
  if (!pairs) {
    return pairs.error();
  }
  for (std::size_t i = 0; i < *pairs; ++i) {
    const Result<std::string_view> key = reader.read_string();
    if (!key) {
      return key.error();
    }
    if (Result<void> read = field(*key, reader); !read) {
      return read;
    }
  }
  return {};
}

// Walks an array; `element(reader)` reads one element.
template <typename Element>
Result<void> read_array(codec::MsgpackReader& reader, Element element) {
  const Result<std::size_t> count = reader.read_array_header();
  if (!count) {
    return count.error();
  }
  for (std::size_t i = 0; i < *count; ++i) {
    if (Result<void> read = element(reader); !read) {
      return read;
    }
  }
  return {};
}

// Moves a field's value into place, or passes its error on.
template <typename T, typename U>
Result<void> assign(T& to, Result<U> value) {
  if (!value) {
    return value.error();
  }
  to = std::move(*value);
  return {};
}

}  // namespace larder::protocol
