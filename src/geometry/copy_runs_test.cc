// Goal: objects and tensors exchange exactly the bytes that LMCache exchanges, in as few runs as
// the formats allow.
// Method: element moves recorded from LMCache 0.5.2 for twelve formats, both ways; and the runs of
// small layouts written out by hand.
#include "geometry/copy_runs.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "geometry/test_executor.h"

namespace larder::geometry {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;

constexpr std::int32_t kUntouched = -1;
constexpr std::int32_t kTensorStep = 100000;

Json recorded() {
  return Json::parse(std::ifstream(LARDER_FIXTURES "/device_vectors.json")).at("transfers");
}

Memory memory_of(const std::vector<std::int32_t>& values) {
  Memory memory(values.size() * sizeof(std::int32_t));
  std::memcpy(memory.data(), values.data(), memory.size());
  return memory;
}

std::vector<std::int32_t> values_of(const Memory& memory) {
  std::vector<std::int32_t> values(memory.size() / sizeof(std::int32_t));
  std::memcpy(values.data(), memory.data(), memory.size());
  return values;
}

KernelGroup group_of(const Json& transfer) {
  const Json& sizes = transfer.at("desc");
  KernelGroup group;
  group.format = transfer.at("format_value").get<KvFormat>();
  group.dtype = tensors::Dtype::kInt32;
  group.planes = sizes.at("kv_size");
  group.layers = sizes.at("nl");
  group.blocks = sizes.at("nb");
  group.block_slots = sizes.at("bs");
  group.heads = sizes.at("nh");
  group.head_size = sizes.at("hs");
  group.slots_per_object = transfer.at("slots_per_object");
  group.tensors.resize(transfer.at("num_tensors"));
  std::iota(group.tensors.begin(), group.tensors.end(), 0U);
  return group;
}

class RecordedTransfer : public testing::TestWithParam<std::size_t> {
 protected:
  RecordedTransfer() : transfer_(recorded().at(GetParam())), group_(group_of(transfer_)) {
    const auto shape = transfer_.at("tensor_shape").get<std::vector<std::size_t>>();
    elements_ = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>());
    object_elements_ = transfer_.at("objects").at(0).size();
  }

  std::vector<std::uint64_t> bases() const {
    std::vector<std::uint64_t> addresses;
    for (const Memory& tensor : tensors_) {
      addresses.push_back(address_of(tensor));
    }
    return addresses;
  }

  // The runs of all objects, of the ids of each of which the last ones are left after `skip`.
  std::vector<CopyRun> runs(const Ids& ids, std::size_t skip) const {
    std::vector<CopyRun> all;
    const std::size_t per_object = group_.slots_per_object / group_.block_slots;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      const std::size_t skipped = std::min(per_object, skip - std::min(skip, i * per_object));
      append_runs(
          group_,
          bases(),
          {std::span(ids).subspan(i * per_object, per_object), skipped, address_of(objects_[i])},
          all);
    }
    return all;
  }

  TestExecutor executor() const {
    TestExecutor executor;
    for (const Memory& tensor : tensors_) {
      executor.allow_engine(tensor);
    }
    for (const Memory& object : objects_) {
      executor.allow_object(object);
    }
    return executor;
  }

  Json transfer_;
  KernelGroup group_;
  std::size_t elements_ = 0;
  std::size_t object_elements_ = 0;
  std::vector<Memory> tensors_;
  std::vector<Memory> objects_;
};

TEST_P(RecordedTransfer, GathersTheElementsThatTheReferenceGathers) {
  for (std::size_t i = 0; i < group_.tensors.size(); ++i) {
    std::vector<std::int32_t> values(elements_);
    std::iota(values.begin(), values.end(), static_cast<std::int32_t>(i) * kTensorStep);
    tensors_.push_back(memory_of(values));
  }
  const auto expected = transfer_.at("objects").get<std::vector<std::vector<std::int32_t>>>();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    objects_.push_back(memory_of(std::vector<std::int32_t>(object_elements_, kUntouched)));
  }
  executor().store(runs(transfer_.at("block_ids"), 0));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(values_of(objects_[i]), expected[i]) << "object " << i;
  }
}

TEST_P(RecordedTransfer, ScattersThemAndLeavesTheRestAlone) {
  const Json& scatter = transfer_.at("scatter");
  const auto expected = scatter.at("tensors_after").get<std::vector<std::vector<std::int32_t>>>();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    tensors_.push_back(memory_of(std::vector<std::int32_t>(elements_, kUntouched)));
  }
  for (const Json& object : transfer_.at("objects")) {
    objects_.push_back(memory_of(object));
  }
  executor().retrieve(runs(scatter.at("block_ids"), scatter.at("skip_prefix_n_blocks")));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(values_of(tensors_[i]), expected[i]) << "tensor " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         RecordedTransfer,
                         testing::Range(std::size_t{0}, std::size_t{12}),
                         [](const auto& transfer) {
                           return std::string(name_of(static_cast<KvFormat>(transfer.param)));
                         });

TEST(RecordedTransfers, AreOfTheFirstTwelveFormats) {
  const Json transfers = recorded();
  ASSERT_EQ(transfers.size(), 12U);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    EXPECT_EQ(transfers[i].at("format_value"), i);
    EXPECT_EQ(transfers[i].at("format"), name_of(static_cast<KvFormat>(i)));
  }
}

// One layer of blocks of 4 slots of 2 heads of 8 bytes; objects of 3 blocks.
KernelGroup small_group(KvFormat format) {
  KernelGroup group;
  group.format = format;
  group.dtype = tensors::Dtype::kUint8;
  group.planes = 1;
  group.layers = 1;
  group.blocks = 100;
  group.block_slots = 4;
  group.heads = 2;
  group.head_size = 8;
  group.slots_per_object = 12;
  group.tensors = {0};
  return group;
}

constexpr std::uint64_t kBase = 1'000'000;
constexpr std::uint64_t kObject = 5000;

std::vector<CopyRun> runs_of(const KernelGroup& group, const Ids& ids, std::size_t skipped = 0) {
  std::vector<CopyRun> runs;
  append_runs(group, std::vector<std::uint64_t>{kBase}, {ids, skipped, kObject}, runs);
  return runs;
}

TEST(CopyRuns, NeighbouringBlocksAreOnePiece) {
  const auto runs = runs_of(small_group(KvFormat::kNlXNbBsNhTwoHs), {7, 8, 9});
  EXPECT_EQ(runs, (std::vector<CopyRun>{{kBase + 7 * 64, kObject, 3 * 64, 1, 0, 0}}));
}

TEST(CopyRuns, BlocksApartAreAPieceEach) {
  const auto runs = runs_of(small_group(KvFormat::kNlXNbBsNhTwoHs), {7, 9, 8});
  EXPECT_EQ(runs,
            (std::vector<CopyRun>{{kBase + 7 * 64, kObject, 64, 1, 0, 0},
                                  {kBase + 9 * 64, kObject + 64, 64, 1, 0, 0},
                                  {kBase + 8 * 64, kObject + 128, 64, 1, 0, 0}}));
}

TEST(CopyRuns, AreAsManyAsSaidWhenNoBlocksAreNeighbours) {
  for (const KvFormat format : {KvFormat::kNlXNbBsNhTwoHs, KvFormat::kNlXNbNhBsTwoHs}) {
    KernelGroup group = small_group(format);
    group.blocks_per_object = 3;
    EXPECT_EQ(runs_of(group, {7, 9, 5}).size(), runs_max(group));
  }
}

TEST(CopyRuns, NeighbouringPaddedBlocksAreOneRectangle) {
  KernelGroup group = small_group(KvFormat::kNlXNbBsNhCs);
  group.block_step = 100;
  EXPECT_EQ(runs_of(group, {7, 8, 20}),
            (std::vector<CopyRun>{{kBase + 700, kObject, 64, 2, 100, 64},
                                  {kBase + 2000, kObject + 128, 64, 1, 0, 0}}));
}

TEST(CopyRuns, NeighbouringBlocksOfTwoPlanesAreARectangleEach) {
  KernelGroup group = small_group(KvFormat::kNlXNbTwoBsNhHs);
  group.planes = 2;
  EXPECT_EQ(runs_of(group, {1, 2, 3}),
            (std::vector<CopyRun>{{kBase + 128, kObject, 64, 3, 128, 64},
                                  {kBase + 128 + 64, kObject + 3 * 64, 64, 3, 128, 64}}));
}

TEST(CopyRuns, HeadMajorBlocksAreARectangleForEachHead) {
  EXPECT_EQ(runs_of(small_group(KvFormat::kNlXNbNhBsCs), {5, 6, 7}, 2),
            (std::vector<CopyRun>{{kBase + 7 * 64, kObject + 128, 8, 4, 8, 16},
                                  {kBase + 7 * 64 + 32, kObject + 128 + 8, 8, 4, 8, 16}}));
}

TEST(CopyRuns, OneHeadNeedsNoTransposition) {
  KernelGroup group = small_group(KvFormat::kNlXNbNhBsCs);
  group.heads = 1;
  EXPECT_EQ(runs_of(group, {5, 6, 7}),
            (std::vector<CopyRun>{{kBase + 5 * 32, kObject, 96, 1, 0, 0}}));
}

TEST(CopyRuns, OneSlotNeedsNoneEither) {
  KernelGroup group = small_group(KvFormat::kNlXNbNhBsCs);
  group.block_slots = 1;
  group.slots_per_object = 3;
  EXPECT_EQ(runs_of(group, {5, 6, 7}),
            (std::vector<CopyRun>{{kBase + 5 * 16, kObject, 48, 1, 0, 0}}));
}

TEST(CopyRuns, AnIndexersValuesAndScalesMeetInTheObject) {
  KernelGroup group = small_group(KvFormat::kNlXNbBsvBss);
  group.heads = 1;
  group.head_size = 132;
  constexpr std::uint64_t kBlock = 4 * 132;
  EXPECT_EQ(
      runs_of(group, {5, 6, 7}, 2),
      (std::vector<CopyRun>{{kBase + 7 * kBlock, kObject + 2 * kBlock, 128, 4, 128, 132},
                            {kBase + 7 * kBlock + 512, kObject + 2 * kBlock + 128, 4, 4, 4, 132}}));
}

TEST(CopyRuns, OfAPartOfAnObjectStartAtItsOffset) {
  KernelGroup group = small_group(KvFormat::kNlXNbBsHs);
  group.object_offset = 4096;
  EXPECT_EQ(runs_of(group, {1, 2, 3}).at(0).object, kObject + 4096);
}

TEST(CopyRuns, NothingIsCopiedWhenAllIsSkipped) {
  for (const KvFormat format :
       {KvFormat::kNlXNbBsHs, KvFormat::kNlXNbNhBsCs, KvFormat::kNlXNbBsvBss}) {
    EXPECT_TRUE(runs_of(small_group(format), {1, 2, 3}, 3).empty());
  }
}

}  // namespace
}  // namespace larder::geometry
