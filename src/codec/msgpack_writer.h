// msgpack_writer.h - appends msgpack to a buffer, byte for byte as msgspec encodes.
//
// Ints in the smallest form (non-negative as fixint/cc/cd/ce/cf, negative as fixint/d0..d3), floats
// as 64 bit, str fixstr/d9/da/db, bin c4/c5/c6, arrays 9x/dc/dd, maps 8x/de/df, ext d4..d8 for
// 1,2,4,8,16 bytes, else c7/c8/c9. One thread. The caller writes as many elements as the header
// announced. REQUIRES of every length: below 2^32, which is all that msgpack can say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "codec/bytes.h"

namespace larder::codec {

class MsgpackWriter {
 public:
  explicit MsgpackWriter(Bytes& to) : to_(to) {}

  void write_nil();
  void write_bool(bool value);
  void write_int(std::int64_t value);
  void write_uint(std::uint64_t value);
  void write_float(double value);
  void write_string(std::string_view text);
  void write_binary(std::span<const std::byte> bytes);
  void write_binary_header(
      std::size_t bytes);  // the caller appends that many bytes to the buffer itself

  // Where the caller appends what a binary header announced.
  Bytes& buffer() { return to_; }

  void write_ext(std::int8_t type, std::span<const std::byte> body);
  void write_array_header(std::size_t elements);
  void write_map_header(std::size_t pairs);

 private:
  Bytes& to_;
};

}  // namespace larder::codec
