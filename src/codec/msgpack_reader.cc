#include "codec/msgpack_reader.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace larder::codec {
namespace {

static_assert(std::endian::native == std::endian::little, "loads below swap bytes");

// What the first byte of a value says. The value's number (an integer, a length, a count) is either
// in that byte itself or in a field of `field_bytes` behind it.
struct TagRow {
  MsgpackType type = MsgpackType::kNil;
  bool used = false;
  bool is_signed = false;          // of an int's field
  std::uint8_t field_bytes = 0;    // 0, 1, 2, 4 or 8
  std::int16_t inline_number = 0;  // when there is no field
};

constexpr void set_row(std::array<TagRow, 256>& rows,
                       std::size_t tag,
                       MsgpackType type,
                       std::uint8_t field_bytes,
                       std::int16_t inline_number = 0) {
  rows[tag] = TagRow{type, true, false, field_bytes, inline_number};
}

constexpr std::array<TagRow, 256> make_tag_rows() {
  std::array<TagRow, 256> rows{};
  for (std::size_t tag = 0; tag < 0x80; ++tag) {
    set_row(rows, tag, MsgpackType::kInt, 0, static_cast<std::int16_t>(tag));
  }
  for (std::size_t low = 0; low < 0x10; ++low) {
    set_row(rows, 0x80 + low, MsgpackType::kMap, 0, static_cast<std::int16_t>(low));
    set_row(rows, 0x90 + low, MsgpackType::kArray, 0, static_cast<std::int16_t>(low));
  }
  for (std::size_t low = 0; low < 0x20; ++low) {
    set_row(rows, 0xa0 + low, MsgpackType::kString, 0, static_cast<std::int16_t>(low));
    set_row(rows,
            0xe0 + low,
            MsgpackType::kInt,
            0,
            static_cast<std::int16_t>(static_cast<int>(low) - 32));
  }
  set_row(rows, 0xc0, MsgpackType::kNil, 0);
  set_row(rows, 0xc2, MsgpackType::kBool, 0, 0);
  set_row(rows, 0xc3, MsgpackType::kBool, 0, 1);
  set_row(rows, 0xca, MsgpackType::kFloat, 4);
  set_row(rows, 0xcb, MsgpackType::kFloat, 8);
  for (std::size_t power = 0; power < 4; ++power) {
    const auto bytes = static_cast<std::uint8_t>(1U << power);
    set_row(rows, 0xcc + power, MsgpackType::kInt, bytes);
    set_row(rows, 0xd0 + power, MsgpackType::kInt, bytes);
    rows[0xd0 + power].is_signed = true;
    if (power < 3) {
      set_row(rows, 0xc4 + power, MsgpackType::kBinary, bytes);
      set_row(rows, 0xc7 + power, MsgpackType::kExt, bytes);
      set_row(rows, 0xd9 + power, MsgpackType::kString, bytes);
    }
  }
  for (std::size_t power = 0; power < 5; ++power) {
    set_row(rows, 0xd4 + power, MsgpackType::kExt, 0, static_cast<std::int16_t>(1U << power));
  }
  for (std::size_t power = 1; power < 3; ++power) {
    const auto bytes = static_cast<std::uint8_t>(1U << power);
    set_row(rows, 0xdb + power, MsgpackType::kArray, bytes);
    set_row(rows, 0xdd + power, MsgpackType::kMap, bytes);
  }
  return rows;
}

constexpr std::array<TagRow, 256> kTagRows = make_tag_rows();

std::uint64_t load_big_endian(const std::byte* at, std::size_t bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    number = (number << 8) | std::to_integer<std::uint64_t>(at[i]);
  }
  return number;
}

std::uint64_t load_word(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// A token's value out of the eight bytes that start at its tag: shift the tag out on the left, what
// follows the value out on the right. The forms that fit are found without a branch, because tokens
// below and above 65536 alternate at random and a mispredicted jump costs more than the whole
// element. bytes == 0: not one of those forms.
struct TokenRow {
  std::uint8_t bytes = 0;
  std::uint8_t bits = 0;  // 8 * bytes
  std::uint8_t shift_left = 0;
  std::uint8_t shift_right = 0;
};

constexpr std::array<TokenRow, 256> make_token_rows() {
  std::array<TokenRow, 256> rows{};
  for (std::size_t tag = 0; tag < 0x80; ++tag) {
    rows[tag] = TokenRow{1, 8, 0, 56};
  }
  rows[0xcc] = TokenRow{2, 16, 8, 56};
  rows[0xcd] = TokenRow{3, 24, 8, 48};
  rows[0xce] = TokenRow{5, 40, 8, 32};
  return rows;
}

constexpr std::array<TokenRow, 256> kTokenRows = make_token_rows();

// Reads tokens of the forms above while eight bytes are left; moves `at` and `to` past what it
// read.
void read_short_tokens(const std::byte*& at,
                       const std::byte* end,
                       std::uint32_t*& to,
                       const std::uint32_t* to_end) {
  if (end - at < 8) {
    return;
  }
  // The next tag comes out of the word that is here already, so that no element waits for the load
  // of the next word.
  auto tag = std::to_integer<std::uint64_t>(*at);
  while (to != to_end && end - at >= 8) {
    const TokenRow row = kTokenRows[tag];
    if (row.bytes == 0) {
      return;
    }
    const std::uint64_t word = load_word(at);
    tag = (word >> row.bits) & 0xff;
    *to++ =
        static_cast<std::uint32_t>((__builtin_bswap64(word) << row.shift_left) >> row.shift_right);
    at += row.bytes;
  }
}

Error malformed(const char* what) {
  return Error{Code::kMalformed, what};
}

Error ends_early() {
  return malformed("msgpack: the input ends inside a value");
}

Error wrong_type() {
  return malformed("msgpack: a value of another type");
}

}  // namespace

struct MsgpackReader::Head {
  MsgpackType type;
  bool negative;         // of an int
  std::size_t bytes;     // the tag and its field
  std::uint64_t number;  // an int's two's complement, a float's bits, a bool, a length or a count
};

Result<MsgpackReader::Head> MsgpackReader::next_head() const {
  const std::span<const std::byte> rest = input_.subspan(position_);
  if (rest.empty()) {
    return ends_early();
  }
  const TagRow& row = kTagRows[std::to_integer<std::size_t>(rest.front())];
  if (!row.used) {
    return malformed("msgpack: the unused byte c1");
  }
  const std::size_t bytes = 1U + row.field_bytes;
  if (rest.size() < bytes) {
    return ends_early();
  }
  if (row.field_bytes == 0) {
    const std::int64_t number = row.inline_number;
    return Head{row.type, number < 0, bytes, static_cast<std::uint64_t>(number)};
  }
  std::uint64_t number = load_big_endian(rest.data() + 1, row.field_bytes);
  bool negative = false;
  if (row.is_signed) {
    const int unused_bits = 64 - 8 * row.field_bytes;
    const auto extended = static_cast<std::int64_t>(number << unused_bits) >> unused_bits;
    number = static_cast<std::uint64_t>(extended);
    negative = extended < 0;
  }
  return Head{row.type, negative, bytes, number};
}

// The `bytes` behind the head; moves past them.
Result<std::span<const std::byte>> MsgpackReader::body(const Head& head, std::size_t bytes) {
  const std::span<const std::byte> rest = input_.subspan(position_ + head.bytes);
  if (rest.size() < bytes) {
    return ends_early();
  }
  position_ += head.bytes + bytes;
  return rest.first(bytes);
}

Result<MsgpackType> MsgpackReader::peek() const {
  if (at_end()) {
    return ends_early();
  }
  const TagRow& row = kTagRows[std::to_integer<std::size_t>(input_[position_])];
  if (!row.used) {
    return malformed("msgpack: the unused byte c1");
  }
  return row.type;
}

Result<void> MsgpackReader::read_nil() {
  const Result<Head> head = next_head();
  if (!head) {
    return head.error();
  }
  if (head.value().type != MsgpackType::kNil) {
    return wrong_type();
  }
  position_ += head.value().bytes;
  return {};
}

Result<bool> MsgpackReader::read_bool() {
  const Result<Head> head = next_head();
  if (!head) {
    return head.error();
  }
  if (head.value().type != MsgpackType::kBool) {
    return wrong_type();
  }
  position_ += head.value().bytes;
  return head.value().number != 0;
}

Result<MsgpackInt> MsgpackReader::read_int() {
  const Result<Head> head = next_head();
  if (!head) {
    return head.error();
  }
  if (head.value().type != MsgpackType::kInt) {
    return wrong_type();
  }
  position_ += head.value().bytes;
  return MsgpackInt{head.value().negative, head.value().number};
}

Result<std::int64_t> MsgpackReader::read_int64() {
  const Result<MsgpackInt> number = read_int();
  if (!number) {
    return number.error();
  }
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!number.value().negative && number.value().bits > kMax) {
    return Error{Code::kInvalid, "msgpack: an int above 2^63-1"};
  }
  return static_cast<std::int64_t>(number.value().bits);
}

Result<std::uint64_t> MsgpackReader::read_uint64() {
  const Result<MsgpackInt> number = read_int();
  if (!number) {
    return number.error();
  }
  if (number.value().negative) {
    return Error{Code::kInvalid, "msgpack: a negative int"};
  }
  return number.value().bits;
}

Result<double> MsgpackReader::read_float() {
  const Result<Head> next = next_head();
  if (!next) {
    return next.error();
  }
  const Head& head = next.value();
  if (head.type == MsgpackType::kInt) {
    position_ += head.bytes;
    return head.negative ? static_cast<double>(static_cast<std::int64_t>(head.number))
                         : static_cast<double>(head.number);
  }
  if (head.type != MsgpackType::kFloat) {
    return wrong_type();
  }
  position_ += head.bytes;
  if (head.bytes == 1 + sizeof(float)) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(head.number)));
  }
  return std::bit_cast<double>(head.number);
}

Result<std::string_view> MsgpackReader::read_string() {
  const Result<Head> head = next_head();
  if (!head) {
    return head.error();
  }
  if (head.value().type != MsgpackType::kString) {
    return wrong_type();
  }
  const Result<std::span<const std::byte>> bytes = body(head.value(), head.value().number);
  if (!bytes) {
    return bytes.error();
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.value().data()),
                              bytes.value().size());
  if (!is_valid_utf8(text)) {
    return malformed("msgpack: a str that is not UTF-8");
  }
  return text;
}

Result<std::span<const std::byte>> MsgpackReader::read_binary() {
  const Result<Head> head = next_head();
  if (!head) {
    return head.error();
  }
  if (head.value().type != MsgpackType::kBinary) {
    return wrong_type();
  }
  return body(head.value(), head.value().number);
}

Result<MsgpackExt> MsgpackReader::read_ext() {
  const Result<Head> head = next_head();
  if (!head) {
    return head.error();
  }
  if (head.value().type != MsgpackType::kExt) {
    return wrong_type();
  }
  const Result<std::span<const std::byte>> bytes = body(head.value(), 1 + head.value().number);
  if (!bytes) {
    return bytes.error();
  }
  const auto type = std::to_integer<std::uint8_t>(bytes.value().front());
  return MsgpackExt{static_cast<std::int8_t>(type), bytes.value().subspan(1)};
}

Result<std::size_t> MsgpackReader::read_count(MsgpackType type, std::size_t values_per_element) {
  const Result<Head> head = next_head();
  if (!head) {
    return head.error();
  }
  if (head.value().type != type) {
    return wrong_type();
  }
  const std::size_t rest = input_.size() - position_ - head.value().bytes;
  const std::size_t count = head.value().number;
  if (count > rest / values_per_element) {
    return malformed("msgpack: more elements announced than the input has bytes");
  }
  position_ += head.value().bytes;
  return count;
}

Result<std::size_t> MsgpackReader::read_array_header() {
  return read_count(MsgpackType::kArray, 1);
}

Result<std::size_t> MsgpackReader::read_map_header() {
  return read_count(MsgpackType::kMap, 2);
}

Result<void> MsgpackReader::read_token_array(std::vector<std::uint32_t>& tokens,
                                             bool& out_of_range) {
  tokens.clear();
  out_of_range = false;
  const Result<std::size_t> count = read_array_header();
  if (!count) {
    return count.error();
  }
  tokens.resize(count.value());
  const std::byte* const begin = input_.data();
  const std::byte* const end = begin + input_.size();
  std::uint32_t* to = tokens.data();
  std::uint32_t* const to_end = to + tokens.size();
  while (to != to_end) {
    const std::byte* at = begin + position_;
    read_short_tokens(at, end, to, to_end);
    position_ = static_cast<std::size_t>(at - begin);
    if (to == to_end) {
      break;
    }
    // The last eight bytes of the input, the signed and 64-bit forms, and everything that is no
    // token.
    const Result<MsgpackInt> number = read_int();
    if (!number) {
      tokens.clear();
      return number.error();
    }
    const bool fits = !number.value().negative && std::in_range<std::uint32_t>(number.value().bits);
    out_of_range = out_of_range || !fits;
    *to++ = fits ? static_cast<std::uint32_t>(number.value().bits) : 0;
  }
  return {};
}

// Moves past one value, but not past the values inside it: returns how many of those follow.
Result<std::size_t> MsgpackReader::skip_shallow() {
  const Result<Head> next = next_head();
  if (!next) {
    return next.error();
  }
  const Head& head = next.value();
  switch (head.type) {
    case MsgpackType::kArray:
      return read_count(MsgpackType::kArray, 1);
    case MsgpackType::kMap: {
      const Result<std::size_t> pairs = read_count(MsgpackType::kMap, 2);
      return pairs ? Result<std::size_t>(2 * pairs.value()) : pairs;
    }
    case MsgpackType::kString:
    case MsgpackType::kBinary:
    case MsgpackType::kExt: {
      const std::size_t type_bytes = head.type == MsgpackType::kExt ? 1 : 0;
      const Result<std::span<const std::byte>> bytes = body(head, type_bytes + head.number);
      return bytes ? Result<std::size_t>(0U) : bytes.error();
    }
    case MsgpackType::kNil:
    case MsgpackType::kBool:
    case MsgpackType::kInt:
    case MsgpackType::kFloat:
      position_ += head.bytes;
      return std::size_t{0};
  }
  LARDER_UNREACHABLE();
}

Result<void> MsgpackReader::skip() {
  std::array<std::size_t, kDepthMax>
      open{};  // values still to come in each container around the next value
  std::size_t depth = 0;
  do {
    const Result<std::size_t> inside = skip_shallow();
    if (!inside) {
      return inside.error();
    }
    if (inside.value() > 0) {
      if (depth == open.size()) {
        return Error{Code::kTooLarge, "msgpack: nested too deeply"};
      }
      open[depth++] = inside.value();
      continue;
    }
    while (depth > 0 && --open[depth - 1] == 0) {
      --depth;
    }
  } while (depth > 0);
  return {};
}

}  // namespace larder::codec
