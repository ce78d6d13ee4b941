// msgpack_reader.h - a bounds-checked msgpack reader over a span.
//
// Reads one value after the other from bytes that a peer sent. Nothing is copied: strings and
// binaries are views into the input. Every read either succeeds and moves past the value, or fails
// and the reader must not be used further. It never recurses deeper than kDepthMax, and never
// allocates by a length the peer announced without having its bytes. One thread; the input outlives
// the reader and every view it gave out.
//
// The strict readers follow msgspec's rules for fields of structs and lists: any width of int in
// [-2^63, 2^64-1], no bool for int, no float for int, str is valid UTF-8 and never bin. Coercions
// of whole payloads are protocol/'s business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "codec/utf8.h"

namespace larder::codec {

enum class MsgpackType { kNil, kBool, kInt, kFloat, kString, kBinary, kArray, kMap, kExt };

// An integer of msgpack's full range [-2^63, 2^64-1].
struct MsgpackInt {
  bool negative = false;
  std::uint64_t bits = 0;  // two's complement when negative

  bool operator==(const MsgpackInt&) const = default;
};

struct MsgpackExt {
  std::int8_t type;
  std::span<const std::byte> body;
};

class MsgpackReader {
 public:
  static constexpr int kDepthMax = 64;  // of skip()

  explicit MsgpackReader(std::span<const std::byte> input) : input_(input) {}

  bool at_end() const { return position_ == input_.size(); }

  std::size_t position() const { return position_; }

  std::size_t input_bytes() const { return input_.size(); }

  // The type of the next value, without moving. kMalformed at the end of the input and for the
  // unused byte c1.
  Result<MsgpackType> peek() const;

  Result<void> read_nil();
  Result<bool> read_bool();
  Result<MsgpackInt> read_int();
  Result<std::int64_t> read_int64();    // kInvalid outside the type
  Result<std::uint64_t> read_uint64();  // kInvalid when negative
  Result<double> read_float();          // float32, float64 or any int, as msgspec does
  Result<std::string_view> read_string();
  Result<std::span<const std::byte>> read_binary();
  Result<MsgpackExt> read_ext();

  // The number of elements (pairs) that follow. kMalformed when the rest of the input cannot hold
  // that many.
  Result<std::size_t> read_array_header();
  Result<std::size_t> read_map_header();

  // A whole array of token ids in one tight loop; replaces what `tokens` and `out_of_range` held.
  // Elements outside [0, 2^32) set `out_of_range` and are stored as 0; an element that is not an
  // int is kMalformed and leaves `tokens` empty. The hot path of LOOKUP: 128k elements.
  Result<void> read_token_array(std::vector<std::uint32_t>& tokens, bool& out_of_range);

  // Moves past one value of any type, nested ones included. kTooLarge beyond kDepthMax. Strings are
  // not checked for UTF-8 here: what is skipped is not used.
  Result<void> skip();

 private:
  struct Head;

  Result<Head> next_head() const;
  Result<std::span<const std::byte>> body(const Head& head, std::size_t bytes);
  Result<std::size_t> read_count(MsgpackType type, std::size_t values_per_element);
  Result<std::size_t> skip_shallow();

  std::span<const std::byte> input_;
  std::size_t position_ = 0;
};

}  // namespace larder::codec
