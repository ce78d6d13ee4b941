// Goal: a registration becomes the plan that LMCache's own server would make of it, or is refused
// with the reason.
// Method: one registration of each kind written out, with the releases' rules side by side; and
// registrations that are wrong in one thing.
#include "geometry/engine_cache.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace larder::geometry {
namespace {

using Shape = std::vector<std::int64_t>;
using tensors::Dtype;

EngineTensor dense(Shape shape, Dtype dtype = Dtype::kBfloat16) {
  EngineTensor tensor{dtype, std::move(shape), {}};
  std::int64_t stride = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    tensor.stride.insert(tensor.stride.begin(), stride);
    stride *= tensor.shape[i];
  }
  return tensor;
}

EngineDescription vllm(std::vector<EngineTensor> tensors) {
  EngineDescription engine;
  engine.tensors = std::move(tensors);
  return engine;
}

Result<CachePlan> planned(const EngineDescription& engine, std::uint32_t chunk_tokens = 64) {
  return plan_of(engine, {.chunk_tokens = chunk_tokens, .separate_object_groups = true});
}

KernelGroup only_group(const EngineDescription& engine) {
  const Result<CachePlan> plan = planned(engine);
  if (!plan || plan->kernel_groups.size() != 1) {
    ADD_FAILURE() << (plan ? "groups" : plan.error().detail);
    return {};
  }
  return plan->kernel_groups[0];
}

std::string refusal(const EngineDescription& engine, Code code) {
  const Result<CachePlan> plan = planned(engine);
  if (plan) {
    ADD_FAILURE() << "was planned";
    return "";
  }
  EXPECT_EQ(plan.error().code, code) << plan.error().detail;
  return plan.error().detail;
}

struct VllmCase {
  const char* name;
  Shape shape;
  const char* hint;
  bool on_host;
  bool is_since_055;
  KvFormat format;
  std::uint64_t blocks;
  std::uint32_t slots;
  std::uint32_t heads;
  std::uint32_t head_size;
  Dtype dtype = Dtype::kBfloat16;
};

class VllmTensors : public testing::TestWithParam<VllmCase> {};

TEST_P(VllmTensors, AreInTheFormatThatTheReferenceFinds) {
  const VllmCase& expected = GetParam();
  EngineDescription engine = vllm({dense(expected.shape, expected.dtype)});
  engine.hints.kv_layout = expected.hint;
  engine.on_host = expected.on_host;
  engine.is_since_055 = expected.is_since_055;
  const KernelGroup group = only_group(engine);
  EXPECT_EQ(name_of(group.format), name_of(expected.format));
  EXPECT_EQ(group.planes, planes_of(expected.format));
  EXPECT_EQ(group.blocks, expected.blocks);
  EXPECT_EQ(group.block_slots, expected.slots);
  EXPECT_EQ(group.heads, expected.heads);
  EXPECT_EQ(group.head_size, expected.head_size);
  EXPECT_EQ(group.tensors, (std::vector<std::uint32_t>{0}));
}

using F = KvFormat;
constexpr bool kHost = true;
constexpr bool kDevice = false;
constexpr bool kNew = true;
constexpr bool kOld = false;

// clang-format off
INSTANTIATE_TEST_SUITE_P(
    Detected, VllmTensors,
    testing::Values(
        VllmCase{"KvFirst",             {2, 9, 16, 4, 8}, "",    kDevice, kOld, F::kNlXTwoNbBsNhHs, 9, 16, 4, 8},
        VllmCase{"KvFirstHnd",          {2, 9, 4, 16, 8}, "HND", kDevice, kOld, F::kNlXTwoNbNhBsHs, 9, 16, 4, 8},
        VllmCase{"KvFirstNhd",          {2, 9, 16, 4, 8}, "NHD", kDevice, kOld, F::kNlXTwoNbBsNhHs, 9, 16, 4, 8},
        VllmCase{"KvFirstHost",         {2, 9, 4, 16, 8}, "",    kHost,   kOld, F::kNlXTwoNbNhBsHs, 9, 16, 4, 8},
        VllmCase{"KvFirstHostNhdOld",   {2, 9, 4, 16, 8}, "NHD", kHost,   kOld, F::kNlXTwoNbNhBsHs, 9, 16, 4, 8},
        VllmCase{"KvFirstHostNhdNew",   {2, 9, 16, 4, 8}, "NHD", kHost,   kNew, F::kNlXTwoNbBsNhHs, 9, 16, 4, 8},
        VllmCase{"KvFirstHostNew",      {2, 9, 4, 16, 8}, "",    kHost,   kNew, F::kNlXTwoNbNhBsHs, 9, 16, 4, 8},
        VllmCase{"KvFirstDeviceNew",    {2, 9, 16, 4, 8}, "",    kDevice, kNew, F::kNlXTwoNbBsNhHs, 9, 16, 4, 8},
        VllmCase{"BlocksFirst",         {9, 2, 16, 4, 8}, "",    kDevice, kOld, F::kNlXNbTwoBsNhHs, 9, 16, 4, 8},
        VllmCase{"BlocksFirstHnd",      {9, 2, 4, 16, 8}, "HND", kDevice, kOld, F::kNlXNbTwoNhBsHs, 9, 16, 4, 8},
        VllmCase{"TwoBlocksLookKvFirst", {2, 2, 16, 4, 8}, "",   kDevice, kOld, F::kNlXTwoNbBsNhHs, 2, 16, 4, 8},
        VllmCase{"Latent",              {9, 16, 576},     "",    kDevice, kOld, F::kNlXNbBsHs,      9, 16, 1, 576},
        VllmCase{"LatentHost",          {9, 16, 576},     "",    kHost,   kOld, F::kNlXNbBsHs,      9, 16, 1, 576},
        VllmCase{"Fused",               {9, 16, 4, 8},    "",    kDevice, kOld, F::kNlXNbBsNhTwoHs, 9, 16, 4, 8},
        VllmCase{"FusedHnd",            {9, 4, 16, 8},    "HND", kDevice, kOld, F::kNlXNbNhBsTwoHs, 9, 16, 4, 8},
        VllmCase{"FusedHost",           {9, 4, 16, 8},    "",    kHost,   kOld, F::kNlXNbNhBsTwoHs, 9, 16, 4, 8},
        VllmCase{"FusedNew",            {9, 16, 4, 7},    "NHD", kDevice, kNew, F::kNlXNbBsNhCs,    9, 16, 4, 7},
        VllmCase{"FusedHndNew",         {9, 4, 16, 7},    "HND", kDevice, kNew, F::kNlXNbNhBsCs,    9, 16, 4, 7},
        VllmCase{"FusedBlhnc",          {9, 4, 16, 8}, "BLHNC",  kDevice, kNew, F::kNlXNbNhBsCs,    9, 16, 4, 8},
        VllmCase{"FusedBlnhc",          {9, 16, 4, 8}, "BLNHC",  kHost,   kNew, F::kNlXNbBsNhCs,    9, 16, 4, 8},
        VllmCase{"IndexerNew",          {9, 16, 132},     "",    kDevice, kNew, F::kNlXNbBsvBss,    9, 16, 1, 132, Dtype::kUint8},
        VllmCase{"IndexerOld",          {9, 16, 132},     "",    kDevice, kOld, F::kNlXNbBsHs,      9, 16, 1, 132, Dtype::kUint8},
        VllmCase{"IndexerOfAHead",      {9, 16, 1, 132},  "",    kDevice, kNew, F::kNlXNbBsvBss,    9, 16, 1, 132, Dtype::kUint8},
        VllmCase{"IndexerOfAHeadHnd",   {9, 1, 16, 132},  "HND", kDevice, kNew, F::kNlXNbBsvBss,    9, 16, 1, 132, Dtype::kUint8},
        VllmCase{"NoIndexerByDtype",    {9, 16, 132},     "",    kDevice, kNew, F::kNlXNbBsHs,      9, 16, 1, 132, Dtype::kInt8}),
    [](const auto& tested) { return tested.param.name; });

// clang-format on

TEST(VllmRegistration, OfShapesThatAreNoneIsRefused) {
  EXPECT_NE(refusal(vllm({dense({9, 3, 16, 4, 8})}), Code::kUnsupported), "");
  EXPECT_NE(refusal(vllm({dense({9, 16, 4, 7})}), Code::kUnsupported), "");
  EXPECT_NE(refusal(vllm({dense({2, 9, 4, 1, 16, 8})}), Code::kUnsupported), "");
  EXPECT_NE(refusal(vllm({dense({9, 16})}), Code::kUnsupported), "");
}

TEST(Registration, OfEnginesWithoutKnownFormatsIsRefused) {
  EngineDescription engine = vllm({dense({2, 9, 16, 4, 8})});
  engine.engine_type = EngineType::kMock;
  EXPECT_NE(refusal(engine, Code::kUnsupported), "");
}

TEST(AtomRegistration, IsOfLatents) {
  EngineDescription engine = vllm({dense({9, 16, 132}, Dtype::kUint8)});
  engine.engine_type = EngineType::kAtom;
  engine.is_since_055 = true;
  EXPECT_EQ(only_group(engine).format, KvFormat::kNlXNbBsHs);
  engine.tensors = {dense({9, 16, 4, 8})};
  refusal(engine, Code::kUnsupported);
}

EngineDescription sglang(std::vector<EngineTensor> tensors, bool is_since_055) {
  EngineDescription engine = vllm(std::move(tensors));
  engine.engine_type = EngineType::kSglang;
  engine.is_since_055 = is_since_055;
  engine.hints.tokens_per_block = 16;
  engine.hints.kv_list_layout = is_since_055 ? "k_v" : "";
  return engine;
}

TEST(SglangRegistration, OfKThenVIsInBlocksOfTheHint) {
  for (const bool is_since_055 : {false, true}) {
    const KernelGroup group =
        only_group(sglang(std::vector<EngineTensor>(6, dense({144, 4, 8})), is_since_055));
    EXPECT_EQ(group.format, KvFormat::kTwoXNlXNbBsNhHs);
    EXPECT_EQ(group.layers, 3U);
    EXPECT_EQ(group.blocks, 9U);
    EXPECT_EQ(group.block_slots, 16U);
    EXPECT_EQ(group.heads, 4U);
    EXPECT_EQ(group.head_size, 8U);
    EXPECT_EQ(group.tensors, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
  }
}

TEST(SglangRegistration, OfOneHeadIsToldByTheListLayout) {
  EngineDescription engine = sglang(std::vector<EngineTensor>(4, dense({144, 1, 8})), true);
  EXPECT_EQ(only_group(engine).format, KvFormat::kTwoXNlXNbBsNhHs);
  engine.hints.kv_list_layout = "";
  const KernelGroup latents = only_group(engine);
  EXPECT_EQ(latents.format, KvFormat::kNlXNbBsHs);
  EXPECT_EQ(latents.blocks, 9U);
  EXPECT_EQ(latents.layers, 4U);
  EXPECT_EQ(latents.block_slots, 16U);
  engine.is_since_055 = false;
  EXPECT_NE(refusal(engine, Code::kUnsupported).find("NL_X_NBBS_ONE_HS"), std::string::npos);
}

TEST(SglangRegistration, WithoutBlockSizesIsRefused) {
  EngineDescription engine = sglang(std::vector<EngineTensor>(4, dense({144, 4, 8})), false);
  engine.hints.tokens_per_block.reset();
  refusal(engine, Code::kUnsupported);
}

TEST(SglangRegistration, WhoseTensorsDoNotPairIsRefused) {
  refusal(sglang({dense({144, 4, 8}), dense({160, 4, 8})}, true), Code::kInvalid);
  refusal(sglang({dense({144, 4, 8}), dense({144, 4, 8}, Dtype::kFloat16)}, true), Code::kInvalid);
  refusal(sglang({dense({145, 4, 8}), dense({145, 4, 8})}, true), Code::kInvalid);
  EngineDescription engine = sglang({dense({144, 4, 8}), dense({144, 4, 8})}, true);
  for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{-16}}) {
    engine.hints.tokens_per_block = tokens;
    refusal(engine, Code::kInvalid);
  }
}

TEST(SglangRegistration, OfAUnifiedListIsServedForLatentsOnly) {
  EngineDescription engine = sglang({dense({9, 16, 8}), dense({9, 16, 8})}, true);
  engine.hints.kv_list_layout = "unified";
  EXPECT_EQ(only_group(engine).format, KvFormat::kNlXNbBsHs);
  engine.tensors = {dense({9, 16, 4, 8})};
  EXPECT_NE(refusal(engine, Code::kUnsupported).find("NL_X_NB_BS_NH_HS"), std::string::npos);
}

EngineDescription trtllm(Shape shape) {
  EngineDescription engine = vllm({dense(std::move(shape))});
  engine.engine_type = EngineType::kTrtllm;
  engine.hints.kv_heads = 4;
  engine.hints.tokens_per_block = 32;
  engine.hints.head_size = 8;
  return engine;
}

TEST(TrtllmRegistration, IsOnePoolOfAllLayers) {
  for (const Shape& shape : {Shape{9, 5, 2, 4 * 32 * 8}, Shape{9, 5, 2, 4, 32, 8}}) {
    const KernelGroup group = only_group(trtllm(shape));
    EXPECT_EQ(group.format, KvFormat::kNbNlTwoNhBsHs);
    EXPECT_EQ(group.layers, 5U);
    EXPECT_EQ(group.blocks, 9U);
    EXPECT_EQ(group.block_slots, 32U);
    EXPECT_EQ(group.heads, 4U);
    EXPECT_EQ(group.head_size, 8U);
    EXPECT_EQ(group.tensors, (std::vector<std::uint32_t>{0}));
  }
}

TEST(TrtllmRegistration, ThatContradictsItsHintsIsRefused) {
  EngineDescription engine = trtllm({9, 5, 2, 1000});
  refusal(engine, Code::kInvalid);
  engine = trtllm({9, 5, 2, 1024});
  engine.hints.head_size.reset();
  refusal(engine, Code::kInvalid);
  engine.hints.head_size = -8;
  engine.hints.kv_heads = -4;
  refusal(engine, Code::kInvalid);
  engine.hints.kv_heads = std::int64_t{1} << 62;
  engine.hints.head_size = std::int64_t{1} << 62;
  refusal(engine, Code::kInvalid);
  refusal(trtllm({9, 5, 3, 1024}), Code::kUnsupported);
  engine = trtllm({9, 5, 2, 1024});
  engine.tensors.push_back(engine.tensors[0]);
  refusal(engine, Code::kUnsupported);
}

TEST(TrtllmRegistration, CannotBeSplitIntoGroups) {
  EngineDescription engine = trtllm({9, 3, 2, 1024});
  engine.groups = {{.engine_group_id = 0, .layer_indices = {0, 1}}};
  refusal(engine, Code::kUnsupported);
  engine.groups = {{.engine_group_id = 0, .layer_indices = {0, 1, 2}}};
  EXPECT_EQ(only_group(engine).layers, 3U);
}

TEST(PaddedBlocks, AreServedWhereTheFormatsBlocksAreOutermost) {
  EngineTensor latent = dense({9, 16, 8});
  latent.stride[0] = 500;
  EXPECT_EQ(only_group(vllm({latent})).block_step, 500U);
  EngineTensor fused = dense({9, 16, 4, 8});
  fused.stride[0] = 5000;
  EngineDescription engine = vllm({fused});
  EXPECT_NE(refusal(engine, Code::kUnsupported).find("padded"), std::string::npos);
  engine.is_since_055 = true;
  EXPECT_EQ(only_group(engine).block_step, 5000U);
  EngineTensor split = dense({9, 2, 16, 4, 8});
  split.stride[0] = 5000;
  refusal(vllm({split}), Code::kUnsupported);
  EngineTensor planes = dense({2, 9, 16, 4, 8});
  planes.stride[0] *= 2;
  refusal(vllm({planes}), Code::kUnsupported);
}

TEST(Tensors, WithGapsOrOverlapsInsideAreRefused) {
  EngineTensor tensor = dense({9, 16, 8});
  tensor.stride = {256, 16, 1};
  refusal(vllm({tensor}), Code::kUnsupported);
  tensor.stride = {100, 8, 1};
  refusal(vllm({tensor}), Code::kInvalid);
  tensor.stride = {128, 8, 0};
  EXPECT_FALSE(planned(vllm({tensor})));
}

TEST(Tensors, AreTakenInTheOrderOfMemory) {
  EngineTensor tensor = dense({2, 9, 4, 16, 8});
  std::swap(tensor.shape[2], tensor.shape[3]);
  std::swap(tensor.stride[2], tensor.stride[3]);
  EngineDescription engine = vllm({tensor});
  engine.hints.kv_layout = "HND";
  const KernelGroup group = only_group(engine);
  EXPECT_EQ(group.heads, 4U);
  EXPECT_EQ(group.block_slots, 16U);
}

TEST(Tensors, OfOneElementMayHaveAnyStrideThere) {
  EngineTensor tensor = dense({1, 16, 8});
  tensor.stride[0] = 7;
  EXPECT_EQ(only_group(vllm({tensor})).block_step, 128U);
}

TEST(Tensors, OfAbsurdSizesAreRefused) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_FALSE(planned(vllm({})));
  refusal(vllm({dense({})}), Code::kInvalid);
  refusal(vllm({dense({0, 16, 8})}), Code::kInvalid);
  refusal(vllm({dense({9, 0, 8})}), Code::kInvalid);
  refusal(vllm({dense({-9, 16, 8})}), Code::kInvalid);
  refusal(vllm({{Dtype::kUint8, {9, 16, 8}, {128, 8, -1}}}), Code::kInvalid);
  refusal(vllm({{Dtype::kUint8, {9, 16, 8}, {128, 8}}}), Code::kInvalid);
  refusal(vllm({{Dtype::kUint8, {kHuge, kHuge, kHuge}, {1, 1, 1}}}), Code::kTooLarge);
  refusal(vllm({{Dtype::kUint8, {9, 16, 8}, {kHuge, 8, 1}}}), Code::kTooLarge);
  refusal(vllm({dense({1, 16, std::int64_t{1} << 40})}), Code::kTooLarge);
  refusal(vllm({dense(Shape(9, 1))}), Code::kInvalid);
}

TEST(Registration, IsOfAtMostSoManyLayersAndGroups) {
  const EngineTensor tensor = dense({9, 16, 8});
  EXPECT_EQ(only_group(vllm(std::vector<EngineTensor>(4096, tensor))).layers, 4096U);
  refusal(vllm(std::vector<EngineTensor>(4097, tensor)), Code::kTooLarge);
  refusal(trtllm({1, 4097, 2, 1024}), Code::kTooLarge);
  EngineDescription engine = vllm({tensor});
  engine.groups.resize(256);
  refusal(engine, Code::kTooLarge);
}

TEST(KernelGroups, AreLayersThatAreCopiedAlikeInOrderOfTheFirst) {
  const EngineTensor wide = dense({9, 16, 64});
  const EngineTensor narrow = dense({9, 16, 8});
  const EngineTensor other = dense({9, 16, 8}, Dtype::kFloat16);
  const Result<CachePlan> plan = planned(vllm({wide, narrow, wide, other, narrow}));
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->kernel_groups.size(), 3U);
  EXPECT_EQ(plan->kernel_groups[0].layer_indices, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(plan->kernel_groups[1].layer_indices, (std::vector<std::uint32_t>{1, 4}));
  EXPECT_EQ(plan->kernel_groups[2].layer_indices, (std::vector<std::uint32_t>{3}));
  EXPECT_EQ(plan->kernel_groups[1].tensors, (std::vector<std::uint32_t>{1, 4}));
  EXPECT_EQ(plan->kernel_groups[1].layers, 2U);
}

TEST(KernelGroups, OfDifferentEngineGroupsNeverMerge) {
  EngineDescription engine = vllm(std::vector<EngineTensor>(4, dense({9, 16, 8})));
  engine.groups = {{.engine_group_id = 1, .layer_indices = {0, 2}},
                   {.engine_group_id = 0, .layer_indices = {1, 3}}};
  const Result<CachePlan> plan = planned(engine);
  ASSERT_TRUE(plan) << plan.error().detail;
  ASSERT_EQ(plan->kernel_groups.size(), 2U);
  EXPECT_EQ(plan->kernel_groups[0].engine_group_id, 1);
  EXPECT_EQ(plan->kernel_groups[1].layer_indices, (std::vector<std::uint32_t>{1, 3}));
}

TEST(KernelGroups, MixFormatsWithinAnEngineGroup) {
  EngineDescription engine = vllm({dense({2, 9, 16, 4, 8}), dense({9, 16, 64})});
  engine.groups = {{.engine_group_id = 0, .layer_indices = {0}},
                   {.engine_group_id = 0, .layer_indices = {1}}};
  const Result<CachePlan> plan = planned(engine);
  ASSERT_TRUE(plan) << plan.error().detail;
  EXPECT_EQ(plan->kernel_groups[0].format, KvFormat::kNlXTwoNbBsNhHs);
  EXPECT_EQ(plan->kernel_groups[1].format, KvFormat::kNlXNbBsHs);
}

TEST(KernelGroups, LeaveOutLayersOfNoGroupWhateverTheyAre) {
  EngineDescription engine = vllm({dense({9, 16, 8}), dense({3}), dense({9, 16, 8})});
  engine.groups = {{.engine_group_id = 0, .layer_indices = {0, 2}}};
  EXPECT_EQ(only_group(engine).tensors, (std::vector<std::uint32_t>{0, 2}));
}

TEST(KernelGroups, MustBeWhatTheEngineSaid) {
  EngineDescription engine = vllm(std::vector<EngineTensor>(3, dense({9, 16, 8})));
  const auto refused = [&engine](std::vector<LayerGroup> groups) {
    engine.groups = std::move(groups);
    refusal(engine, Code::kInvalid);
  };
  refused({{.engine_group_id = 0, .layer_indices = {0, 1, 3}}});
  refused({{.engine_group_id = 0, .layer_indices = {-1, 0}}});
  refused({{.engine_group_id = 0, .layer_indices = {1, 0, 2}}});
  refused({{.engine_group_id = 0, .layer_indices = {0, 0, 1}}});
  refused({{.engine_group_id = -1, .layer_indices = {0, 1, 2}}});
  refused({{.engine_group_id = 0, .layer_indices = {0, 1, 2}},
           {.engine_group_id = 1, .layer_indices = {}}});
  refused({{.engine_group_id = 1, .layer_indices = {1, 2}},
           {.engine_group_id = 0, .layer_indices = {0}}});
  refused({{.engine_group_id = 0, .layer_indices = {0, 1}},
           {.engine_group_id = 0, .layer_indices = {2}}});
}

TEST(KernelGroups, HaveTheSameBlocksInEveryLayer) {
  refusal(vllm({dense({9, 16, 8}), dense({8, 16, 8})}), Code::kInvalid);
  EngineTensor padded = dense({9, 16, 8});
  padded.stride[0] = 200;
  refusal(vllm({dense({9, 16, 8}), padded}), Code::kInvalid);
}

EngineDescription of_window(std::int64_t window, std::int64_t tokens_per_block = 0) {
  EngineDescription engine = vllm({dense({9, 16, 8})});
  engine.groups = {{.engine_group_id = 0,
                    .layer_indices = {0},
                    .tokens_per_block = tokens_per_block,
                    .sliding_window_tokens = window}};
  return engine;
}

TEST(Chunks, AreStoredWholeOrTheirLastWindow) {
  KernelGroup group = only_group(of_window(-1));
  EXPECT_EQ(group.blocks_per_chunk, 4U);
  EXPECT_EQ(group.blocks_per_object, 4U);
  EXPECT_EQ(group.slots_per_object, 64U);
  EXPECT_EQ(group.window_tokens, std::nullopt);
  group = only_group(of_window(32));
  EXPECT_EQ(group.blocks_per_chunk, 4U);
  EXPECT_EQ(group.blocks_per_object, 2U);
  EXPECT_EQ(group.slots_per_object, 32U);
  group = only_group(of_window(100));
  EXPECT_EQ(group.blocks_per_object, 4U);
  EXPECT_EQ(group.window_tokens, 100U);
  EXPECT_EQ(only_group(of_window(std::numeric_limits<std::int64_t>::max())).blocks_per_object, 4U);
  EXPECT_EQ(only_group(of_window(0)).window_tokens, std::nullopt);
}

TEST(Chunks, OfCompressedBlocksHaveFewerSlotsThanTokens) {
  const KernelGroup group = only_group(of_window(-1, 32));
  EXPECT_EQ(group.tokens_per_block, 32U);
  EXPECT_EQ(group.blocks_per_chunk, 2U);
  EXPECT_EQ(group.slots_per_object, 32U);
  EXPECT_EQ(group.object_bytes, 32U * 8 * 2);
}

TEST(Chunks, AreOfWholeBlocks) {
  refusal(of_window(-1, 24), Code::kInvalid);
  refusal(of_window(-1, 8), Code::kInvalid);
  refusal(of_window(-1, 48), Code::kInvalid);
  refusal(of_window(-1, 128), Code::kInvalid);
  refusal(of_window(-1, std::int64_t{1} << 60), Code::kTooLarge);
  refusal(of_window(24), Code::kInvalid);
  EXPECT_EQ(plan_of(of_window(-1), {.chunk_tokens = 0}).error().code, Code::kInvalid);
  EXPECT_FALSE(planned(of_window(-1), 63));
  EXPECT_FALSE(planned(of_window(-1), 8));
}

// Four layers in groups of their own: full, window 100, full, window 32.
EngineDescription hybrid() {
  EngineDescription engine = vllm(std::vector<EngineTensor>(4, dense({9, 16, 8})));
  const std::vector<std::int64_t> windows = {-1, 100, -1, 32};
  for (std::int64_t i = 0; i < 4; ++i) {
    engine.groups.push_back({.engine_group_id = i,
                             .layer_indices = {i},
                             .sliding_window_tokens = windows[static_cast<std::size_t>(i)]});
  }
  return engine;
}

using Indices = std::vector<std::uint32_t>;

TEST(ObjectGroups, AreKernelGroupsOfOneWindow) {
  const Result<CachePlan> plan = planned(hybrid());
  ASSERT_TRUE(plan) << plan.error().detail;
  ASSERT_EQ(plan->object_groups.size(), 3U);
  EXPECT_EQ(plan->object_groups[0].kernel_groups, (Indices{0, 2}));
  EXPECT_EQ(plan->object_groups[0].window_chunks, std::nullopt);
  EXPECT_EQ(plan->object_groups[1].window_chunks, 2U);
  EXPECT_EQ(plan->object_groups[2].window_chunks, 1U);
  EXPECT_EQ(plan->kernel_groups[2].object_group, 0U);
  EXPECT_EQ(plan->kernel_groups[2].object_offset, plan->kernel_groups[0].object_bytes);
  EXPECT_EQ(plan->kernel_groups[3].object_group, 2U);
  EXPECT_EQ(plan->kernel_groups[3].object_offset, 0U);
}

TEST(ObjectGroups, AreOneWhenTheyAreNotSeparate) {
  const Result<CachePlan> plan =
      plan_of(hybrid(), {.chunk_tokens = 64, .separate_object_groups = false});
  ASSERT_TRUE(plan) << plan.error().detail;
  ASSERT_EQ(plan->object_groups.size(), 1U);
  EXPECT_EQ(plan->object_groups[0].kernel_groups, (Indices{0, 1, 2, 3}));
  EXPECT_EQ(plan->object_groups[0].window_chunks, std::nullopt);
  EXPECT_EQ(plan->kernel_groups[3].object_offset, 3U * 64 * 8 * 2);
  EXPECT_EQ(plan->kernel_groups[3].object_bytes, 32U * 8 * 2);
}

// Its block 0 is in no list as KV, and groups of recurrent state do not say what they are in every
// release.
TEST(ObjectGroups, OfVllmMayAlwaysBeVacant) {
  for (const bool separate : {true, false}) {
    const Result<CachePlan> plan =
        plan_of(hybrid(), {.chunk_tokens = 64, .separate_object_groups = separate});
    ASSERT_TRUE(plan);
    for (const ObjectGroup& group : plan->object_groups) {
      EXPECT_TRUE(group.may_be_vacant);
    }
  }
}

TEST(ObjectGroups, OfOtherEnginesMayBeVacantWithAWindowAmongThem) {
  EngineDescription engine = hybrid();
  engine.engine_type = EngineType::kAtom;
  const Result<CachePlan> separate = planned(engine);
  ASSERT_TRUE(separate) << separate.error().detail;
  EXPECT_FALSE(separate->object_groups[0].may_be_vacant);
  EXPECT_TRUE(separate->object_groups[1].may_be_vacant);
  EXPECT_TRUE(separate->object_groups[2].may_be_vacant);
  const Result<CachePlan> together =
      plan_of(engine, {.chunk_tokens = 64, .separate_object_groups = false});
  ASSERT_TRUE(together);
  EXPECT_TRUE(together->object_groups[0].may_be_vacant);
}

TEST(ObjectGroups, OfATagComeLast) {
  EngineDescription engine = hybrid();
  engine.groups[0].object_group_tag = 1;
  const Result<CachePlan> plan = planned(engine);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->object_groups.size(), 4U);
  EXPECT_EQ(plan->object_groups[0].kernel_groups, (Indices{1}));
  EXPECT_EQ(plan->object_groups[1].kernel_groups, (Indices{2}));
  EXPECT_EQ(plan->object_groups[3].kernel_groups, (Indices{0}));
  EXPECT_EQ(plan->kernel_groups[0].object_group, 3U);
}

TEST(ObjectGroups, OfRecurrentStateAreTheirOwn) {
  EngineDescription engine = hybrid();
  engine.groups[1].sliding_window_tokens = 32;
  engine.groups[1].is_recurrent = true;
  const Result<CachePlan> plan = planned(engine);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->object_groups.size(), 3U);
  EXPECT_EQ(plan->object_groups[1].kernel_groups, (Indices{1}));
  EXPECT_EQ(plan->object_groups[2].kernel_groups, (Indices{3}));
  const Result<CachePlan> together =
      plan_of(engine, {.chunk_tokens = 64, .separate_object_groups = false});
  ASSERT_FALSE(together);
  EXPECT_EQ(together.error().code, Code::kUnsupported);
}

// Compiling a copy takes memory for each piece, several times the object's own here.
TEST(ObjectLayout, IsRefusedInTooManyPieces) {
  EngineDescription engine = vllm({dense({2, 3 << 20, 2, 1}, Dtype::kUint8)});
  engine.hints.kv_layout = "HND";
  engine.on_host = true;
  engine.is_since_055 = true;
  const Result<CachePlan> huge = planned(engine, 2);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, Code::kTooLarge);
  EXPECT_NE(huge.error().detail.find("in 3145728 pieces"), std::string::npos)
      << huge.error().detail;
  engine.tensors = {dense({2, (1 << 18) + 1, 2, 1}, Dtype::kUint8)};
  EXPECT_FALSE(planned(engine, 2)) << "few bytes a piece";
  engine.tensors = {dense({2, (1 << 18) + 1, 2, 256}, Dtype::kUint8)};
  EXPECT_TRUE(planned(engine, 2));
  engine.tensors = {dense({2, 1 << 18, 2, 1}, Dtype::kUint8)};
  EXPECT_TRUE(planned(engine, 2));
}

// One head of each token of 80 layers, in blocks of one token.
TEST(ObjectLayout, OfTokensOneByOneIsServed) {
  EngineDescription engine = vllm(std::vector<EngineTensor>(80, dense({2, 9, 1, 1, 128})));
  EXPECT_TRUE(planned(engine, 1024));
}

TEST(ObjectLayout, NamesWhatTheObjectIsMadeOf) {
  EngineDescription engine =
      vllm({dense({2, 9, 16, 4, 8}), dense({9, 16, 132}, Dtype::kUint8), dense({2, 9, 16, 4, 8})});
  engine.is_since_055 = true;
  const Result<CachePlan> plan = planned(engine);
  ASSERT_TRUE(plan);
  const tensors::Layout& layout = plan->object_groups.at(0).layout;
  EXPECT_EQ(layout.pieces, "bfloat16[2, 2, 64, 4, 8] + uint8[1, 1, 64, 1, 128 + 4]");
  EXPECT_EQ(layout.dtype, Dtype::kUint8);
  EXPECT_EQ(layout.shape, (Shape{2 * 2 * 64 * 4 * 8 * 2 + 64 * 132}));
}

TEST(ObjectLayout, IsTheSameForBothOrdersOfHeads) {
  EngineDescription engine = vllm({dense({2, 9, 16, 4, 8})});
  const Result<CachePlan> token_major = planned(engine);
  engine.tensors = {dense({2, 9, 4, 16, 8})};
  engine.hints.kv_layout = "HND";
  const Result<CachePlan> head_major = planned(engine);
  ASSERT_TRUE(token_major && head_major);
  EXPECT_EQ(token_major->object_groups[0].layout, head_major->object_groups[0].layout);
}

TEST(ObjectLayout, OfUncountableBytesIsRefused) {
  const EngineTensor tensor{
      Dtype::kFloat64, {1, 1, 1 << 30, 1 << 28}, {std::int64_t{1} << 58, 1 << 28, 1 << 28, 1}};
  EXPECT_FALSE(planned(vllm({tensor}), 1U << 31U));
}

TEST(StorageBytes, ReachToTheEndOfTheLastElement) {
  EXPECT_EQ(storage_bytes(dense({9, 16, 8}), 0).value(), 9U * 16 * 8 * 2);
  EXPECT_EQ(storage_bytes(dense({9, 16, 8}), 5).value(), (9U * 16 * 8 + 5) * 2);
  EngineTensor padded = dense({9, 16, 8});
  padded.stride[0] = 200;
  EXPECT_EQ(storage_bytes(padded, 0).value(), (8U * 200 + 128) * 2);
  EXPECT_EQ(storage_bytes(dense({0, 3}), 100).value(), 0U);
  EXPECT_EQ(storage_bytes(dense({}), 3).value(), 4U * 2);
}

TEST(StorageBytes, AreRefusedWhenTheyCannotBeCounted) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(storage_bytes(dense({2}), -1).error().code, Code::kInvalid);
  EXPECT_EQ(storage_bytes({Dtype::kUint8, {2, -1}, {1, 1}}, 0).error().code, Code::kInvalid);
  EXPECT_EQ(storage_bytes({Dtype::kUint8, {2}, {-1}}, 0).error().code, Code::kInvalid);
  EXPECT_EQ(storage_bytes({Dtype::kUint8, {2, 2}, {1}}, 0).error().code, Code::kInvalid);
  EXPECT_EQ(storage_bytes({Dtype::kUint8, {2}, {1}}, kHuge).error().code, Code::kTooLarge);
  EXPECT_EQ(storage_bytes({Dtype::kUint8, {kHuge, kHuge}, {kHuge, kHuge}}, 0).error().code,
            Code::kTooLarge);
  EXPECT_EQ(storage_bytes({Dtype::kUint8, Shape(8, 2), Shape(8, kHuge / 2)}, 0).error().code,
            Code::kTooLarge);
}

}  // namespace
}  // namespace larder::geometry
