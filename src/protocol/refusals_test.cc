// Goal: what a request of a few bytes can make us answer has a bound, and a peer's every key is
// answered up to it. Method: results asked for with numbers of keys around the bound.
#include "protocol/refusals.h"

#include <gtest/gtest.h>

#include "codec/msgpack_writer.h"

namespace larder::protocol {
namespace {

constexpr std::size_t kReplyBytesMax = 256U << 10;

// How many results there are, and of how many bytes, for a task of so many keys.
struct Results {
  std::size_t count;
  std::size_t bytes;
};

Results results_of(std::int64_t keys) {
  codec::Bytes task;
  codec::MsgpackWriter(task).write_int(keys);
  const std::vector<Frame> frames{task};
  const EncodedReply reply = refuse_peer_results(frames, Release::k052);
  codec::MsgpackReader reader(reply.value);
  const Result<std::size_t> count = reader.read_array_header();
  return {count ? *count : 0, reply.value.size()};
}

TEST(Refusals, APeerGetsAResultForEachKeyOfALargePrompt) {
  for (const std::int64_t keys : {0, 1, 4096, 16384}) {
    EXPECT_EQ(results_of(keys).count, static_cast<std::size_t>(keys));
  }
}

TEST(Refusals, FewBytesDoNotMakeALargeReply) {
  for (const std::int64_t keys :
       {std::int64_t{16384}, std::int64_t{65536}, std::int64_t{1} << 40}) {
    EXPECT_LE(results_of(keys).bytes, kReplyBytesMax) << keys;
  }
  EXPECT_EQ(results_of(-1).count, 0U);
}

}  // namespace
}  // namespace larder::protocol
