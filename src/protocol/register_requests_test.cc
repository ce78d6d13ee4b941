// What a KV cache registration says beyond its tensors. Hand-written payloads with the fields that
// the recorded ones lack or have at their defaults, read as several releases.
#include <gtest/gtest.h>

#include <functional>

#include "codec/msgpack_writer.h"
#include "protocol/requests.h"

namespace larder::protocol {
namespace {

using codec::MsgpackWriter;

class Registration {
 public:
  using Write = std::function<void(MsgpackWriter&)>;

  Registration& add(const Write& write) {
    codec::Bytes& bytes = payloads_.emplace_back();
    MsgpackWriter writer(bytes);
    write(writer);
    return *this;
  }

  Result<RegisterKvCacheRequest> decode(Release release) const {
    const std::vector<Frame> frames(payloads_.begin(), payloads_.end());
    return RegisterKvCacheRequest::decode(frames, release);
  }

 private:
  std::vector<codec::Bytes> payloads_;
};

Registration registration(const Registration::Write& hints, const Registration::Write& groups) {
  Registration built;
  built.add([](MsgpackWriter& to) { to.write_int(7); })
      .add([](MsgpackWriter& to) { to.write_array_header(0); })
      .add([](MsgpackWriter& to) { to.write_string("m"); })
      .add([](MsgpackWriter& to) { to.write_int(1); })
      .add([](MsgpackWriter& to) { to.write_string("sglang"); })
      .add(hints)
      .add(groups);
  return built;
}

void write_hints(MsgpackWriter& to, std::string_view list_layout) {
  to.write_map_header(2);
  to.write_string("kv_list_layout");
  to.write_string(list_layout);
  to.write_string("tokens_per_block");
  to.write_int(64);
}

void write_group(MsgpackWriter& to) {
  to.write_array_header(1);
  to.write_map_header(3);
  to.write_string("engine_group_id");
  to.write_int(3);
  to.write_string("extra_object_group_tag");
  to.write_int(5);
  to.write_string("recurrent_state");
  to.write_bool(true);
}

TEST(KvCacheRegistration, KeepsTheTagAndTheKindOfAGroup) {
  const auto request = registration([](MsgpackWriter& to) { write_hints(to, "k_v"); }, write_group)
                           .decode(Release::k056);
  ASSERT_TRUE(request);
  ASSERT_EQ(request->groups.size(), 1U);
  EXPECT_EQ(request->groups[0].engine_group_id, 3);
  EXPECT_EQ(request->groups[0].object_group_tag, 5);
  EXPECT_TRUE(request->groups[0].is_recurrent);
  EXPECT_EQ(request->hints.kv_list_layout, "k_v");
  EXPECT_EQ(request->hints.tokens_per_block, 64);
  EXPECT_EQ(request->hints.num_kv_heads, std::nullopt);
}

TEST(KvCacheRegistration, FieldsOfLaterReleasesAreUnknownToEarlierOnes) {
  const auto request = registration([](MsgpackWriter& to) { write_hints(to, "?"); }, write_group)
                           .decode(Release::k052);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->groups[0].object_group_tag, 0);
  EXPECT_FALSE(request->groups[0].is_recurrent);
  EXPECT_EQ(request->hints.kv_list_layout, "");
}

TEST(KvCacheRegistration, AListLayoutIsOneThatTheReleaseKnows) {
  const Registration unified =
      registration([](MsgpackWriter& to) { write_hints(to, "unified"); }, write_group);
  EXPECT_FALSE(unified.decode(Release::k055));
  EXPECT_TRUE(unified.decode(Release::k056));
}

}  // namespace
}  // namespace larder::protocol
