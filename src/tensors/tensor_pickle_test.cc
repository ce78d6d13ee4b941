// Goal: every tensor list that torch pickles is read byte for byte, nothing else is read, and what
// is written reads back. Method: pickles recorded from torch
// (tests/fixtures/make_tensor_pickles.py), and pickles built here with one part at a time changed.
// tests/tensor_pickle lets torch itself load what is written.
#include "tensors/tensor_pickle.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>
#include <string>

namespace larder::tensors {
namespace {

using namespace std::string_literals;

constexpr TensorListLimits kLimits = {.tensors_max = 2000, .storage_bytes_max = 1U << 24};

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::filesystem::path fixtures() {
  return std::filesystem::path(LARDER_FIXTURES) / "tensor_pickles";
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// "dtype shape hex", as a line of expected.txt after the file's name.
std::string described(const TensorView& tensor) {
  const Layout layout{tensor.dtype, tensor.shape};
  std::vector<std::byte> object(bytes_of(layout).value());
  EXPECT_TRUE(copy_to_object(tensor, layout, object).has_value());
  std::ostringstream text;
  text << name_of(tensor.dtype) << ' ';
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    text << (i == 0 ? "" : ",") << tensor.shape[i];
  }
  text << ' ' << std::hex;
  for (const std::byte byte : object) {
    text << (std::to_integer<unsigned>(byte) < 16 ? "0" : "") << std::to_integer<unsigned>(byte);
  }
  return text.str();
}

std::map<std::string, std::vector<std::string>> expected_tensors() {
  std::map<std::string, std::vector<std::string>> expected;
  std::istringstream lines(read_file(fixtures() / "expected.txt"));
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    expected[line.substr(0, space)].push_back(line.substr(space + 1));
  }
  return expected;
}

TEST(TorchPickles, AreReadByteForByte) {
  const auto expected = expected_tensors();
  EXPECT_EQ(expected.size(), 2 * kDtypeCount + 5);
  for (const auto& [file, lines] : expected) {
    const std::string pickle = read_file(fixtures() / file);
    const auto tensors = read_tensor_list(as_bytes(pickle), kLimits);
    ASSERT_TRUE(tensors.has_value()) << file << ": " << tensors.error().detail;
    ASSERT_EQ(tensors.value().size(), lines.size()) << file;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(described(tensors.value()[i]), lines[i]) << file << " " << i;
    }
  }
}

TEST(TorchPickles, AreRefusedWhenTheyHoldAnythingElse) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) {
    if (entry.path().filename().string().starts_with("refused_")) {
      ++files;
      const std::string pickle = read_file(entry.path());
      const auto tensors = read_tensor_list(as_bytes(pickle), kLimits);
      ASSERT_FALSE(tensors.has_value()) << entry.path();
      EXPECT_EQ(tensors.error().code, Code::kMalformed) << entry.path();
    }
  }
  EXPECT_EQ(files, 8U);
}

TEST(TorchPickles, FailWhereverTheyAreCutOrLengthened) {
  for (const char* file : {"one_float32", "three_float8_e4m3fn", "shared", "protocol_3"}) {
    const std::string pickle = read_file(fixtures() / file);
    for (std::size_t length = 0; length < pickle.size(); ++length) {
      const std::vector<char> cut(pickle.begin(),
                                  pickle.begin() + static_cast<std::ptrdiff_t>(length));
      ASSERT_FALSE(read_tensor_list(std::as_bytes(std::span(cut)), kLimits).has_value())
          << file << length;
    }
    EXPECT_FALSE(read_tensor_list(as_bytes(pickle + "."), kLimits).has_value()) << file;
    EXPECT_FALSE(read_tensor_list(as_bytes(pickle + pickle), kLimits).has_value()) << file;
  }
}

// Copies every tensor of what may be a list; the sanitizers watch.
void read_and_copy(const std::string& pickle) {
  const auto tensors = read_tensor_list(as_bytes(pickle), kLimits);
  for (const TensorView& tensor : tensors ? tensors.value() : std::vector<TensorView>()) {
    const auto bytes = bytes_of({tensor.dtype, tensor.shape});
    if (bytes && bytes.value() < 100000) {
      (void)described(tensor);
    }
  }
}

TEST(TorchPickles, NeverLeadOutsideTheInputWhateverByteIsChanged) {
  for (const char* file : {"one_int16", "one_uint16", "strided", "shared"}) {
    const std::string pickle = read_file(fixtures() / file);
    for (std::size_t at = 0; at < pickle.size(); ++at) {
      for (const int change : {1, 0x80, 0xff}) {
        std::string changed = pickle;
        changed[at] = static_cast<char>(changed[at] ^ change);
        read_and_copy(changed);
      }
    }
  }
}

// --- pickles built part by part ---

std::string little_endian(std::uint64_t number, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    text += static_cast<char>(number >> (8 * i));
  }
  return text;
}

std::string long1(std::int64_t number) {
  return "\x8a\x08" + little_endian(static_cast<std::uint64_t>(number), 8);
}

std::string unicode(const std::string& text) {
  return "X" + little_endian(text.size(), 4) + text;
}

std::string tuple(const std::vector<std::int64_t>& numbers) {
  std::string text = "(";
  for (const std::int64_t number : numbers) {
    text += long1(number);
  }
  return text + "t";
}

// One storage; each member can be replaced to break it. Complete opcodes except for `raw`.
struct StorageParts {
  std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s;
  std::string version = "\x80\x02M\xe9\x03."s;
  std::string writer = "(" + unicode("protocol_version") + "M\xe9\x03" + unicode("little_endian") +
                       "\x88" + unicode("type_sizes") + "}u";
  std::string kind = unicode("storage");
  std::string type = "ctorch\nByteStorage\n";
  std::string key = unicode("94167004951856");
  std::string place = unicode("cpu");
  std::string count = long1(24);
  std::string view = "N";
  std::string keys = "]" + unicode("94167004951856") + "a";
  std::string raw_count = little_endian(24, 8);
  std::string raw = std::string(24, '\5');

  std::string blob() const {
    return magic + version + "\x80\x02}" + writer + ".\x80\x02(" + kind + type + key + place +
           count + view + "tQ.\x80\x02" + keys + "." + raw_count + raw;
  }
};

struct TensorParts {
  StorageParts storage;
  std::string loaded;  // instead of the blob's load
  std::string offset = long1(0);
  std::string size = tuple({4, 6});
  std::string stride = tuple({6, 1});
  std::string gradient = "\x89";
  std::string hooks = "ccollections\nOrderedDict\n)R";
  std::string dtype;  // not empty: v3
  std::string metadata;

  std::string call() const {
    const std::string blob = storage.blob();
    const std::string load = loaded.empty() ? "ctorch.storage\n_load_from_bytes\nB" +
                                                  little_endian(blob.size(), 4) + blob + "\x85R"
                                            : loaded;
    return "ctorch._utils\n"s + (dtype.empty() ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3") +
           "\n(" + load + offset + size + stride + gradient + hooks + dtype + metadata + "tR";
  }

  std::string list() const { return "\x80\x04](" + call() + "e."; }
};

Result<std::vector<TensorView>> read(const TensorParts& parts,
                                     const TensorListLimits& limits = kLimits) {
  const std::string pickle = parts.list();
  return read_tensor_list(as_bytes(pickle), limits);
}

// The parts with one thing changed must be refused as malformed.
template <typename Change>
void expect_refused(const char* what, Change change) {
  TensorParts parts;
  change(parts);
  const auto tensors = read(parts);
  ASSERT_FALSE(tensors.has_value()) << what;
  EXPECT_EQ(tensors.error().code, Code::kMalformed) << what;
}

TEST(TensorList, AcceptsThePartsBeforeTheyAreBroken) {
  const std::string pickle = TensorParts().list();
  const auto tensors = read_tensor_list(as_bytes(pickle), kLimits);
  ASSERT_TRUE(tensors.has_value()) << tensors.error().detail;
  const TensorView& tensor = tensors.value().at(0);
  EXPECT_EQ(tensor.dtype, Dtype::kUint8);
  EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(tensor.strides, (std::vector<std::int64_t>{6, 1}));
  EXPECT_EQ(tensor.storage.size(), 24U);
}

TEST(TensorList, AcceptsWhatOtherVersionsOfTorchMayWrite) {
  const auto accepted = [](auto change) {
    TensorParts parts;
    change(parts);
    return read(parts).has_value();
  };
  EXPECT_TRUE(accepted([](TensorParts& parts) { parts.metadata = "N"; }));
  EXPECT_TRUE(accepted([](TensorParts& parts) { parts.metadata = "}"; }));
  EXPECT_TRUE(accepted([](TensorParts& parts) { parts.gradient = "\x88"; }));
  EXPECT_TRUE(accepted([](TensorParts& parts) { parts.dtype = "ctorch\nfloat8_e5m2\n"; }));
  EXPECT_TRUE(accepted([](TensorParts& parts) { parts.dtype = "ctorch\nuint8\nN"; }));
  EXPECT_TRUE(accepted([](TensorParts& parts) {
    parts.storage.type = "ctorch.storage\nUntypedStorage\n";
    parts.dtype = "ctorch\nuint8\n";
  }));
  // Tensors that are no KV cache are still tensors.
  EXPECT_TRUE(accepted([](TensorParts& parts) { parts.size = parts.stride = ")"; }));
  EXPECT_TRUE(accepted([](TensorParts& parts) { parts.size = tuple({4, 0}); }));
}

TEST(TensorList, RefusesEveryBrokenPartOfAStorage) {
  using Parts = TensorParts;
  expect_refused("magic", [](Parts& parts) { parts.storage.magic[6] ^= 1; });
  expect_refused("magic as a small int",
                 [](Parts& parts) { parts.storage.magic = "\x80\x02K\x01."s; });
  expect_refused("version", [](Parts& parts) { parts.storage.version = "\x80\x02M\xea\x03."s; });
  expect_refused("big endian", [](Parts& parts) {
    parts.storage.writer =
        unicode("protocol_version") + "M\xe9\x03s" + unicode("little_endian") + "\x89s";
  });
  expect_refused("both orders",
                 [](Parts& parts) { parts.storage.writer += unicode("little_endian") + "\x89s"; });
  expect_refused("no order", [](Parts& parts) {
    parts.storage.writer = unicode("protocol_version") + "M\xe9\x03s";
  });
  expect_refused("no version",
                 [](Parts& parts) { parts.storage.writer = unicode("little_endian") + "\x88s"; });
  expect_refused("order as int", [](Parts& parts) {
    parts.storage.writer =
        unicode("protocol_version") + "M\xe9\x03s" + unicode("little_endian") + "K\x01s";
  });
  expect_refused("kind", [](Parts& parts) { parts.storage.kind = unicode("module"); });
  expect_refused("type", [](Parts& parts) { parts.storage.type = "ctorch\nQInt8Storage\n"; });
  expect_refused("type of a device",
                 [](Parts& parts) { parts.storage.type = "ctorch.cuda\nByteStorage\n"; });
  expect_refused("type as text", [](Parts& parts) { parts.storage.type = unicode("ByteStorage"); });
  expect_refused("key", [](Parts& parts) { parts.storage.key = unicode("1"); });
  expect_refused("key as int", [](Parts& parts) { parts.storage.key = "K\x01"; });
  expect_refused("place", [](Parts& parts) { parts.storage.place = unicode("cuda:0"); });
  expect_refused("place meta", [](Parts& parts) { parts.storage.place = unicode("meta"); });
  expect_refused("view", [](Parts& parts) { parts.storage.view = ")"; });
  expect_refused("a seventh field", [](Parts& parts) { parts.storage.view = "NN"; });
  expect_refused("no key", [](Parts& parts) { parts.storage.keys = "]"; });
  expect_refused("two keys", [](Parts& parts) {
    parts.storage.keys = "](" + parts.storage.key + parts.storage.key + "e";
  });
  expect_refused("keys as tuple",
                 [](Parts& parts) { parts.storage.keys = parts.storage.key + "\x85"; });
  expect_refused("a global of the outer list",
                 [](Parts& parts) { parts.storage.view = "ccollections\nOrderedDict\n"; });
}

TEST(TensorList, RefusesStoragesOfAnotherSizeThanAnnounced) {
  for (const std::int64_t count : {0LL,
                                   23LL,
                                   25LL,
                                   -1LL,
                                   24LL | (1LL << 32),
                                   std::numeric_limits<long long>::max(),
                                   std::numeric_limits<long long>::min()}) {
    expect_refused("announced count",
                   [&](TensorParts& parts) { parts.storage.count = long1(count); });
    expect_refused("raw count", [&](TensorParts& parts) {
      parts.storage.raw_count = little_endian(static_cast<std::uint64_t>(count), 8);
    });
    expect_refused("both counts", [&](TensorParts& parts) {
      parts.storage.count = long1(count);
      parts.storage.raw_count = little_endian(static_cast<std::uint64_t>(count), 8);
    });
  }
  expect_refused("a byte missing", [](TensorParts& parts) { parts.storage.raw.pop_back(); });
  expect_refused("a byte too many", [](TensorParts& parts) { parts.storage.raw += 'x'; });
  expect_refused("no raw bytes", [](TensorParts& parts) { parts.storage.raw.clear(); });
  expect_refused("no count",
                 [](TensorParts& parts) { parts.storage.raw = parts.storage.raw_count = ""; });
  expect_refused("a count that wraps", [](TensorParts& parts) {
    // 24 bytes once the product with an item size of 8 has lost its upper bits
    parts.storage.type = "ctorch\nLongStorage\n";
    parts.storage.count = long1((1LL << 61) + 3);
    parts.storage.raw_count = little_endian((1ULL << 61) + 3, 8);
    parts.size = tuple({3});
    parts.stride = tuple({1});
  });
  expect_refused("a part of an element", [](TensorParts& parts) {
    parts.storage.type = "ctorch\nHalfStorage\n";
    parts.storage.count = long1(11);
    parts.storage.raw_count = little_endian(11, 8);
    parts.storage.raw.resize(23);
    parts.size = tuple({2});
    parts.stride = tuple({1});
  });
}

TEST(TensorList, RefusesViewsThatLeaveTheirStorage) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto refused =
      [](std::vector<std::int64_t> size, std::vector<std::int64_t> stride, std::int64_t offset) {
        expect_refused("view", [&](TensorParts& parts) {
          parts.size = tuple(size);
          parts.stride = tuple(stride);
          parts.offset = long1(offset);
        });
      };
  refused({25}, {1}, 0);
  refused({24}, {1}, 1);
  refused({2}, {24}, 0);
  refused({4, 6}, {6, 2}, 0);
  refused({1}, {1}, 24);
  refused({1}, {1}, kMax);
  refused({1}, {1}, -1);
  refused({2}, {kMax}, 1);
  refused({kMax}, {kMax}, 0);
  refused({3, 3}, {kMax / 2, kMax / 2}, 0);
  refused({5}, {std::int64_t{1} << 62}, 0);  // four times 2^62 is zero in 64 bits
  refused({-4, 6}, {6, 1}, 0);
  refused({4, 6}, {6, -1}, 23);
  refused({4, 6}, {6}, 0);
  refused({24}, {6, 1}, 0);
  refused({kMax, kMax}, {0, 0}, 0);  // broadcast to more elements than can be counted
  expect_refused("two-byte items", [](TensorParts& parts) { parts.dtype = "ctorch\nfloat16\n"; });
}

TEST(TensorList, AcceptsViewsThatReachTheLastElement) {
  for (const auto& [size, stride, offset] :
       {std::tuple(std::vector<std::int64_t>{24}, std::vector<std::int64_t>{1}, 0),
        std::tuple(std::vector<std::int64_t>{1}, std::vector<std::int64_t>{1000}, 23),
        std::tuple(std::vector<std::int64_t>{2, 2}, std::vector<std::int64_t>{1, 22}, 0),
        std::tuple(std::vector<std::int64_t>{1000}, std::vector<std::int64_t>{0}, 23),
        std::tuple(std::vector<std::int64_t>{0}, std::vector<std::int64_t>{1}, 1000)}) {
    TensorParts parts;
    parts.size = tuple(size);
    parts.stride = tuple(stride);
    parts.offset = long1(offset);
    EXPECT_TRUE(read(parts).has_value()) << testing::PrintToString(size);
  }
}

TEST(TensorList, RefusesEveryBrokenPartOfATensor) {
  using Parts = TensorParts;
  expect_refused("no storage", [](Parts& parts) { parts.loaded = "N"; });
  expect_refused("bytes for a storage", [](Parts& parts) { parts.loaded = "C\x01x"; });
  expect_refused("another call", [](Parts& parts) { parts.loaded = parts.hooks; });
  expect_refused("load of text", [](Parts& parts) {
    parts.loaded = "ctorch.storage\n_load_from_bytes\n\x8c\x01x\x85R";
  });
  expect_refused("load of nothing",
                 [](Parts& parts) { parts.loaded = "ctorch.storage\n_load_from_bytes\n)R"; });
  expect_refused("load of no bytes", [](Parts& parts) {
    parts.loaded = "ctorch.storage\n_load_from_bytes\nC\0\x85R"s;
  });
  expect_refused("an instance",
                 [](Parts& parts) { parts.loaded = "ctorch.storage\n_load_from_bytes\n)\x81"; });
  expect_refused("offset as bool", [](Parts& parts) { parts.offset = "\x88"; });
  expect_refused("offset as text", [](Parts& parts) { parts.offset = unicode("0"); });
  expect_refused("offset too long",
                 [](Parts& parts) { parts.offset = "\x8a\x09" + std::string(9, '\0'); });
  expect_refused("size as list", [](Parts& parts) {
    parts.size =
        "](K\x04K\x06"
        "e";
  });
  expect_refused("size of bools", [](Parts& parts) { parts.size = "\x88\x88\x86"; });
  expect_refused("size as int", [](Parts& parts) { parts.size = "K\x04"; });
  expect_refused("gradient as int", [](Parts& parts) { parts.gradient = "K\x00"s; });
  expect_refused("hooks as none", [](Parts& parts) { parts.hooks = "N"; });
  expect_refused("hooks with content",
                 [](Parts& parts) { parts.hooks = "ccollections\nOrderedDict\n]\x85R"; });
  expect_refused("hooks of another kind", [](Parts& parts) { parts.hooks = "ctorch\nuint8\n)R"; });
  expect_refused("conjugated",
                 [](Parts& parts) { parts.metadata = "}" + unicode("conj") + "\x88s"; });
  expect_refused("metadata as tuple", [](Parts& parts) { parts.metadata = ")"; });
  expect_refused("two metadata", [](Parts& parts) { parts.metadata = "NN"; });
  expect_refused("dtype as text", [](Parts& parts) { parts.dtype = unicode("uint8"); });
  expect_refused("dtype as function",
                 [](Parts& parts) { parts.dtype = "ctorch._utils\n_rebuild_tensor_v2\n"; });
  expect_refused("dtype unknown", [](Parts& parts) { parts.dtype = "ctorch\nqint8\n"; });
  expect_refused("untyped storage in v2",
                 [](Parts& parts) { parts.storage.type = "ctorch.storage\nUntypedStorage\n"; });
}

TEST(TensorList, RefusesWhatIsNoList) {
  const std::string tensor = TensorParts().call();
  const std::vector<std::string> pickles = {""s,
                                            "\x80\x04."s,
                                            "\x80\x04N."s,
                                            "\x80\x04)."s,
                                            "\x80\x04}."s,
                                            "\x80\x04" + tensor + ".",
                                            "\x80\x04(" + tensor + "t.",
                                            "\x80\x04](Ne.",
                                            "\x80\x04](]e.",
                                            "\x80\x04](" + tensor + "Ne.",
                                            "\x80\x04](ccollections\nOrderedDict\n)Re.",
                                            "\x80\x04](ctorch._utils\n_rebuild_tensor_v2\n)Re.",
                                            "\x80\x04](NQe.",
                                            "\x80\x04]..",
                                            "\x80\x04].\x80\x04]."s,
                                            "\x80\x04](cos\nsystem\n" + unicode("id") + "\x85Re."};
  for (const std::string& pickle : pickles) {
    const auto tensors = read_tensor_list(as_bytes(pickle), kLimits);
    ASSERT_FALSE(tensors.has_value()) << testing::PrintToString(pickle);
    EXPECT_EQ(tensors.error().code, Code::kMalformed) << testing::PrintToString(pickle);
  }
  const std::string empty = "\x80\x04].";
  EXPECT_TRUE(read_tensor_list(as_bytes(empty), kLimits).value().empty());
}

TEST(TensorList, KeepsItsLimits) {
  const auto code = [](const TensorParts& parts, const TensorListLimits& limits) {
    const auto tensors = read(parts, limits);
    return tensors ? Code::kBusy : tensors.error().code;
  };
  EXPECT_EQ(code({}, {.tensors_max = 1, .storage_bytes_max = 24}), Code::kBusy);
  EXPECT_EQ(code({}, {.tensors_max = 1, .storage_bytes_max = 23}), Code::kTooLarge);
  EXPECT_EQ(code({}, {.tensors_max = 0, .storage_bytes_max = 24}), Code::kTooLarge);
  TensorParts nine_dimensions;
  nine_dimensions.size = nine_dimensions.stride = tuple({1, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(code(nine_dimensions, kLimits), Code::kTooLarge);
  const std::string many = "\x80\x04](" + TensorParts().call() + "\x94" + [] {
    std::string references;
    for (int i = 0; i < 2000; ++i) {
      references += "h\0"s;
    }
    return references;
  }() + "e.";
  EXPECT_EQ(read_tensor_list(as_bytes(many), kLimits).error().code, Code::kTooLarge);
  EXPECT_EQ(read_tensor_list(as_bytes(many), {.tensors_max = 2001, .storage_bytes_max = 24})
                .value()
                .size(),
            2001U);
}

TEST(TensorList, ReadsBlobsThatSeveralLoadsShare) {
  // The second and third tensor load the first one's blob again, through the memo; the fourth
  // brings its own.
  TensorParts parts;
  const std::string blob = parts.storage.blob();
  const std::string load = "ctorch.storage\n_load_from_bytes\n";
  std::string pickle = "\x80\x04](";
  parts.loaded = load + "B" + little_endian(blob.size(), 4) + blob + "\x94\x85R";
  pickle += parts.call();
  parts.loaded = load + "h\0\x85R"s;
  pickle += parts.call() + parts.call();
  parts.loaded.clear();
  pickle += parts.call() + "e.";
  const auto tensors = read_tensor_list(as_bytes(pickle), kLimits);
  ASSERT_TRUE(tensors.has_value()) << tensors.error().detail;
  const auto* const first = tensors.value()[0].storage.data();
  EXPECT_EQ(tensors.value()[1].storage.data(), first);
  EXPECT_EQ(tensors.value()[2].storage.data(), first);
  EXPECT_NE(tensors.value()[3].storage.data(), first);
}

// --- what is written ---

struct Objects {
  Objects(const Layout& layout, std::size_t count) : bytes(bytes_of(layout).value() * count) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
    }
    const std::size_t object_bytes = bytes_of(layout).value();
    for (std::size_t i = 0; i < count; ++i) {
      spans.emplace_back(std::span(bytes).subspan(i * object_bytes, object_bytes));
    }
  }

  std::vector<std::byte> bytes;
  std::vector<std::span<const std::byte>> spans;
};

void expect_read_back(const Layout& layout, std::size_t count) {
  SCOPED_TRACE(to_string(layout) + " times " + std::to_string(count));
  const Objects objects(layout, count);
  codec::Bytes pickle(5, std::byte{9});  // it appends
  write_tensor_list(layout, objects.spans, pickle);
  ASSERT_EQ(pickle.size(), 5 + tensor_list_bytes(layout, count));
  const auto tensors = read_tensor_list(std::span(pickle).subspan(5), kLimits);
  ASSERT_TRUE(tensors.has_value()) << tensors.error().detail;
  ASSERT_EQ(tensors.value().size(), count);
  for (std::size_t object = 0; object < count; ++object) {
    std::vector<std::byte> copied(bytes_of(layout).value());
    EXPECT_TRUE(tensors.value()[object].is_contiguous());
    ASSERT_TRUE(copy_to_object(tensors.value()[object], layout, copied).has_value());
    ASSERT_TRUE(std::ranges::equal(copied, objects.spans[object]));
  }
}

TEST(WrittenList, ReadsBackForEveryDtypeShapeAndCount) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {1}, {2, 3, 4, 5}, {300}, {1, 2, 1, 2, 1, 2, 1, 2}, {2, 1, 70000}};
  for (std::size_t i = 0; i < kDtypeCount; ++i) {
    for (const std::vector<std::int64_t>& shape : shapes) {
      for (const std::size_t count : {0U, 1U, 2U, 3U}) {
        expect_read_back({static_cast<Dtype>(i), shape}, count);
      }
    }
  }
}

TEST(WrittenList, HoldsAThousandObjectsInOneStorage) {
  const Layout layout{Dtype::kBfloat16, {2, 33}};
  const Objects objects(layout, 1500);
  codec::Bytes pickle;
  write_tensor_list(layout, objects.spans, pickle);
  EXPECT_EQ(pickle.size(), tensor_list_bytes(layout, 1500));
  const auto tensors = read_tensor_list(pickle, kLimits);
  ASSERT_TRUE(tensors.has_value());
  for (std::size_t i = 0; i < objects.spans.size(); ++i) {
    EXPECT_EQ(tensors.value()[i].storage.data(), tensors.value()[0].storage.data());
    EXPECT_EQ(tensors.value()[i].offset, static_cast<std::int64_t>(i * 66));
  }
  EXPECT_TRUE(std::ranges::equal(tensors.value()[0].storage, objects.bytes));
}

TEST(WrittenList, IsTheOneThatTorchWasSeenToLoad) {
  // tests/tensor_pickle/test_tensor_pickle.py loads this file with torch.
  const Layout layout{Dtype::kFloat8E4m3fn, {2, 3, 2}};
  const Objects objects(layout, 3);
  codec::Bytes pickle;
  write_tensor_list(layout, objects.spans, pickle);
  const std::string recorded = read_file(fixtures() / "written_float8_e4m3fn");
  EXPECT_TRUE(std::ranges::equal(pickle, as_bytes(recorded)));
}

TEST(WrittenList, CountsListsBeyondFourGibibytesWithoutWritingThem) {
  const std::size_t small = tensor_list_bytes({Dtype::kUint8, {1, 1, 1}}, 5) - 5;
  const std::size_t large =
      tensor_list_bytes({Dtype::kUint8, {1024, 1024, 1024}}, 5) - (std::size_t{5} << 30);
  // What grows with the numbers: an int takes 2 bytes below 2^8, 3 below 2^16, 5 below 2^31 and 10
  // beyond.
  const std::size_t blob_length = 8 - 4;
  const std::size_t storage_count = 10 - 2;
  const std::size_t sizes = 3;  // 3 - 2 bytes more each
  const std::size_t strides = (5 - 2) + (3 - 2);
  const std::size_t offsets = (5 - 2) + (10 - 2) + (10 - 2) + (10 - 2);
  EXPECT_EQ(large, small + blob_length + storage_count + sizes + strides + offsets);
}

}  // namespace
}  // namespace larder::tensors
