// Goal: the reader takes and refuses exactly what the protocol's clients and servers do, the writer
// writes their bytes, and no input makes the reader misbehave. Method: heads recorded from msgspec,
// the tolerance table row by row, random trees written, read back and cut at every byte (seeded by
// LARDER_TEST_SEED), token arrays against a plain loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <variant>

#include "base/test_random.h"
#include "codec/msgpack_reader.h"
#include "codec/msgpack_writer.h"

namespace larder::codec {
namespace {

Bytes from_hex(std::string_view hex) {
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::string to_hex(std::span<const std::byte> bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const std::byte byte : bytes) {
    hex += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    hex += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return hex;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// --- the bytes of msgspec ---

Bytes written(const std::string& kind, const std::string& value) {
  Bytes bytes;
  MsgpackWriter writer(bytes);
  if (kind == "int") {
    value.front() == '-' ? writer.write_int(std::stoll(value))
                         : writer.write_uint(std::stoull(value));
  } else if (kind == "float") {
    writer.write_float(std::stod(value));
  } else if (kind == "nil") {
    writer.write_nil();
  } else if (kind == "bool") {
    writer.write_bool(value == "1");
  } else if (kind == "array") {
    writer.write_array_header(std::stoul(value));
  } else if (kind == "map") {
    writer.write_map_header(std::stoul(value));
  } else {
    const std::string body(std::stoul(value), 'x');
    if (kind == "str") {
      writer.write_string(body);
    } else if (kind == "bin") {
      writer.write_binary(as_bytes(body));
    } else {
      writer.write_ext(1, as_bytes(body));
    }
    bytes.resize(bytes.size() - body.size());
  }
  return bytes;
}

TEST(MsgpackWriter, WritesTheBytesOfMsgspec) {
  std::ifstream file(std::string(LARDER_FIXTURES) + "/msgpack_heads.txt");
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    std::istringstream words(line);
    std::string kind;
    std::string value;
    std::string hex;
    words >> kind >> value >> hex;
    EXPECT_EQ(to_hex(written(kind, value)), hex) << line;
  }
  EXPECT_GT(lines, 400U);
}

TEST(MsgpackWriter, WritesNonNegativeSignedIntsAsUnsignedOnes) {
  for (const std::int64_t value : {0LL, 127LL, 128LL, 65535LL, 1LL << 40}) {
    Bytes signed_form;
    Bytes unsigned_form;
    MsgpackWriter(signed_form).write_int(value);
    MsgpackWriter(unsigned_form).write_uint(static_cast<std::uint64_t>(value));
    EXPECT_EQ(signed_form, unsigned_form);
  }
}

// --- the tolerance table ---

enum class Reads {
  kNil,
  kBool,
  kInt,
  kInt64,
  kUint64,
  kFloat,
  kString,
  kBinary,
  kArray,
  kMap,
  kExt
};

Result<void> read_as(Reads kind, MsgpackReader& reader) {
  const auto outcome = [](const auto& result) { return result ? Result<void>() : result.error(); };
  switch (kind) {
    case Reads::kNil:
      return reader.read_nil();
    case Reads::kBool:
      return outcome(reader.read_bool());
    case Reads::kInt:
      return outcome(reader.read_int());
    case Reads::kInt64:
      return outcome(reader.read_int64());
    case Reads::kUint64:
      return outcome(reader.read_uint64());
    case Reads::kFloat:
      return outcome(reader.read_float());
    case Reads::kString:
      return outcome(reader.read_string());
    case Reads::kBinary:
      return outcome(reader.read_binary());
    case Reads::kArray:
      return outcome(reader.read_array_header());
    case Reads::kMap:
      return outcome(reader.read_map_header());
    case Reads::kExt:
      return outcome(reader.read_ext());
  }
  return Error{Code::kInvalid, "no such kind"};
}

struct ToleranceRow {
  const char* name;
  Reads reads;
  std::vector<const char*> accepts;
  std::vector<const char*> refuses;
};

class Tolerance : public testing::TestWithParam<ToleranceRow> {};

TEST_P(Tolerance, AcceptsAndRefusesWhatTheReferenceDoes) {
  for (const char* hex : GetParam().accepts) {
    const Bytes bytes = from_hex(hex);
    MsgpackReader reader(bytes);
    EXPECT_TRUE(read_as(GetParam().reads, reader).has_value()) << hex;
  }
  for (const char* hex : GetParam().refuses) {
    const Bytes bytes = from_hex(hex);
    MsgpackReader reader(bytes);
    const Result<void> read = read_as(GetParam().reads, reader);
    ASSERT_FALSE(read.has_value()) << hex;
    EXPECT_EQ(read.error().code, Code::kMalformed) << hex;
  }
}

// Values by name, so that the rows read like the table.
constexpr const char* kNil = "c0";
constexpr const char* kFalse = "c2";
constexpr const char* kTrue = "c3";
constexpr const char* kOne = "01";
constexpr const char* kZero = "00";
constexpr const char* kMinusOne = "ff";
constexpr const char* kOneAs16 = "cd0001";
constexpr const char* kOneAs64 = "cf0000000000000001";
constexpr const char* kOneAsSigned8 = "d001";
constexpr const char* kOneAsSigned64 = "d30000000000000001";
constexpr const char* kInt64Min = "d38000000000000000";
constexpr const char* kUint64Max = "cfffffffffffffffff";
constexpr const char* kFloat32 = "ca3f800000";
constexpr const char* kFloat64 = "cb3ff0000000000000";
constexpr const char* kText = "a161";
constexpr const char* kTextLength8 = "d90161";
constexpr const char* kTextLength16 = "da000161";
constexpr const char* kTextLength32 = "db0000000161";
constexpr const char* kNotUtf8 = "a1ff";
constexpr const char* kSurrogate = "a3eda080";
constexpr const char* kBin8 = "c40161";
constexpr const char* kBin16 = "c5000161";
constexpr const char* kBin32 = "c60000000161";
constexpr const char* kEmptyArray = "90";
constexpr const char* kArray16 = "dc000101";
constexpr const char* kArray32 = "dd0000000101";
constexpr const char* kEmptyMap = "80";
constexpr const char* kMap16 = "de00010101";
constexpr const char* kMap32 = "df000000010101";
constexpr const char* kFixExt = "d40161";
constexpr const char* kExt8 = "c7010161";
constexpr const char* kUnused = "c1";
constexpr const char* kNothing = "";

INSTANTIATE_TEST_SUITE_P(
    Rows,
    Tolerance,
    testing::Values(
        ToleranceRow{"Int",
                     Reads::kInt,
                     {kOne,
                      kMinusOne,
                      kOneAs16,
                      kOneAs64,
                      kOneAsSigned8,
                      kOneAsSigned64,
                      kInt64Min,
                      kUint64Max},
                     {kTrue,
                      kFalse,
                      kFloat32,
                      kFloat64,
                      kText,
                      kBin8,
                      kNil,
                      kEmptyArray,
                      kUnused,
                      kNothing}},
        ToleranceRow{
            "Bool", Reads::kBool, {kTrue, kFalse}, {kZero, kOne, kNil, kText, kFloat64, kNothing}},
        ToleranceRow{"Float",
                     Reads::kFloat,
                     {kFloat32, kFloat64, kOne, kMinusOne, kInt64Min, kUint64Max},
                     {kTrue, kText, kBin8, kNil, kEmptyArray, kNothing}},
        ToleranceRow{"Str",
                     Reads::kString,
                     {kText, kTextLength8, kTextLength16, kTextLength32, "a0"},
                     {kBin8, kNotUtf8, kSurrogate, kOne, kNil, kEmptyArray, kNothing}},
        ToleranceRow{"Bytes",
                     Reads::kBinary,
                     {kBin8, kBin16, kBin32, "c400"},
                     {kText, kTextLength8, kEmptyArray, kNil, kFixExt, kNothing}},
        ToleranceRow{"Array",
                     Reads::kArray,
                     {kEmptyArray, kArray16, kArray32, "9101"},
                     {kBin8, kNil, kEmptyMap, kText, kOne, kNothing}},
        ToleranceRow{"Map",
                     Reads::kMap,
                     {kEmptyMap, kMap16, kMap32, "810101"},
                     {kEmptyArray, kBin8, kNil, kText, kNothing}},
        ToleranceRow{
            "Nil", Reads::kNil, {kNil}, {kFalse, kZero, "a0", kEmptyArray, kEmptyMap, kNothing}},
        ToleranceRow{
            "Ext", Reads::kExt, {kFixExt, kExt8, "c70001"}, {kBin8, kText, kNil, kNothing}}),
    [](const testing::TestParamInfo<ToleranceRow>& row) { return row.param.name; });

TEST(MsgpackReader, KeepsAnIntsValueInEveryForm) {
  const auto value_of = [](const char* hex) {
    const Bytes bytes = from_hex(hex);
    return MsgpackReader(bytes).read_int().value();
  };
  for (const char* hex : {"05",
                          "cc05",
                          "cd0005",
                          "ce00000005",
                          "cf0000000000000005",
                          "d005",
                          "d10005",
                          "d200000005",
                          "d30000000000000005"}) {
    EXPECT_EQ(value_of(hex), (MsgpackInt{false, 5})) << hex;
  }
  for (const char* hex : {"fb", "d0fb", "d1fffb", "d2fffffffb", "d3fffffffffffffffb"}) {
    EXPECT_EQ(value_of(hex), (MsgpackInt{true, static_cast<std::uint64_t>(-5)})) << hex;
  }
  EXPECT_EQ(value_of(kUint64Max), (MsgpackInt{false, std::numeric_limits<std::uint64_t>::max()}));
  EXPECT_EQ(value_of(kInt64Min), (MsgpackInt{true, std::uint64_t{1} << 63}));
}

TEST(MsgpackReader, CallsAnIntOutsideTheTypeInvalid) {
  const Bytes too_large = from_hex("cf8000000000000000");
  EXPECT_EQ(MsgpackReader(too_large).read_int64().error().code, Code::kInvalid);
  EXPECT_EQ(MsgpackReader(too_large).read_uint64().value(), std::uint64_t{1} << 63);
  const Bytes negative = from_hex("d0ff");
  EXPECT_EQ(MsgpackReader(negative).read_uint64().error().code, Code::kInvalid);
  EXPECT_EQ(MsgpackReader(negative).read_int64().value(), -1);
}

TEST(MsgpackReader, ReadsFloatsOfBothWidthsAndInts) {
  const auto value_of = [](const char* hex) {
    const Bytes bytes = from_hex(hex);
    return MsgpackReader(bytes).read_float().value();
  };
  EXPECT_EQ(value_of("ca3fc00000"), 1.5);
  EXPECT_EQ(value_of("cb3fb999999999999a"), 0.1);
  EXPECT_EQ(value_of("cafc000000"), -std::ldexp(1.0, 121));
  EXPECT_EQ(value_of("d0fe"), -2.0);
  EXPECT_EQ(value_of(kUint64Max), 18446744073709551615.0);
}

TEST(MsgpackReader, RefusesCountsAndLengthsBeyondTheInput) {
  for (const char* hex : {"ddffffffff", "dcffff", "93c0c0", "91"}) {
    const Bytes bytes = from_hex(hex);
    EXPECT_EQ(MsgpackReader(bytes).read_array_header().error().code, Code::kMalformed) << hex;
    EXPECT_FALSE(MsgpackReader(bytes).skip().has_value()) << hex;
  }
  for (const char* hex : {"dfffffffff", "deffff", "82c0c0c0", "81c0"}) {
    const Bytes bytes = from_hex(hex);
    EXPECT_EQ(MsgpackReader(bytes).read_map_header().error().code, Code::kMalformed) << hex;
    EXPECT_FALSE(MsgpackReader(bytes).skip().has_value()) << hex;
  }
  for (const char* hex : {"dbffffffff61", "c6ffffffff61", "c9ffffffff0161", "d80161", "c70001c0"}) {
    const Bytes bytes = from_hex(hex);
    MsgpackReader reader(bytes);
    const bool read = reader.read_string() || reader.read_binary() || reader.read_ext();
    EXPECT_EQ(read, std::string_view(hex) == "c70001c0") << hex;  // the last one is whole
  }
}

std::string nested(std::size_t depth, const char* container, const char* inside) {
  std::string hex;
  for (std::size_t i = 0; i < depth; ++i) {
    hex += container;
  }
  return hex + inside;
}

TEST(MsgpackReader, SkipsNestingUpToTheBoundAndNoDeeper) {
  constexpr std::size_t kMax = MsgpackReader::kDepthMax;
  for (const char* container : {"91", "81c0"}) {
    const Bytes deepest = from_hex(nested(kMax, container, "c0"));
    MsgpackReader reader(deepest);
    EXPECT_TRUE(reader.skip().has_value());
    EXPECT_TRUE(reader.at_end());
    const Bytes deeper = from_hex(nested(kMax + 1, container, "c0"));
    EXPECT_EQ(MsgpackReader(deeper).skip().error().code, Code::kTooLarge);
  }
  const Bytes far_deeper = from_hex(nested(100000, "91", "c0"));
  EXPECT_FALSE(MsgpackReader(far_deeper).skip().has_value());
}

TEST(MsgpackReader, CanBeUsedAfterAnErrorWithoutHarm) {
  const Bytes bytes = from_hex("93a5616263");
  MsgpackReader reader(bytes);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint32_t> tokens;
    bool out_of_range = false;
    for (const Reads kind :
         {Reads::kString, Reads::kArray, Reads::kExt, Reads::kMap, Reads::kInt}) {
      (void)read_as(kind, reader).has_value();
    }
    (void)reader.read_token_array(tokens, out_of_range).has_value();
    (void)reader.skip().has_value();
    (void)reader.peek().has_value();
    EXPECT_LE(reader.position(), bytes.size());
  }
}

// --- random trees ---

struct Opened {  // a container of that many elements or pairs
  MsgpackType type;
  std::size_t count;

  bool operator==(const Opened&) const = default;
};

struct ExtBody {
  std::int8_t type;
  std::string body;

  bool operator==(const ExtBody&) const = default;
};

struct BinaryBody {
  std::string body;

  bool operator==(const BinaryBody&) const = default;
};

using Value = std::
    variant<std::monostate, bool, MsgpackInt, double, std::string, BinaryBody, ExtBody, Opened>;

std::string random_text(std::mt19937_64& random, bool utf8) {
  constexpr std::array<std::size_t, 10> kLengths = {0, 1, 5, 16, 31, 32, 40, 255, 256, 300};
  std::string text(kLengths[random() % kLengths.size()], 'a');
  for (char& character : text) {
    character = static_cast<char>(utf8 ? 'a' + static_cast<char>(random() % 26)
                                       : static_cast<char>(random()));
  }
  return utf8 && random() % 2 == 0 ? text + "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" : text;
}

MsgpackInt random_int(std::mt19937_64& random) {
  const std::uint64_t magnitude = random() >> (random() % 64);
  if (random() % 2 == 0) {
    return {false, magnitude};
  }
  const std::uint64_t bits = ~(magnitude >> 1);
  return {true, bits};
}

void grow(std::mt19937_64& random, int depth, std::vector<Value>& to) {
  switch (random() % (depth > 0 ? 9 : 7)) {
    case 0:
      to.emplace_back(std::monostate{});
      return;
    case 1:
      to.emplace_back(random() % 2 == 0);
      return;
    case 2:
      to.emplace_back(random_int(random));
      return;
    case 3:
      to.emplace_back(static_cast<double>(random()) / 3);
      return;
    case 4:
      to.emplace_back(random_text(random, true));
      return;
    case 5:
      to.emplace_back(BinaryBody{random_text(random, false)});
      return;
    case 6:
      to.emplace_back(ExtBody{static_cast<std::int8_t>(random()), random_text(random, false)});
      return;
    default: {
      const bool map = random() % 2 == 0;
      const std::size_t count = random() % (random() % 8 == 0 ? 20 : 5);
      to.emplace_back(Opened{map ? MsgpackType::kMap : MsgpackType::kArray, count});
      for (std::size_t i = 0; i < count * (map ? 2 : 1); ++i) {
        grow(random, depth - 1, to);
      }
    }
  }
}

void write_value(MsgpackWriter& writer, const Value& value) {
  struct Visitor {
    MsgpackWriter& writer;

    void operator()(std::monostate) { writer.write_nil(); }

    void operator()(bool flag) { writer.write_bool(flag); }

    void operator()(const MsgpackInt& number) {
      number.negative ? writer.write_int(static_cast<std::int64_t>(number.bits))
                      : writer.write_uint(number.bits);
    }

    void operator()(double number) { writer.write_float(number); }

    void operator()(const std::string& text) { writer.write_string(text); }

    void operator()(const BinaryBody& body) { writer.write_binary(as_bytes(body.body)); }

    void operator()(const ExtBody& ext) { writer.write_ext(ext.type, as_bytes(ext.body)); }

    void operator()(const Opened& opened) {
      opened.type == MsgpackType::kMap ? writer.write_map_header(opened.count)
                                       : writer.write_array_header(opened.count);
    }
  };

  std::visit(Visitor{writer}, value);
}

std::string as_string(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
Result<Value> as_value(const Result<T>& read, const std::function<Value(const T&)>& convert) {
  return read ? Result<Value>(convert(read.value())) : read.error();
}

// Whatever comes next, containers opened but not entered.
Result<Value> read_value(MsgpackReader& reader) {
  const Result<MsgpackType> type = reader.peek();
  if (!type) {
    return type.error();
  }
  switch (type.value()) {
    case MsgpackType::kNil: {
      const Result<void> nil = reader.read_nil();
      return nil ? Result<Value>(Value()) : nil.error();
    }
    case MsgpackType::kBool:
      return as_value<bool>(reader.read_bool(), [](const bool& flag) { return Value(flag); });
    case MsgpackType::kInt:
      return as_value<MsgpackInt>(reader.read_int(),
                                  [](const auto& number) { return Value(number); });
    case MsgpackType::kFloat:
      return as_value<double>(reader.read_float(),
                              [](const auto& number) { return Value(number); });
    case MsgpackType::kString:
      return as_value<std::string_view>(reader.read_string(),
                                        [](const auto& text) { return Value(std::string(text)); });
    case MsgpackType::kBinary:
      return as_value<std::span<const std::byte>>(reader.read_binary(), [](const auto& bytes) {
        return Value(BinaryBody{as_string(bytes)});
      });
    case MsgpackType::kExt:
      return as_value<MsgpackExt>(reader.read_ext(), [](const auto& ext) {
        return Value(ExtBody{ext.type, as_string(ext.body)});
      });
    case MsgpackType::kArray:
      return as_value<std::size_t>(reader.read_array_header(), [](const auto& count) {
        return Value(Opened{MsgpackType::kArray, count});
      });
    case MsgpackType::kMap:
      return as_value<std::size_t>(reader.read_map_header(), [](const auto& count) {
        return Value(Opened{MsgpackType::kMap, count});
      });
  }
  return Error{Code::kInvalid, "no such type"};
}

TEST(MsgpackRoundTrip, ReadsBackEveryRandomTree) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 2000; ++round) {
    std::vector<Value> values;
    grow(random, 5, values);
    Bytes bytes;
    MsgpackWriter writer(bytes);
    for (const Value& value : values) {
      write_value(writer, value);
    }
    MsgpackReader reader(bytes);
    for (const Value& value : values) {
      const Result<Value> read = read_value(reader);
      ASSERT_TRUE(read.has_value());
      ASSERT_EQ(read.value(), value);
    }
    EXPECT_TRUE(reader.at_end());
    MsgpackReader skipping(bytes);
    ASSERT_TRUE(skipping.skip().has_value());
    EXPECT_TRUE(skipping.at_end());
  }
}

TEST(MsgpackRoundTrip, FailsWhereverTheInputIsCut) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 100; ++round) {
    std::vector<Value> values;
    grow(random, 3, values);
    Bytes bytes;
    MsgpackWriter writer(bytes);
    for (const Value& value : values) {
      write_value(writer, value);
    }
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      // A copy of its own size, so that a read beyond the end is seen.
      const std::vector<std::byte> cut(bytes.begin(),
                                       bytes.begin() + static_cast<std::ptrdiff_t>(length));
      ASSERT_FALSE(MsgpackReader(cut).skip().has_value()) << to_hex(cut);
      MsgpackReader reader(cut);
      std::size_t read = 0;
      while (read < values.size() && read_value(reader).has_value()) {
        ++read;
      }
      ASSERT_LT(read, values.size()) << to_hex(cut);
    }
  }
}

// --- token arrays ---

struct Tokens {
  std::vector<std::uint32_t> ids;
  bool out_of_range = false;
};

Result<Tokens> read_tokens(std::span<const std::byte> bytes) {
  Tokens tokens;
  tokens.ids = {77};  // what was there before must not stay
  tokens.out_of_range = true;
  MsgpackReader reader(bytes);
  const Result<void> read = reader.read_token_array(tokens.ids, tokens.out_of_range);
  if (!read) {
    return read.error();
  }
  EXPECT_EQ(reader.position(), bytes.size());
  return tokens;
}

// An int in one of the forms that can hold it, not always the smallest.
void append_in_some_form(std::mt19937_64& random, const MsgpackInt& number, Bytes& to) {
  const std::size_t smallest_power = number.bits < 0x100      ? 0
                                     : number.bits < 0x10000  ? 1
                                     : number.bits >> 32 == 0 ? 2
                                                              : 3;
  if (number.negative || random() % 2 == 0) {
    MsgpackWriter writer(to);
    number.negative ? writer.write_int(static_cast<std::int64_t>(number.bits))
                    : writer.write_uint(number.bits);
    return;
  }
  std::size_t power = smallest_power + random() % (4 - smallest_power);
  const std::size_t width = std::size_t{1} << power;
  const bool fits_signed =
      power == 3 ? number.bits >> 63 == 0 : number.bits >> (8 * width - 1) == 0;
  const unsigned tag = fits_signed && random() % 2 == 0 ? 0xd0 : 0xcc;
  to.push_back(static_cast<std::byte>(tag + power));
  for (std::size_t i = width; i > 0; --i) {
    to.push_back(static_cast<std::byte>(number.bits >> (8 * (i - 1))));
  }
}

TEST(MsgpackTokens, AgreesWithReadingElementByElement) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 3000; ++round) {
    const bool only_tokens = random() % 2 == 0;
    const std::size_t count = random() % 40;
    Bytes bytes;
    MsgpackWriter(bytes).write_array_header(count);
    Tokens expected;
    for (std::size_t i = 0; i < count; ++i) {
      MsgpackInt number = random_int(random);
      if (only_tokens) {
        number = {false, number.bits & 0xffffffffU};
      }
      append_in_some_form(random, number, bytes);
      const bool fits = !number.negative && number.bits >> 32 == 0;
      expected.ids.push_back(fits ? static_cast<std::uint32_t>(number.bits) : 0);
      expected.out_of_range = expected.out_of_range || !fits;
    }
    const std::vector<std::byte> exact(bytes.begin(), bytes.end());
    const Result<Tokens> tokens = read_tokens(exact);
    ASSERT_TRUE(tokens.has_value()) << to_hex(exact);
    ASSERT_EQ(tokens.value().ids, expected.ids) << to_hex(exact);
    ASSERT_EQ(tokens.value().out_of_range, expected.out_of_range) << to_hex(exact);
    for (std::size_t length = 0; length < exact.size(); ++length) {
      const std::vector<std::byte> cut(exact.begin(),
                                       exact.begin() + static_cast<std::ptrdiff_t>(length));
      std::vector<std::uint32_t> ids;
      bool out_of_range = false;
      ASSERT_FALSE(MsgpackReader(cut).read_token_array(ids, out_of_range).has_value())
          << to_hex(cut);
      ASSERT_TRUE(ids.empty());
    }
  }
}

TEST(MsgpackTokens, RefusesElementsThatAreNoInts) {
  const std::string filler(
      40, '0');  // 20 tokens of value 0 behind, so that the tight loop meets the element
  for (const char* element : {"c0",
                              "c2",
                              "c3",
                              "cb3ff0000000000000",
                              "ca3f800000",
                              "a161",
                              "c40161",
                              "90",
                              "80",
                              "d40161",
                              "c1"}) {
    const Bytes bytes = from_hex(
        "dc0016"
        "07" +
        std::string(element) + filler);
    EXPECT_EQ(read_tokens(bytes).error().code, Code::kMalformed) << element;
  }
  for (const char* hex : {"c0", "80", "c403010203", "a3313233", "01"}) {
    const Bytes bytes = from_hex(hex);
    EXPECT_EQ(read_tokens(bytes).error().code, Code::kMalformed) << hex;
  }
}

TEST(MsgpackTokens, KeepsTheEdgesOfTheRangeAndMarksWhatIsOutside) {
  const Bytes inside = from_hex(
      "94"
      "00"
      "ceffffffff"
      "d30000000000000007"
      "cf00000000ffffffff");
  EXPECT_THAT(read_tokens(inside).value().ids,
              testing::ElementsAre(0, 4294967295U, 7, 4294967295U));
  EXPECT_FALSE(read_tokens(inside).value().out_of_range);
  for (const char* outside : {"92"
                              "cf0000000100000000"
                              "05",
                              "92"
                              "ff"
                              "05",
                              "92"
                              "d38000000000000000"
                              "05",
                              "92"
                              "cfffffffffffffffff"
                              "05"}) {
    const Bytes bytes = from_hex(outside);
    EXPECT_THAT(read_tokens(bytes).value().ids, testing::ElementsAre(0, 5)) << outside;
    EXPECT_TRUE(read_tokens(bytes).value().out_of_range) << outside;
  }
}

TEST(MsgpackTokens, ReadsAnEmptyArrayAndOneOf128ThousandTokens) {
  EXPECT_TRUE(read_tokens(from_hex("90")).value().ids.empty());
  std::mt19937_64 random(1);
  std::vector<std::uint32_t> ids(std::size_t{128} * 1024);
  Bytes bytes;
  MsgpackWriter writer(bytes);
  writer.write_array_header(ids.size());
  for (std::uint32_t& id : ids) {
    id = static_cast<std::uint32_t>(random() % 150000);
    writer.write_uint(id);
  }
  EXPECT_EQ(read_tokens(bytes).value().ids, ids);
}

}  // namespace
}  // namespace larder::codec
