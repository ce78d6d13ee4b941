#include "protocol/frames.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "protocol/short_string.h"

namespace larder::protocol {
namespace {

using codec::MsgpackInt;
using codec::MsgpackReader;
using codec::MsgpackType;

// Of a number as text. Python takes no more digits than this.
constexpr std::size_t kNumberBytesMax = 4300;

constexpr double kInt64End = 9223372036854775808.0;  // 2^63

bool coerces(Release release) {
  return release >= Release::k047;
}

Result<MsgpackInt> from_float(double value) {
  if (!std::isfinite(value)) {
    return Error{Code::kMalformed, "not a finite number"};
  }
  if (value >= kInt64End || value < -kInt64End) {
    return MsgpackInt{
        value < 0, value < 0 ? std::uint64_t{1} << 63 : std::numeric_limits<std::uint64_t>::max()};
  }
  const auto whole = static_cast<std::int64_t>(value);
  return MsgpackInt{whole < 0, static_cast<std::uint64_t>(whole)};
}

// Python's int(text), for the decimal forms: surrounding blanks and a sign, no underscores.
Result<MsgpackInt> from_text(std::string_view text) {
  if (text.size() > kNumberBytesMax) {
    return Error{Code::kTooLarge, "a number of thousands of digits"};
  }
  const auto first = text.find_first_not_of(" \t\n\r\f\v");
  const auto last = text.find_last_not_of(" \t\n\r\f\v");
  if (first == std::string_view::npos) {
    return Error{Code::kMalformed, "not a number"};
  }
  text = text.substr(first, last - first + 1);
  if (text.front() == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text.front() == '-') {
      return Error{Code::kMalformed, "not a number"};
    }
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error{Code::kMalformed, "not a number"};
  }
  return MsgpackInt{value < 0, static_cast<std::uint64_t>(value)};
}

Result<MsgpackInt> read_coerced_int(MsgpackReader& reader, MsgpackType type) {
  switch (type) {
    case MsgpackType::kBool: {
      const Result<bool> value = reader.read_bool();
      return value ? Result<MsgpackInt>(MsgpackInt{false, *value ? 1U : 0U}) : value.error();
    }
    case MsgpackType::kFloat: {
      const Result<double> value = reader.read_float();
      return value ? from_float(*value) : value.error();
    }
    case MsgpackType::kString: {
      const Result<std::string_view> text = read_short_string(reader, kNumberBytesMax);
      return text ? from_text(*text) : text.error();
    }
    case MsgpackType::kBinary: {
      const Result<std::span<const std::byte>> text = reader.read_binary();
      if (!text) {
        return text.error();
      }
      return from_text({reinterpret_cast<const char*>(text->data()), text->size()});
    }
    default:
      return reader.read_int();
  }
}

Result<MsgpackInt> whole_msgpack_int(Frame frame, Release release) {
  return read_whole(frame, [release](MsgpackReader& reader) -> Result<MsgpackInt> {
    const Result<MsgpackType> type = reader.peek();
    if (!type) {
      return type.error();
    }
    return coerces(release) ? read_coerced_int(reader, *type) : reader.read_int();
  });
}

// Python's truth of the next value; containers are skipped, so that the whole payload is still
// checked.
Result<bool> read_truth(MsgpackReader& reader, MsgpackType type) {
  switch (type) {
    case MsgpackType::kNil: {
      const Result<void> nil = reader.read_nil();
      return nil ? Result<bool>(false) : nil.error();
    }
    case MsgpackType::kInt: {
      const Result<MsgpackInt> value = reader.read_int();
      return value ? Result<bool>(value->bits != 0) : value.error();
    }
    case MsgpackType::kFloat: {
      const Result<double> value = reader.read_float();
      return value ? Result<bool>(*value != 0.0) : value.error();
    }
    case MsgpackType::kString: {
      const Result<std::string_view> text = reader.read_string();
      return text ? Result<bool>(!text->empty()) : text.error();
    }
    case MsgpackType::kBinary: {
      const Result<std::span<const std::byte>> bytes = reader.read_binary();
      return bytes ? Result<bool>(!bytes->empty()) : bytes.error();
    }
    case MsgpackType::kArray:
    case MsgpackType::kMap: {
      MsgpackReader ahead = reader;
      const Result<std::size_t> count =
          type == MsgpackType::kArray ? ahead.read_array_header() : ahead.read_map_header();
      if (!count) {
        return count.error();
      }
      const Result<void> skipped = reader.skip();
      return skipped ? Result<bool>(*count != 0) : skipped.error();
    }
    default:
      return reader.read_bool();
  }
}

}  // namespace

Result<void> expect_count(Frames frames, std::size_t count) {
  if (frames.size() != count) {
    return Error{Code::kMalformed, "wrong number of payloads"};
  }
  return {};
}

std::int64_t saturate(const MsgpackInt& value) {
  if (!value.negative &&
      value.bits > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return static_cast<std::int64_t>(value.bits);
}

Result<std::int64_t> whole_int(Frame frame, Release release) {
  const Result<MsgpackInt> value = whole_msgpack_int(frame, release);
  return value ? Result<std::int64_t>(saturate(*value)) : value.error();
}

Result<std::uint64_t> whole_id(Frame frame, Release release) {
  const Result<MsgpackInt> value = whole_msgpack_int(frame, release);
  return value ? Result<std::uint64_t>(value->bits) : value.error();
}

Result<std::optional<std::uint64_t>> whole_optional_id(Frame frame) {
  return read_whole(frame, [](MsgpackReader& reader) -> Result<std::optional<std::uint64_t>> {
    const Result<MsgpackType> type = reader.peek();
    if (!type) {
      return type.error();
    }
    if (*type == MsgpackType::kNil) {
      const Result<void> nil = reader.read_nil();
      return nil ? Result<std::optional<std::uint64_t>>(std::nullopt) : nil.error();
    }
    const Result<MsgpackInt> value = reader.read_int();
    return value ? Result<std::optional<std::uint64_t>>(value->bits) : value.error();
  });
}

Result<bool> whole_bool(Frame frame, Release release) {
  return read_whole(frame, [release](MsgpackReader& reader) -> Result<bool> {
    const Result<MsgpackType> type = reader.peek();
    if (!type) {
      return type.error();
    }
    return coerces(release) ? read_truth(reader, *type) : reader.read_bool();
  });
}

Result<double> whole_float(Frame frame) {
  return read_whole(frame, [](MsgpackReader& reader) { return reader.read_float(); });
}

Result<std::string_view> whole_string(Frame frame) {
  return read_whole(frame, [](MsgpackReader& reader) { return reader.read_string(); });
}

Result<std::span<const std::byte>> whole_binary(Frame frame) {
  return read_whole(frame, [](MsgpackReader& reader) { return reader.read_binary(); });
}

Result<std::int64_t> field_int(MsgpackReader& reader) {
  const Result<MsgpackInt> value = reader.read_int();
  return value ? Result<std::int64_t>(saturate(*value)) : value.error();
}

Result<std::optional<std::int64_t>> field_optional_int(MsgpackReader& reader) {
  const Result<MsgpackType> type = reader.peek();
  if (!type) {
    return type.error();
  }
  if (*type == MsgpackType::kNil) {
    const Result<void> nil = reader.read_nil();
    return nil ? Result<std::optional<std::int64_t>>(std::nullopt) : nil.error();
  }
  const Result<std::int64_t> value = field_int(reader);
  return value ? Result<std::optional<std::int64_t>>(*value) : value.error();
}

Result<std::string> field_string(MsgpackReader& reader) {
  const Result<std::string_view> text = reader.read_string();
  return text ? Result<std::string>(std::string(*text)) : text.error();
}

}  // namespace larder::protocol
