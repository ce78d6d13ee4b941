// Goal: the opcodes of tensor lists and device handles build the tree Python would, everything else
// is refused, and no stream costs more than its length or makes a cycle. Method: streams written by
// hand, opcode by opcode; the streams of real pickles are read in src/tensors.
#include "codec/pickle_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

namespace larder::codec {
namespace {

using namespace std::string_literals;

constexpr PickleLimits kSmall = {
    .values_max = 1000, .memo_max = 300, .stack_max = 600, .global_bytes_max = 32};
constexpr auto kAllowed = std::to_array<PickleGlobal>(
    {{"collections", "OrderedDict"}, {"torch", "bfloat16"}, {"", "Wrapper"}});

Result<PickleDocument> read(const std::string& stream, const PickleLimits& limits = kSmall) {
  return read_pickle(std::as_bytes(std::span(stream)), kAllowed, limits);
}

// A whole pickle around `body`. Views into it live as long as the returned pair.
struct Read {
  explicit Read(const std::string& body)
      : stream("\x80\x04" + body + "."), document(read(stream)) {}

  template <typename T>
  const T& root() const {
    return std::get<T>(document.value()[document.value().root]);
  }

  template <typename T>
  const T& at(PickleIndex index) const {
    return std::get<T>(document.value()[index]);
  }

  std::string stream;
  Result<PickleDocument> document;
};

Code code_of(const std::string& body) {
  const Read read(body);
  EXPECT_FALSE(read.document.has_value()) << testing::PrintToString(body);
  return read.document ? Code::kBusy : read.document.error().code;
}

std::string little_endian(std::uint64_t number, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    text += static_cast<char>(number >> (8 * i));
  }
  return text;
}

TEST(PickleReader, ReadsIntsOfEveryForm) {
  const auto value = [](const std::string& body) { return Read(body).root<std::int64_t>(); };
  EXPECT_EQ(value("K\xff"), 255);
  EXPECT_EQ(value("M\xff\xff"), 65535);
  EXPECT_EQ(value("J\xff\xff\xff\xff"), -1);
  EXPECT_EQ(value("J\xff\xff\xff\x7f"), 2147483647);
  EXPECT_EQ(value("\x8a\x00"s), 0);
  EXPECT_EQ(value("\x8a\x01\xff"), -1);
  EXPECT_EQ(value("\x8a\x05\x00\x00\x00\x00\x01"s), std::int64_t{1} << 32);
  EXPECT_EQ(value("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"),
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(value("\x8a\x08" + std::string(7, '\0') + "\x80"),
            std::numeric_limits<std::int64_t>::min());
  const Read big("\x8a\x09" + std::string(8, '\0') + "\x01");
  EXPECT_EQ(big.root<PickleBigInt>().little_endian.size(), 9U);
}

TEST(PickleReader, ReadsConstantsTextAndBytesOfEveryLengthForm) {
  EXPECT_TRUE(Read("\x88").root<bool>());
  EXPECT_FALSE(Read("\x89").root<bool>());
  (void)Read("N").root<PickleNone>();
  for (const std::string& body :
       {"\x8c\x02hi"s, "X\x02\x00\x00\x00hi"s, "\x8d\x02\0\0\0\0\0\0\0hi"s}) {
    EXPECT_EQ(Read(body).root<std::string_view>(), "hi");
  }
  for (const std::string& body :
       {"C\x02hi"s, "B\x02\x00\x00\x00hi"s, "\x8e\x02\0\0\0\0\0\0\0hi"s}) {
    EXPECT_EQ(Read(body).root<std::span<const std::byte>>().size(), 2U);
  }
}

TEST(PickleReader, ReadsSequences) {
  EXPECT_TRUE(Read(")").root<PickleSequence>().is_tuple);
  EXPECT_FALSE(Read("]").root<PickleSequence>().is_tuple);
  for (const auto& [body, is_tuple, size] : {std::tuple("K\x01\x85"s, true, 1U),
                                             std::tuple("K\x01K\x02\x86"s, true, 2U),
                                             std::tuple("K\x01K\x02K\x03\x87"s, true, 3U),
                                             std::tuple("(K\x01K\x02K\x03K\x04t"s, true, 4U),
                                             std::tuple("(K\x01K\x02l"s, false, 2U),
                                             std::tuple("]K\x01"
                                                        "a"s,
                                                        false,
                                                        1U),
                                             std::tuple("](K\x01K\x02"
                                                        "e(K\x03"
                                                        "e(e"s,
                                                        false,
                                                        3U),
                                             std::tuple("(t"s, true, 0U)}) {
    const Read read(body);
    ASSERT_EQ(read.root<PickleSequence>().items.size(), size);
    EXPECT_EQ(read.root<PickleSequence>().is_tuple, is_tuple);
    for (std::size_t i = 0; i < size; ++i) {
      EXPECT_EQ(read.at<std::int64_t>(read.root<PickleSequence>().items[i]),
                static_cast<std::int64_t>(i + 1));
    }
  }
}

TEST(PickleReader, ReadsDicts) {
  const Read read(
      "}(\x8c\x01"
      "aK\x01\x8c\x01"
      "bK\x02u\x8c\x01"
      "cK\x03s");
  const auto& dict = read.root<PickleDict>();
  ASSERT_EQ(dict.items.size(), 3U);
  EXPECT_EQ(read.at<std::string_view>(dict.items[2].first), "c");
  EXPECT_EQ(read.at<std::int64_t>(dict.items[2].second), 3);
}

TEST(PickleReader, MakesNodesOfCallsAndCallsNothing) {
  const Read by_line("ccollections\nOrderedDict\n)R");
  const Read by_stack(
      "\x8c\x0b"
      "collections\x94\x8c\x0bOrderedDict\x93)R");
  for (const Read* read : {&by_line, &by_stack}) {
    const auto& call = read->root<PickleCall>();
    EXPECT_EQ(read->at<PickleGlobal>(call.global), (PickleGlobal{"collections", "OrderedDict"}));
    EXPECT_TRUE(read->at<PickleSequence>(call.arguments).items.empty());
  }
  const Read persistent("K\x07Q");
  EXPECT_EQ(persistent.at<std::int64_t>(persistent.root<PicklePersistentId>().id), 7);
}

TEST(PickleReader, MakesObjectsOfClassesWithTheirState) {
  // As a device memory handle: the class under any module, no arguments, a dict of attributes.
  const Read read(
      "\x8c\x09some.path\x94\x8c\x07Wrapper\x94\x93)\x81}(\x8c\x04nameK\x01\x8c\x05"
      "dtypectorch\nbfloat16\nub");
  const auto& object = read.root<PickleObject>();
  EXPECT_EQ(read.at<PickleGlobal>(object.global), (PickleGlobal{"some.path", "Wrapper"}));
  ASSERT_TRUE(object.state.has_value());
  EXPECT_EQ(read.at<PickleDict>(*object.state).items.size(), 2U);
  EXPECT_FALSE(Read("cm\nWrapper\n)\x81").root<PickleObject>().state.has_value());
}

TEST(PickleReader, SharesWhatTheMemoHolds) {
  for (const std::string& body : {"](]\x94h\x00h\x00"
                                  "e"s,
                                  "](]q\x05h\x05h\x05"
                                  "e"s,
                                  "](]r\x05\0\0\0j\x05\0\0\0h\x05"
                                  "e"s,
                                  "](K\x09\x94]\x94h\x01h\x01"
                                  "e"s}) {
    const Read read(body);
    const std::vector<PickleIndex>& items = read.root<PickleSequence>().items;
    ASSERT_GE(items.size(), 3U);
    EXPECT_EQ(items[items.size() - 1], items[items.size() - 2]);
    EXPECT_EQ(items[items.size() - 1], items[items.size() - 3]);
  }
}

TEST(PickleReader, IgnoresFrameLengths) {
  EXPECT_EQ(Read("\x95" + std::string(8, '\xff') + "K\x01").root<std::int64_t>(), 1);
}

TEST(PickleReader, StopsAtStopAndLeavesTheRest) {
  const std::string stream = "\x80\x02K\x01.more"s;
  EXPECT_EQ(read(stream).value().bytes_read, 5U);
}

TEST(PickleReader, TakesProtocolsTwoToFive) {
  for (unsigned protocol = 0; protocol < 256; ++protocol) {
    const Result<PickleDocument> document = read("\x80"s + static_cast<char>(protocol) + "N.");
    EXPECT_EQ(document.has_value(), protocol >= 2 && protocol <= 5) << protocol;
  }
  EXPECT_EQ(read("N.").error().code, Code::kMalformed);
  EXPECT_EQ(read("").error().code, Code::kMalformed);
}

TEST(PickleReader, RefusesGlobalsOutsideTheWhitelist) {
  EXPECT_EQ(code_of("cos\nsystem\n"), Code::kUnsupported);
  EXPECT_EQ(code_of("cposix\nsystem\n\x8c\x02id\x85R"), Code::kUnsupported);
  EXPECT_EQ(code_of("\x8c\x02os\x8c\x06system\x93"), Code::kUnsupported);
  EXPECT_EQ(code_of("ctorch\nOrderedDict\n"), Code::kUnsupported);
  EXPECT_EQ(code_of("ccollections\nOrderedDict.__reduce__\n"), Code::kUnsupported);
  EXPECT_EQ(code_of("c\nOrderedDict\n"), Code::kUnsupported);
  EXPECT_EQ(code_of("K\x01K\x02\x93"), Code::kMalformed);
  EXPECT_EQ(code_of("c" + std::string(33, 'm') + "\nWrapper\n"), Code::kTooLarge);
  EXPECT_EQ(code_of("\x8c\x21" + std::string(33, 'm') + "\x8c\x07Wrapper\x93"), Code::kTooLarge);
  EXPECT_EQ(code_of("ctorch\nbfloat16"), Code::kMalformed);
}

TEST(PickleReader, KnowsNoOtherOpcode) {
  const std::string known =
      "().BCJKMNQRX]abcehjlqrstu}\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x8d\x8e\x93\x94\x95";
  for (int byte = 0; byte < 256; ++byte) {
    if (byte != 0x80 && known.find(static_cast<char>(byte)) != std::string::npos) {
      continue;
    }
    EXPECT_EQ(code_of("(NN"s + static_cast<char>(byte)), Code::kUnsupported) << byte;
  }
}

TEST(PickleReader, RefusesStreamsThatDoNotEndInOneValue) {
  for (const std::string& body : {""s, "NN"s, "(N"s, "N("s}) {
    EXPECT_EQ(code_of(body), Code::kMalformed) << body;
  }
  EXPECT_EQ(read("\x80\x04N").error().code, Code::kMalformed);
}

TEST(PickleReader, NeverReachesBelowAMark) {
  for (const std::string& body : {"N(\x85"s,
                                  "NN(\x86"s,
                                  "N(\x94t"s,
                                  "](Na"s,
                                  "}(NNs"s,
                                  "cm\nWrapper\n()R"s,
                                  "cm\nWrapper\n(\x81"s,
                                  "N(Qt"s,
                                  "\x85"s,
                                  "a"s,
                                  "e"s,
                                  "t"s,
                                  "l"s,
                                  "s"s,
                                  "u"s,
                                  "R"s,
                                  "b"s,
                                  "Q"s,
                                  "\x93"s,
                                  "\x94"s,
                                  "q\x00"s,
                                  "(e"s,
                                  "(u"s,
                                  "N(\x93"s}) {
    EXPECT_EQ(code_of(body), Code::kMalformed) << testing::PrintToString(body);
  }
}

TEST(PickleReader, RefusesOpcodesOnValuesOfAnotherType) {
  for (const std::string& body : {"NNa"s,
                                  ")Na"s,
                                  "N(Ne"s,
                                  "N(NNu"s,
                                  "]NNs"s,
                                  "}(Nu"s,
                                  "N)R"s,
                                  "N)\x81"s,
                                  "cm\nWrapper\nNR"s,
                                  "cm\nWrapper\n]R"s,
                                  "cm\nWrapper\n]\x81"s,
                                  "N}b"s,
                                  "}}b"s,
                                  "cm\nWrapper\n)R}b"s,
                                  "cm\nWrapper\n)\x81}b}b"s,
                                  "h\x00"s,
                                  "j\0\0\0\0"s,
                                  "\x8c\x01\xff"s}) {
    EXPECT_EQ(code_of(body), Code::kMalformed) << testing::PrintToString(body);
  }
}

TEST(PickleReader, RefusesToLetAValueContainItself) {
  EXPECT_EQ(code_of("]\x94h\x00"
                    "a"s),
            Code::kMalformed);  // l.append(l)
  EXPECT_EQ(code_of("]\x94h\x00\x85"
                    "a"s),
            Code::kMalformed);  // l.append((l,))
  EXPECT_EQ(code_of("]\x94(h\x00h\x00"
                    "e"s),
            Code::kMalformed);                            // l.extend([l, l])
  EXPECT_EQ(code_of("}\x94Nh\x00s"s), Code::kMalformed);  // d[None] = d
  EXPECT_EQ(code_of("}\x94(Nh\x00u"s), Code::kMalformed);
  EXPECT_EQ(code_of("cm\nWrapper\n)\x81\x94h\x00"
                    "b"s),
            Code::kMalformed);
  EXPECT_EQ(code_of("cm\nWrapper\n)\x81\x94}(Nh\x00ub"s), Code::kMalformed);
  EXPECT_EQ(code_of("]\x94\x85h\x00\x94K\x01"
                    "a\x86"s),
            Code::kMalformed);  // grows inside a tuple
}

TEST(PickleReader, KeepsItsLimits) {
  EXPECT_EQ(code_of("(" + std::string(1001, 'N') + "t"), Code::kTooLarge);
  EXPECT_EQ(code_of(std::string(601, '(')), Code::kTooLarge);
  std::string shared = "N\x94(";
  for (int i = 0; i < 600; ++i) {
    shared += "h\x00"s;
  }
  EXPECT_EQ(code_of(shared), Code::kTooLarge);
  // The memo: its own limit, and the length of the input.
  const std::string filler = "(X" + little_endian(400, 4) + std::string(400, 'x');
  EXPECT_TRUE(Read(filler + "Nr" + little_endian(299, 4) + "t").document.has_value());
  EXPECT_EQ(code_of(filler + "Nr" + little_endian(300, 4) + "t"), Code::kTooLarge);
  EXPECT_EQ(code_of("Nr" + little_endian(10, 4)), Code::kTooLarge);
  EXPECT_EQ(code_of("Nr\xff\xff\xff\xff"), Code::kTooLarge);
}

TEST(PickleReader, TakesABombOfNestedReferencesForWhatItWeighs) {
  // Forty levels of (x, x): 2^40 leaves if it were expanded.
  std::string body = "N\x94";
  for (int level = 0; level < 40; ++level) {
    body += "h"s + static_cast<char>(level) + "h"s + static_cast<char>(level) + "\x86\x94" + "\x85";
  }
  // The stack then holds 41 values; a mark in front gathers them.
  const Read read("(" + body + "t");
  ASSERT_TRUE(read.document.has_value());
  EXPECT_LT(read.document.value().values.size(), 200U);
}

TEST(PickleReader, BuildsDeepNestingWithoutRecursion) {
  PickleLimits limits = kSmall;
  limits.values_max = 1U << 20;
  std::string stream = "\x80\x04N" + std::string(500000, '\x85') + ".";
  EXPECT_EQ(read(stream, limits).value().values.size(), 500001U);
}

TEST(PickleReader, AppendsInLinearTime) {
  // One APPEND at a time; a copy of the list for each would be 10^10 steps.
  PickleLimits limits = kSmall;
  limits.values_max = 1U << 20;
  std::string stream = "\x80\x04]";
  for (int i = 0; i < 200000; ++i) {
    stream += "Na";
  }
  const Result<PickleDocument> document = read(stream + ".", limits);
  EXPECT_EQ(std::get<PickleSequence>(document.value()[0]).items.size(), 200000U);
}

TEST(PickleReader, FailsWhereverTheInputIsCut) {
  const std::string stream =
      "\x80\x04\x95\x10\0\0\0\0\0\0\0](X\x02\0\0\0hi\x94"
      "C\x02xy\x8a\x09"
      "123456789\x8d\x01\0\0\0\0\0\0\0z"
      "ccollections\nOrderedDict\n)R}("
      "\x8c\x01kM\x01\x02uJ\x01\x02\x03\x04Qh\x00j\0\0\0\0r\x07\0\0\0K\x05\x88\x89N"
      "cm\nWrapper\n)\x81}b(tl"
      "e."s;
  std::string whole = stream;
  whole.replace(whole.size() - 4, 4, "te.");
  ASSERT_TRUE(read(whole).has_value()) << read(whole).error().detail;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_FALSE(read_pickle(std::as_bytes(std::span(cut)), kAllowed, kSmall).has_value())
        << length;
  }
}

}  // namespace
}  // namespace larder::codec
