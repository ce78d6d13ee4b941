#include "codec/msgpack_writer.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace larder::codec {
namespace {

constexpr std::uint64_t kMax8 = std::numeric_limits<std::uint8_t>::max();
constexpr std::uint64_t kMax16 = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();

void append(Bytes& to, const void* from, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  const std::size_t before = to.size();
  to.resize(before + bytes);
  std::memcpy(to.data() + before, from, bytes);
}

void append_byte(Bytes& to, std::uint64_t value) {
  to.push_back(static_cast<std::byte>(value));
}

// A tag and a big-endian field of 1, 2, 4 or 8 bytes.
void append_field(Bytes& to, unsigned tag, std::size_t field_bytes, std::uint64_t value) {
  std::array<std::byte, 9> bytes{};
  bytes[0] = static_cast<std::byte>(tag);
  for (std::size_t i = 0; i < field_bytes; ++i) {
    bytes[field_bytes - i] = static_cast<std::byte>(value >> (8 * i));
  }
  append(to, bytes.data(), 1 + field_bytes);
}

// The smallest of three forms, whose tags follow each other: a length of 1, 2 or 4 bytes.
void append_length(Bytes& to, unsigned first_tag, std::size_t length) {
  LARDER_CHECK(length <= kMax32);
  if (length <= kMax8) {
    append_field(to, first_tag, 1, length);
  } else if (length <= kMax16) {
    append_field(to, first_tag + 1, 2, length);
  } else {
    append_field(to, first_tag + 2, 4, length);
  }
}

// Arrays and maps: a count below 16 in the tag, else of 2 or 4 bytes.
void append_count(Bytes& to, unsigned fix_tag, unsigned first_tag, std::size_t count) {
  LARDER_CHECK(count <= kMax32);
  if (count < 16) {
    append_byte(to, fix_tag | count);
  } else if (count <= kMax16) {
    append_field(to, first_tag, 2, count);
  } else {
    append_field(to, first_tag + 1, 4, count);
  }
}

}  // namespace

void MsgpackWriter::write_nil() {
  append_byte(to_, 0xc0);
}

void MsgpackWriter::write_bool(bool value) {
  append_byte(to_, value ? 0xc3 : 0xc2);
}

void MsgpackWriter::write_int(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= 0) {
    write_uint(bits);
  } else if (value >= -32) {
    append_byte(to_, bits & 0xff);
  } else if (value >= std::numeric_limits<std::int8_t>::min()) {
    append_field(to_, 0xd0, 1, bits);
  } else if (value >= std::numeric_limits<std::int16_t>::min()) {
    append_field(to_, 0xd1, 2, bits);
  } else if (value >= std::numeric_limits<std::int32_t>::min()) {
    append_field(to_, 0xd2, 4, bits);
  } else {
    append_field(to_, 0xd3, 8, bits);
  }
}

void MsgpackWriter::write_uint(std::uint64_t value) {
  if (value < 0x80) {
    append_byte(to_, value);
  } else if (value <= kMax8) {
    append_field(to_, 0xcc, 1, value);
  } else if (value <= kMax16) {
    append_field(to_, 0xcd, 2, value);
  } else if (value <= kMax32) {
    append_field(to_, 0xce, 4, value);
  } else {
    append_field(to_, 0xcf, 8, value);
  }
}

void MsgpackWriter::write_float(double value) {
  append_field(to_, 0xcb, 8, std::bit_cast<std::uint64_t>(value));
}

void MsgpackWriter::write_string(std::string_view text) {
  if (text.size() < 32) {
    append_byte(to_, 0xa0 | text.size());
  } else {
    append_length(to_, 0xd9, text.size());
  }
  append(to_, text.data(), text.size());
}

void MsgpackWriter::write_binary(std::span<const std::byte> bytes) {
  write_binary_header(bytes.size());
  append(to_, bytes.data(), bytes.size());
}

void MsgpackWriter::write_binary_header(std::size_t bytes) {
  append_length(to_, 0xc4, bytes);
}

void MsgpackWriter::write_ext(std::int8_t type, std::span<const std::byte> body) {
  const std::size_t bytes = body.size();
  if (std::has_single_bit(bytes) && bytes <= 16) {
    append_byte(to_, 0xd4 + static_cast<unsigned>(std::countr_zero(bytes)));
  } else {
    append_length(to_, 0xc7, bytes);
  }
  append_byte(to_, static_cast<std::uint8_t>(type));
  append(to_, body.data(), bytes);
}

void MsgpackWriter::write_array_header(std::size_t elements) {
  append_count(to_, 0x90, 0xdc, elements);
}

void MsgpackWriter::write_map_header(std::size_t pairs) {
  append_count(to_, 0x80, 0xde, pairs);
}

}  // namespace larder::codec
