// Goal: a request's block ids are refused when the copy could not use them, and cut as LMCache cuts
// them.
// Method: plans with one or two groups by hand, numbers recorded from LMCache 0.5.2, and arithmetic
// against a count of single blocks.
#include "geometry/block_lists.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

namespace larder::geometry {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;

KernelGroup group_of(std::uint32_t blocks_per_chunk, std::uint32_t blocks_per_object) {
  KernelGroup group;
  group.blocks = 100;
  group.tokens_per_block = 16;
  group.blocks_per_chunk = blocks_per_chunk;
  group.blocks_per_object = blocks_per_object;
  return group;
}

CachePlan plan_of_groups(std::vector<KernelGroup> groups) {
  CachePlan plan;
  plan.kernel_groups = std::move(groups);
  plan.object_groups.emplace_back();
  for (std::uint32_t i = 0; i < plan.kernel_groups.size(); ++i) {
    plan.object_groups[0].kernel_groups.push_back(i);
  }
  return plan;
}

TEST(BlockLists, AreAcceptedWithAtLeastTheChunksOfTheRequest) {
  const CachePlan plan = plan_of_groups({group_of(2, 2)});
  EXPECT_TRUE(check_block_lists(plan, {{0, 1, 2, 99}}, 2));
  EXPECT_TRUE(check_block_lists(plan, {{0, 1, 2, 99}}, 1));
  EXPECT_TRUE(check_block_lists(plan, {{}}, 0));
}

TEST(BlockLists, AreRefusedWhenTheyAreShort) {
  const CachePlan plan = plan_of_groups({group_of(2, 2)});
  EXPECT_EQ(check_block_lists(plan, {{0, 1, 2, 3}}, 3).error().code, Code::kInvalid);
  EXPECT_FALSE(check_block_lists(plan, {{}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{0, 1}}, std::numeric_limits<std::size_t>::max()));
}

TEST(BlockLists, AreRefusedWhenTheyEndInsideAChunk) {
  EXPECT_FALSE(check_block_lists(plan_of_groups({group_of(2, 2)}), {{0, 1, 2}}, 1));
}

TEST(BlockLists, AreOneAKernelGroup) {
  const CachePlan plan = plan_of_groups({group_of(2, 2), group_of(1, 1)});
  EXPECT_TRUE(check_block_lists(plan, {{0, 1}, {0}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{0, 1}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{0, 1}, {0}, {0}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{0, 1}, {}}, 1));
}

TEST(BlockLists, NameOnlyBlocksThatTheTensorsHave) {
  const CachePlan plan = plan_of_groups({group_of(2, 2)});
  EXPECT_FALSE(check_block_lists(plan, {{0, 100}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{-1, 0}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{0, std::numeric_limits<std::int64_t>::max()}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{std::numeric_limits<std::int64_t>::min(), 0}}, 1));
}

TEST(BlockLists, MayNameAnythingWhereNoObjectTakesIt) {
  const CachePlan plan = plan_of_groups({group_of(4, 1)});
  EXPECT_TRUE(check_block_lists(plan, {{-1, -1, 500, 7}}, 1));
  EXPECT_FALSE(check_block_lists(plan, {{7, 7, 7, 500}}, 1));
  EXPECT_TRUE(check_block_lists(plan, {{0, 0, 0, 7, -1, -1, -1, -1}}, 1));
}

TEST(BlockLists, GiveAnObjectTheLastIdsOfItsChunk) {
  Ids list(12);
  std::iota(list.begin(), list.end(), 0);
  const auto ids = [&list](const KernelGroup& group, std::size_t chunk) {
    const auto span = ids_of(group, list, chunk);
    return Ids(span.begin(), span.end());
  };
  EXPECT_EQ(ids(group_of(4, 4), 1), (Ids{4, 5, 6, 7}));
  EXPECT_EQ(ids(group_of(4, 1), 0), (Ids{3}));
  EXPECT_EQ(ids(group_of(4, 3), 2), (Ids{9, 10, 11}));
}

TEST(BlockLists, TellWhetherAnObjectTakesABlock) {
  CachePlan plan = plan_of_groups({group_of(2, 2), group_of(2, 1)});
  const BlockIds lists = {{1, 2, 3, 4}, {0, 5, 6, 0}};
  EXPECT_FALSE(uses_block(plan, plan.object_groups[0], lists, 0, 0));
  EXPECT_TRUE(uses_block(plan, plan.object_groups[0], lists, 1, 0));
  plan.object_groups[0].kernel_groups = {0};
  EXPECT_FALSE(uses_block(plan, plan.object_groups[0], lists, 1, 0));
}

TEST(SkippedIds, AreCountedAsTheReferenceCountsThem) {
  const Json recorded =
      Json::parse(std::ifstream(LARDER_FIXTURES "/device_vectors.json")).at("ids_of_blocks");
  ASSERT_GT(recorded.size(), 30U);
  for (const Json& numbers : recorded) {
    EXPECT_EQ(
        ids_of_blocks(
            numbers.at("blocks_per_chunk"), numbers.at("blocks_per_window"), numbers.at("skip")),
        numbers.at("result"))
        << numbers;
  }
}

TEST(SkippedIds, AreThoseOfWholeBlocks) {
  const KernelGroup group = group_of(4, 4);
  EXPECT_EQ(ids_to_skip(group, 0), 0U);
  EXPECT_EQ(ids_to_skip(group, 15), 0U);
  EXPECT_EQ(ids_to_skip(group, 16), 1U);
  EXPECT_EQ(ids_to_skip(group, 100), 6U);
}

TEST(SkippedIds, AreAsManyAsObjectsTakeOfTheSkippedBlocks) {
  for (std::uint32_t per_chunk = 1; per_chunk <= 5; ++per_chunk) {
    for (std::uint32_t per_object = 1; per_object <= per_chunk; ++per_object) {
      const KernelGroup group = group_of(per_chunk, per_object);
      std::size_t taken = 0;
      for (std::uint64_t block = 0; block < 20; ++block) {
        EXPECT_EQ(ids_to_skip(group, block * 16 + 7), taken);
        taken += block % per_chunk >= per_chunk - per_object ? 1U : 0U;
      }
    }
  }
}

}  // namespace
}  // namespace larder::geometry
