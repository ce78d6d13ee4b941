// Goal: every name that clients can map is accepted and spelled as they expect; what cannot be one
// file is refused.
#include "pool/segment_name.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace larder::pool {
namespace {

TEST(SegmentName, GetsThePrefixUnlessItHasIt) {
  EXPECT_EQ(*segment_name_from("kv"), "lmcache_l1_pool_kv");
  EXPECT_EQ(*segment_name_from("/kv"), "lmcache_l1_pool_kv");
  EXPECT_EQ(*segment_name_from("lmcache_l1_pool_kv"), "lmcache_l1_pool_kv");
  EXPECT_EQ(*segment_name_from("/lmcache_l1_pool_kv"), "lmcache_l1_pool_kv");
  EXPECT_EQ(*segment_name_from(".."), "lmcache_l1_pool_..");
}

TEST(SegmentName, RefusesWhatIsNotOneFileName) {
  for (const std::string given : {"", "/", "///", "a/b", "/a/", "../x"}) {
    const auto name = segment_name_from(given);
    ASSERT_FALSE(name.has_value()) << given;
    EXPECT_EQ(name.error().code, Code::kInvalid);
    EXPECT_NE(name.error().detail.find("--shm-name"), std::string::npos);
  }
  EXPECT_FALSE(segment_name_from(std::string("a\0b", 3)).has_value());
}

TEST(SegmentName, MayBeAsLongAsAClientCanMap) {
  const std::string longest(kSegmentNameBytesMax - kSegmentPrefix.size(), 'x');
  EXPECT_TRUE(segment_name_from(longest).has_value());
  const auto refused = segment_name_from(longest + "x");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().detail.find("too long"), std::string::npos);
}

TEST(SegmentName, OfOurOwnCarriesOurMarkAndIsNew) {
  const std::string name = fresh_segment_name();
  EXPECT_TRUE(name.starts_with("lmcache_l1_pool_larder_" + std::to_string(::getpid()) + "_"));
  EXPECT_NE(name, fresh_segment_name());
}

}  // namespace
}  // namespace larder::pool
