// The key's rules that the recorded frames do not reach: salts, names and the parts of a broken
// key.
#include "protocol/key.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codec/msgpack_writer.h"
#include "protocol/payloads.h"
#include "protocol/short_string.h"

namespace larder::protocol {
namespace {

struct KeyParts {
  std::string model_name = "m";
  std::string request_id = "r";
  std::string cache_salt;
};

codec::Bytes packed(const KeyParts& parts) {
  codec::Bytes bytes;
  codec::MsgpackWriter writer(bytes);
  writer.write_map_header(8);
  writer.write_string("request_id");  // any order is accepted
  writer.write_string(parts.request_id);
  writer.write_string("model_name");
  writer.write_string(parts.model_name);
  writer.write_string("world_size");
  writer.write_int(2);
  writer.write_string("worker_id");
  writer.write_nil();
  writer.write_string("token_ids");
  writer.write_array_header(1);
  writer.write_int(7);
  writer.write_string("start");
  writer.write_int(0);
  writer.write_string("end");
  writer.write_int(1);
  writer.write_string("cache_salt");
  writer.write_string(parts.cache_salt);
  return bytes;
}

bool decodes(const KeyParts& parts) {
  return whole_key(packed(parts), Release::k050).has_value();
}

TEST(Key, DecodesInAnyOrderOfFields) {
  const Result<Key> key = whole_key(packed({"model", "request", "tenant"}), Release::k050);
  ASSERT_TRUE(key.has_value());
  EXPECT_EQ(key->model_name, "model");
  EXPECT_EQ(key->request_id, "request");
  EXPECT_EQ(key->cache_salt, "tenant");
  EXPECT_EQ(key->world_size, 2);
  EXPECT_EQ(key->worker_id, std::nullopt);
  EXPECT_EQ(key->token_ids, std::vector<std::uint32_t>{7});
}

TEST(Key, RefusesSaltsThatWouldBreakOutOfAName) {
  for (const char* salt : {"a@b", "a/b", "a\\b"}) {
    EXPECT_FALSE(decodes({"m", "r", salt})) << salt;
  }
  EXPECT_FALSE(decodes({"m", "r", std::string("a\0b", 3)}));
  EXPECT_TRUE(decodes({"m", "r", "a b"}));
}

TEST(Key, CountsASaltInCodePoints) {
  std::string two_byte_characters;
  for (int i = 0; i < 128; ++i) {
    two_byte_characters += "\xc3\xa9";
  }
  EXPECT_TRUE(decodes({"m", "r", two_byte_characters}));
  EXPECT_FALSE(decodes({"m", "r", two_byte_characters + "x"}));
}

TEST(Key, RefusesNamesAndIdsLongerThanAnyRealOne) {
  EXPECT_TRUE(decodes({std::string(kNameBytesMax, 'm'), std::string(kNameBytesMax, 'r'), ""}));
  EXPECT_FALSE(decodes({std::string(kNameBytesMax + 1, 'm'), "r", ""}));
  EXPECT_FALSE(decodes({"m", std::string(kNameBytesMax + 1, 'r'), ""}));
}

// A key that begins with a field of this name, as an unknown release might write it.
codec::Bytes with_field(const std::string& name) {
  codec::Bytes bytes;
  codec::MsgpackWriter writer(bytes);
  writer.write_map_header(2);
  writer.write_string(name);
  writer.write_int(1);
  writer.write_string("token_ids");
  writer.write_array_header(0);
  return bytes;
}

bool fits(const codec::Bytes& key, PayloadKind kind) {
  const std::vector<Frame> frames{key};
  return fits(frames, std::span(&kind, 1), Release::k050);
}

TEST(Key, FitsNoReleaseWhenAFieldsNameIsLongerThanAnyRealOne) {
  EXPECT_TRUE(fits(with_field(std::string(kNameBytesMax, 'n')), PayloadKind::kKey));
  EXPECT_FALSE(fits(with_field(std::string(kNameBytesMax + 1, 'n')), PayloadKind::kKey));
  EXPECT_FALSE(fits(with_field(std::string(1U << 20, 'n')), PayloadKind::kKey));
}

TEST(Registration, FitsNoReleaseWhenAFieldsNameIsLongerThanAnyRealOne) {
  EXPECT_TRUE(fits(with_field(std::string(kNameBytesMax, 'n')), PayloadKind::kRegistration));
  EXPECT_FALSE(fits(with_field(std::string(kNameBytesMax + 1, 'n')), PayloadKind::kRegistration));
}

TEST(ShortString, IsJudgedByItsLengthBeforeItsContent) {
  const auto read = [](const std::string& text) {
    codec::Bytes bytes;
    codec::MsgpackWriter(bytes).write_string(text);
    codec::MsgpackReader reader(bytes);
    const Result<std::string_view> string = read_short_string(reader, 4);
    return string ? std::string(*string) : std::string(to_string(string.error().code));
  };
  const std::string malformed(to_string(Code::kMalformed));
  const std::string too_large(to_string(Code::kTooLarge));
  EXPECT_EQ(read("four"), "four");
  EXPECT_EQ(read(""), "");
  EXPECT_EQ(read("\xff"), malformed);
  EXPECT_EQ(read("fives"), too_large);
  EXPECT_EQ(read(std::string(100, '\xff')), too_large);
  EXPECT_EQ(read(std::string(100'000, '\xff')), too_large);
}

TEST(Int, OfThousandsOfDigitsIsNone) {
  const auto read = [](const std::string& text) {
    codec::Bytes bytes;
    codec::MsgpackWriter(bytes).write_string(text);
    return whole_int(bytes, Release::k050).has_value();
  };
  EXPECT_TRUE(read(std::string(1000, ' ') + "7"));
  EXPECT_FALSE(read(std::string(1U << 20, ' ') + "7"));
}

TEST(Key, GivesItsRequestIdAlsoWhenTheRestIsBroken) {
  codec::Bytes bytes = packed({"m", "request", ""});
  bytes.resize(40);
  EXPECT_FALSE(whole_key(bytes, Release::k050).has_value());
  EXPECT_EQ(request_id_of_key(bytes), "request");
}

}  // namespace
}  // namespace larder::protocol
