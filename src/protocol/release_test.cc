// Sets of releases: order, families and how they are shown.
#include "protocol/release.h"

#include <gtest/gtest.h>

namespace larder::protocol {
namespace {

TEST(ReleaseSet, HoldsWhatWasPutIn) {
  const ReleaseSet set{Release::k046, Release::k055};
  EXPECT_TRUE(set.contains(Release::k055));
  EXPECT_FALSE(set.contains(Release::k045));
  EXPECT_EQ(set.size(), 2U);
  EXPECT_EQ(set.oldest(), Release::k046);
  EXPECT_TRUE(ReleaseSet::all().contains(set));
  EXPECT_FALSE(set.contains(ReleaseSet::all()));
  EXPECT_TRUE((set & ReleaseSet{Release::k047}).empty());
}

TEST(ReleaseSet, IsShownAsVersions) {
  EXPECT_EQ(to_string(ReleaseSet::all()), "any");
  EXPECT_EQ(to_string(ReleaseSet{}), "none");
  EXPECT_EQ(to_string({Release::k047}), "0.4.7");
  EXPECT_EQ(to_string({Release::k050}), "0.5.0-0.5.1");
  EXPECT_EQ(to_string({Release::k050, Release::k052}), "0.5.0-0.5.2");
  EXPECT_EQ(to_string({Release::k055, Release::k056}), "0.5.5-0.5.6");
  EXPECT_EQ(to_string({Release::k046, Release::k050, Release::k052}), "0.4.6, 0.5.0-0.5.2");
}

TEST(ReleaseSet, OfOneFamilyShareTheirCoreNumbers) {
  EXPECT_TRUE(is_one_family({Release::k050, Release::k052}));
  EXPECT_TRUE(is_one_family(ReleaseSet::since(Release::k053)));
  EXPECT_TRUE(is_one_family({Release::k047}));
  EXPECT_FALSE(is_one_family({Release::k047, Release::k050}));
  EXPECT_FALSE(is_one_family({Release::k052, Release::k053}));
  EXPECT_FALSE(is_one_family({}));
}

TEST(Release, IsFoundByItsVersion) {
  EXPECT_EQ(release_of_version("0.5.1"), Release::k050);
  EXPECT_EQ(release_of_version("0.5.2"), Release::k052);
  EXPECT_EQ(release_of_version("0.5.4"), Release::k053);
  EXPECT_EQ(release_of_version("0.5.7rc3"), Release::k057rc3);
  EXPECT_EQ(release_of_version("auto"), std::nullopt);
  EXPECT_EQ(release_of_version("0.5"), std::nullopt);
}

}  // namespace
}  // namespace larder::protocol
