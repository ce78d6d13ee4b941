// Any bytes: reading value by value and skipping agree on where a value ends, what was read is
// written and read back the same, and the token loop agrees with reading int by int.
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "codec/msgpack_reader.h"
#include "codec/msgpack_writer.h"

namespace {

using larder::Result;
using larder::codec::Bytes;
using larder::codec::MsgpackReader;
using larder::codec::MsgpackType;
using larder::codec::MsgpackWriter;

Result<void> copy_int(MsgpackReader& reader, MsgpackWriter& writer) {
  const auto number = reader.read_int();
  if (!number) {
    return number.error();
  }
  if (number.value().negative) {
    writer.write_int(static_cast<std::int64_t>(number.value().bits));
  } else {
    writer.write_uint(number.value().bits);
  }
  return {};
}

// Reads one value that is no container with the reader of its type and writes it again.
Result<void> copy_scalar(MsgpackType type, MsgpackReader& reader, MsgpackWriter& writer) {
  switch (type) {
    case MsgpackType::kBool: {
      const auto flag = reader.read_bool();
      return flag ? (writer.write_bool(flag.value()), Result<void>()) : flag.error();
    }
    case MsgpackType::kInt:
      return copy_int(reader, writer);
    case MsgpackType::kFloat: {
      const auto number = reader.read_float();
      return number ? (writer.write_float(number.value()), Result<void>()) : number.error();
    }
    case MsgpackType::kString: {
      const auto text = reader.read_string();
      return text ? (writer.write_string(text.value()), Result<void>()) : text.error();
    }
    case MsgpackType::kBinary: {
      const auto bytes = reader.read_binary();
      return bytes ? (writer.write_binary(bytes.value()), Result<void>()) : bytes.error();
    }
    case MsgpackType::kExt: {
      const auto ext = reader.read_ext();
      return ext ? (writer.write_ext(ext.value().type, ext.value().body), Result<void>())
                 : ext.error();
    }
    default:
      writer.write_nil();
      return reader.read_nil();
  }
}

// Copies one value with everything in it; the depth bound is that of skip().
Result<void> copy_value(MsgpackReader& reader, MsgpackWriter& writer, int depth) {
  const auto type = reader.peek();
  if (!type) {
    return type.error();
  }
  if (type.value() != MsgpackType::kArray && type.value() != MsgpackType::kMap) {
    return copy_scalar(type.value(), reader, writer);
  }
  const bool map = type.value() == MsgpackType::kMap;
  const auto count = map ? reader.read_map_header() : reader.read_array_header();
  if (!count) {
    return count.error();
  }
  map ? writer.write_map_header(count.value()) : writer.write_array_header(count.value());
  if (depth == MsgpackReader::kDepthMax && count.value() > 0) {
    return larder::Error{larder::Code::kTooLarge, {}};
  }
  for (std::size_t i = 0; i < count.value() * (map ? 2 : 1); ++i) {
    if (const auto copied = copy_value(reader, writer, depth + 1); !copied) {
      return copied.error();
    }
  }
  return {};
}

void check_copies(std::span<const std::byte> input) {
  MsgpackReader reader(input);
  MsgpackReader skipping(input);
  while (!reader.at_end()) {
    Bytes written;
    MsgpackWriter writer(written);
    const bool copied = copy_value(reader, writer, 0).has_value();
    const bool skipped = skipping.skip().has_value();
    if (!copied) {
      return;  // skip() is the laxer one: it does not look into strings
    }
    LARDER_CHECK(skipped && skipping.position() == reader.position());
    Bytes again;
    MsgpackWriter second_writer(again);
    MsgpackReader second(written);
    LARDER_CHECK(copy_value(second, second_writer, 0).has_value());
    LARDER_CHECK(second.at_end() && again == written);
  }
}

void check_tokens(std::span<const std::byte> input) {
  MsgpackReader fast(input);
  std::vector<std::uint32_t> tokens;
  bool out_of_range = false;
  const bool read = fast.read_token_array(tokens, out_of_range).has_value();

  MsgpackReader slow(input);
  const auto count = slow.read_array_header();
  std::vector<std::uint32_t> expected;
  bool expected_out_of_range = false;
  bool expected_read = count.has_value();
  for (std::size_t i = 0; expected_read && i < count.value(); ++i) {
    const auto number = slow.read_int();
    expected_read = number.has_value();
    const bool fits =
        expected_read && !number.value().negative && number.value().bits <= 0xffffffffU;
    expected_out_of_range = expected_out_of_range || !fits;
    expected.push_back(fits ? static_cast<std::uint32_t>(number.value().bits) : 0);
  }
  LARDER_CHECK(read == expected_read);
  if (read) {
    LARDER_CHECK(tokens == expected && out_of_range == expected_out_of_range);
    LARDER_CHECK(fast.position() == slow.position());
  } else {
    LARDER_CHECK(tokens.empty());
  }
}

// A reader that failed must stay harmless.
void use_after_errors(std::span<const std::byte> input) {
  MsgpackReader reader(input);
  for (const std::byte choice : input.first(input.size() < 32 ? input.size() : 32)) {
    Bytes written;
    MsgpackWriter writer(written);
    (void)copy_scalar(static_cast<MsgpackType>(std::to_integer<int>(choice) % 9), reader, writer)
        .has_value();
    (void)reader.read_map_header().has_value();
    (void)reader.read_int64().has_value();
    (void)reader.read_uint64().has_value();
    LARDER_CHECK(reader.position() <= input.size());
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(bytes, size));
  check_copies(input);
  check_tokens(input);
  use_after_errors(input);
  return 0;
}
