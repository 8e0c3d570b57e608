#include "engine/plan/profile.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/base/error.h"
#include "engine/plan/planner.h"
#include "engine/tensor/codec.h"
#include "tests/unit/plan/profile_layers.h"

namespace penstock {
namespace {

using testing::AnythingLayer;
using testing::ConvLayer;
using testing::Counts;
using ::testing::ElementsAre;
using testing::ExpandLayer;
using testing::FlattenLayer;
using ::testing::HasSubstr;
using testing::InPlaceLayer;
using testing::JoinLayer;
using testing::LinearLayer;
using testing::PairLayer;
using testing::PopLayer;
using testing::ProfileClock;
using testing::SleepLayer;
using testing::StashLayer;
using testing::TradeoffLayer;

const Device kDevice = {"cpu:0", {0}, 0};

class ProfileTest : public ::testing::Test {
 protected:
  ProfileTest() { testing::UseProfileLayers(); }

  static std::vector<LayerProfile> Profile(const std::vector<LayerSpec>& layers, const ProfileOptions& options = {}) {
    auto profile = ProfileLayers(layers, {kDevice}, {}, options, &ProfileClock());
    EXPECT_TRUE(profile.ok()) << profile.status();
    return profile.value_or(std::vector<LayerProfile>(layers.size()));
  }

  // Layers per stage on two stages.
  static std::vector<size_t> Cut(std::vector<LayerSpec> layers, const CutSpec& cut, int64_t rows = 4) {
    PlanRequest request;
    for (size_t i = 0; i < layers.size(); ++i) layers[i].name = "layer" + std::to_string(i);
    request.layers = std::move(layers);
    request.cut = cut;
    request.cut.stages = 2;
    request.devices = {kDevice};
    request.schedule = {"gpipe", 1, CheckpointMode::kNever};
    auto plan = MakePlan(request, {.rows = rows}, &ProfileClock());
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::vector<size_t> lengths;
    if (plan.ok()) {
      for (const StagePlan& stage : plan->stages) lengths.push_back(stage.layers.size());
    }
    return lengths;
  }
};

CutSpec By(CutSpec::Cost cost, CutSpec::Method method, double parameter_scale = 2) {
  return {.cost = cost, .method = method, .parameter_scale = parameter_scale};
}

constexpr CutSpec::Method kMethods[] = {CutSpec::Method::kExact, CutSpec::Method::kBlockPartition};

std::vector<LayerSpec> Reversed(std::vector<LayerSpec> layers) {
  std::reverse(layers.begin(), layers.end());
  return layers;
}

std::vector<LayerSpec> Sleepers() {
  return {SleepLayer(10), SleepLayer(20), SleepLayer(30), SleepLayer(40), SleepLayer(50), SleepLayer(60)};
}

std::vector<LayerSpec> Expanders() {
  return {ExpandLayer(1), ExpandLayer(2), ExpandLayer(3), ExpandLayer(4), ExpandLayer(5), ExpandLayer(6)};
}

TEST_F(ProfileTest, BalanceByTime) {
  for (CutSpec::Method method : kMethods) {
    EXPECT_THAT(Cut(Sleepers(), By(CutSpec::Cost::kTime, method)), ElementsAre(4, 2));
  }
}

TEST_F(ProfileTest, TimeIsCutWhereverItPasses) {
  for (CutSpec::Method method : kMethods) {
    EXPECT_THAT(Cut(Reversed(Sleepers()), By(CutSpec::Cost::kTime, method)), ElementsAre(2, 4));
  }
  const std::vector<LayerProfile> profile = Profile(Sleepers());
  for (int i = 0; i < 6; ++i) EXPECT_DOUBLE_EQ(profile[i].forward_seconds, 0.01 * (i + 1)) << "layer " << i;
}

TEST_F(ProfileTest, BalanceLoopResetsInput) {
  const std::vector<LayerSpec> layers = {ConvLayer(2), FlattenLayer(), LinearLayer(128, 10)};
  EXPECT_THAT(Cut(layers, By(CutSpec::Cost::kTime, CutSpec::Method::kExact), 10), ElementsAre(1, 2));
  EXPECT_EQ(Profile(layers, {.rows = 10})[2].output_bytes, 10 * 10 * 4);
}

TEST_F(ProfileTest, BalanceBySizeLatent) {
  for (CutSpec::Method method : kMethods) {
    EXPECT_THAT(Cut(Expanders(), By(CutSpec::Cost::kSize, method), 10), ElementsAre(4, 2));
    EXPECT_THAT(Cut(Reversed(Expanders()), By(CutSpec::Cost::kSize, method), 10), ElementsAre(2, 4));
  }
}

TEST_F(ProfileTest, TheStashIsWhatAForwardKeepsOnTheCpuToo) {
  constexpr int64_t kBytes = 10 * 100 * 100 * 4;
  const std::vector<LayerProfile> profile = Profile(Expanders(), {.rows = 10});
  // What it adds stays for the backward, and what it hands on.
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(profile[i].stash_bytes, (i + 2) * kBytes) << "layer " << i;
}

TEST_F(ProfileTest, BalanceBySizeParam) {
  std::vector<LayerSpec> growing;
  std::vector<LayerSpec> shrinking;
  for (int64_t i = 1; i <= 6; ++i) growing.push_back(LinearLayer(i, i + 1));
  for (int64_t i = 6; i >= 1; --i) shrinking.push_back(LinearLayer(i + 1, i));
  EXPECT_EQ(Profile(growing)[5].parameter_bytes, (6 * 7 + 7) * 4);
  for (CutSpec::Method method : kMethods) {
    EXPECT_THAT(Cut(growing, By(CutSpec::Cost::kSize, method, 100), 7), ElementsAre(4, 2));
    EXPECT_THAT(Cut(shrinking, By(CutSpec::Cost::kSize, method, 100), 7), ElementsAre(2, 4));
  }
}

TEST_F(ProfileTest, BalanceParamScale) {
  const std::vector<LayerSpec> layers = {TradeoffLayer(1, 6), TradeoffLayer(2, 5), TradeoffLayer(3, 4),
                                         TradeoffLayer(4, 3), TradeoffLayer(5, 2), TradeoffLayer(6, 1)};
  const auto blocks = CutSpec::Method::kBlockPartition;
  EXPECT_THAT(Cut(layers, By(CutSpec::Cost::kSize, blocks, 0), 1), ElementsAre(2, 4));
  EXPECT_THAT(Cut(layers, By(CutSpec::Cost::kSize, blocks, 100), 1), ElementsAre(4, 2));
  // The least bottleneck is another: parameters 2, 6, 12, 20, 30 beside 42.
  EXPECT_THAT(Cut(layers, By(CutSpec::Cost::kSize, CutSpec::Method::kExact, 0), 1), ElementsAre(2, 4));
  EXPECT_THAT(Cut(layers, By(CutSpec::Cost::kSize, CutSpec::Method::kExact, 100), 1), ElementsAre(5, 1));
}

TEST_F(ProfileTest, TheFirstRunOfALayerDoesNotCount) {
  const std::vector<LayerProfile> profile = Profile({SleepLayer(2, 500), SleepLayer(3, 500)});
  EXPECT_DOUBLE_EQ(profile[0].forward_seconds, 0.002);
  EXPECT_DOUBLE_EQ(profile[1].forward_seconds, 0.003);
}

TEST_F(ProfileTest, ALayerBeyondItsBudgetIsMeasuredOnce) {
  const std::vector<LayerProfile> profile = Profile({SleepLayer(20)}, {.rows = 1, .repeats = 5, .budget_nanos = 0});
  EXPECT_DOUBLE_EQ(profile[0].forward_seconds, 0.02);
  EXPECT_EQ(Counts().trained, 2);
}

TEST_F(ProfileTest, LayersTrainWhileTheyAreMeasured) {
  Profile({SleepLayer(1)}, {.rows = 1, .repeats = 3});
  EXPECT_EQ(Counts().trained, 4);  // the warm-up and three more, all in training
}

TEST_F(ProfileTest, EqualLayersAreMeasuredOnce) {
  const std::vector<LayerProfile> profile =
      Profile({SleepLayer(1), SleepLayer(1), SleepLayer(2), SleepLayer(1)}, {.rows = 1, .repeats = 3});
  EXPECT_EQ(Counts().trained, 8 + 4);  // the first knows nothing of what reaches it
  EXPECT_DOUBLE_EQ(profile[1].forward_seconds, 0.001);
  EXPECT_DOUBLE_EQ(profile[2].forward_seconds, 0.002);
  EXPECT_DOUBLE_EQ(profile[3].forward_seconds, 0.001);
  // Other shapes are other costs.
  const std::vector<LayerProfile> wide = Profile({LinearLayer(1, 1), LinearLayer(1, 1), LinearLayer(1, 9)});
  EXPECT_EQ(wide[1].parameter_bytes, 8);
  EXPECT_EQ(wide[2].parameter_bytes, 72);
}

TEST_F(ProfileTest, LargeMicroBatchesThatTakeTooLongAreReadOffTheLine) {
  PlanRequest request;
  request.devices = {kDevice};
  request.schedule = {"gpipe", 1, CheckpointMode::kNever};
  request.limits.open.micro_batches = true;
  const auto measured_rows = [&](int64_t ms) {
    testing::UseProfileLayers();
    request.layers = {SleepLayer(ms)};
    request.layers[0].name = "sleeper";
    auto profile = ProfileSizes(request, {}, &ProfileClock());
    EXPECT_TRUE(profile.ok()) << profile.status();
    return profile.ok() ? profile->rows() : std::vector<int64_t>();
  };
  EXPECT_THAT(measured_rows(1), ElementsAre(1, 6, 32));
  EXPECT_THAT(measured_rows(500), ElementsAre(1, 2));  // six rows could take 6 s; two sizes at least, for a line
}

TEST_F(ProfileTest, WhenTheTimeIsOverOnePassOfOneSizeIsEnoughForAPlan) {
  PlanRequest request;
  request.devices = {kDevice};
  request.schedule = {"gpipe", 1, CheckpointMode::kNever};
  request.limits.open.micro_batches = true;
  request.layers = {SleepLayer(100), LinearLayer(1, 1)};
  request.layers[0].name = "sleeper";
  request.layers[1].name = "last";
  Planning planning(&ProfileClock(), 0.1);
  ProfileOptions options;
  options.planning = &planning;
  options.halves = true;
  auto profile = ProfileSizes(request, options, &ProfileClock());
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(Counts().trained, 1) << "none that warms up, and none in halves";
  EXPECT_THAT(profile->rows(), ElementsAre(1, 32)) << "read off the only one";
  EXPECT_DOUBLE_EQ(profile->At(32)[0].forward_seconds, 3.2);
  EXPECT_EQ(profile->At(32)[1].output_bytes, 32 * profile->At(1)[1].output_bytes);
  EXPECT_EQ(profile->At(32)[1].parameter_bytes, profile->At(1)[1].parameter_bytes);
  auto plan = MakePlan(request, options, &ProfileClock());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_GT(plan->makespan_seconds, 0);
}

TEST_F(ProfileTest, APlanThatNobodyWantsIsMeasuredNoFurther) {
  Planning planning(&ProfileClock(), 100, [] { return Counts().trained > 0; });
  ProfileOptions options;
  options.planning = &planning;
  const absl::Status status =
      ProfileLayers({SleepLayer(1), LinearLayer(1, 1), SleepLayer(2)}, {kDevice}, {}, options, &ProfileClock())
          .status();
  EXPECT_EQ(ReasonOf(status), "WORK_CANCELLED");
  EXPECT_EQ(Counts().trained, 1);
}

TEST_F(ProfileTest, SkipsAroundALayerMakeItOneOfItsOwn) {
  Profile({SleepLayer(1), StashLayer(), SleepLayer(1), SleepLayer(1), PopLayer(), SleepLayer(1)},
          {.rows = 1, .repeats = 3});
  EXPECT_GE(Counts().trained, 16);
}

TEST_F(ProfileTest, TheModelItselfStaysAsItIs) {
  auto original = BuildLayers({LinearLayer(3, 5)}, 0);
  ASSERT_TRUE(original.ok()) << original.status();
  const NamedTensors& parameters = (*original)[0].layer->parameters();
  const at::Tensor before = parameters[0].tensor.detach().clone();
  Profile({LinearLayer(3, 5), LinearLayer(5, 1), SleepLayer(1)});
  EXPECT_TRUE(parameters[0].tensor.equal(before));
  EXPECT_FALSE(parameters[0].tensor.grad().defined());
  EXPECT_GT(Counts().built, 0);
  EXPECT_EQ(Counts().alive, 0);  // copies, each while it is measured
}

TEST_F(ProfileTest, TuplesPassAndOutputsWithoutGradAreNotBackPropagated) {
  const std::vector<LayerProfile> profile = Profile({LinearLayer(1, 1), PairLayer(), JoinLayer()}, {.rows = 8});
  EXPECT_EQ(profile[1].output_bytes, 8 * (4 + 1 + 4));
  EXPECT_EQ(profile[2].output_bytes, 8 * 4);
}

TEST_F(ProfileTest, SkipsReachTheirLayersWhileThoseAreMeasured) {
  const std::vector<LayerProfile> profile =
      Profile({LinearLayer(1, 1), StashLayer(), LinearLayer(1, 1), PopLayer()}, {.rows = 8});
  EXPECT_THAT(profile[1].skip_bytes, ElementsAre(std::pair(SkipName{"", "x"}, 8 * 4)));
  EXPECT_EQ(profile[1].output_bytes, 8 * 4);
  EXPECT_EQ(profile[1].stash_bytes, 2 * 8 * 4);  // what it hands on and what it stashes
  EXPECT_TRUE(profile[2].skip_bytes.empty());
  EXPECT_EQ(profile[3].stash_bytes, 8 * 4);
}

TEST_F(ProfileTest, LayersMayWorkInPlace) {
  const std::vector<LayerProfile> profile = Profile({InPlaceLayer(10), LinearLayer(1, 1), InPlaceLayer(20)});
  EXPECT_DOUBLE_EQ(profile[0].forward_seconds, 0.01);
  EXPECT_DOUBLE_EQ(profile[2].forward_seconds, 0.02);
}

TEST_F(ProfileTest, ALayerThatForgetsItsStashIsNamed) {
  const absl::Status status =
      ProfileLayers({SleepLayer(1), StashLayer(/*forget=*/true)}, {kDevice}, {}, {}, &ProfileClock()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "SKIP_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr("test_stash"));
}

TEST_F(ProfileTest, LayersThatDoNotFitAreNamed) {
  const absl::Status status =
      ProfileLayers({SleepLayer(1), LinearLayer(7, 1)}, {kDevice}, {}, {}, &ProfileClock()).status();
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(status)["field"], "spec.model.layers[1]");
}

TEST_F(ProfileTest, WhatIsMeasuredIsClaimedBeforeItIsTouched) {
  constexpr int64_t kLimit = 10 << 20;
  std::vector<int64_t> claims;
  ProfileOptions options;
  options.claim_memory = [&](int64_t bytes) -> absl::Status {
    claims.push_back(bytes);
    if (bytes <= kLimit) return absl::OkStatus();
    return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "too much");
  };
  const auto profile = [&](int64_t times) {
    return ProfileLayers({ExpandLayer(times)}, {kDevice}, {}, options, &ProfileClock()).status();
  };
  EXPECT_TRUE(profile(2).ok()) << profile(2);
  EXPECT_EQ(claims.back(), 0) << "nothing is held behind it";
  const absl::Status refused = profile(100);  // 160 KB each, some twice
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "HOST_MEMORY") << refused;
  EXPECT_EQ(claims.back(), 0);
  EXPECT_EQ(Counts().alive, 0);
}

TEST_F(ProfileTest, APlanThatNobodyWantsEndsWithinALayer) {
  Planning planning(&ProfileClock(), 1000, [] { return Counts().trained > 0; });
  ProfileOptions options;
  options.planning = &planning;
  const absl::Status status = ProfileLayers({ExpandLayer(2)}, {kDevice}, {}, options, &ProfileClock()).status();
  EXPECT_EQ(ReasonOf(status), "WORK_CANCELLED") << status;
  EXPECT_EQ(Counts().trained, 1);
}

TEST_F(ProfileTest, AModelThatTakesAnythingIsCutByCount) {
  const std::vector<LayerSpec> layers = {AnythingLayer(), SleepLayer(1), SleepLayer(100), SleepLayer(1)};
  for (const LayerProfile& layer : Profile(layers)) EXPECT_FALSE(layer.measured);
  EXPECT_EQ(Counts().trained, 0);
  EXPECT_THAT(Cut(layers, By(CutSpec::Cost::kTime, CutSpec::Method::kExact)), ElementsAre(2, 2));
}

std::shared_ptr<const PlanningSample> SampleOf(NamedValues inputs) {
  return std::make_shared<const PlanningSample>(PlanningSample{.inputs = std::move(inputs)});
}

TEST_F(ProfileTest, ASampleMakesAModelThatTakesAnythingMeasurable) {
  ProfileOptions options;
  options.sample = SampleOf({{"x", Value(at::ones({2, 5}))}});
  const auto profiles = Profile({AnythingLayer(), LinearLayer(5, 3)}, options);
  EXPECT_TRUE(profiles[0].measured && profiles[1].measured);
  EXPECT_EQ(profiles[1].output_bytes, options.rows * 3 * int64_t{sizeof(float)}) << "its rows come in turn";
}

TEST(MeasuringInputs, AreTheSamplesInTurnAndWholeOnesAsTheyAre) {
  const at::Tensor rows = at::arange(3);
  const auto sample = SampleOf({{"x", Value(rows)}, {"all", Value(WholeTensor{rows})}, {"flag", Value(true)}});
  const NamedValues values = MeasuringInputs(sample.get(), {}, 5, 1);
  EXPECT_TRUE(at::equal(*values[0].value.tensor(), at::tensor({0, 1, 2, 0, 1})));
  EXPECT_TRUE(at::equal(*values[1].value.whole(), rows));
  EXPECT_TRUE(*values[2].value.boolean());
}

TEST_F(ProfileTest, AutocastCountsInBytes) {
  const std::vector<LayerSpec> layers = {LinearLayer(16, 16)};
  const auto bytes = [&](const std::string& autocast) {
    auto profile = ProfileLayers(layers, {kDevice}, {.build = {}, .autocast = autocast}, {.rows = 8}, &ProfileClock());
    return profile.ok() ? profile->at(0).output_bytes : -1;
  };
  EXPECT_EQ(bytes(""), 8 * 16 * 4);
  EXPECT_EQ(bytes("bf16"), 8 * 16 * 2);
}

TEST_F(ProfileTest, ModelsThatRefuseTheInteger0AreMeasuredWith1) {
  const std::vector<TensorSignature> integers = {{"x", DataType::kInt64, {-1, 2}}};
  std::vector<int64_t> tried;
  const auto run = [&](absl::StatusCode code, int64_t accepted) {
    tried.clear();
    return [&, code, accepted](int64_t integer) {
      tried.push_back(integer);
      EXPECT_EQ(ExampleInputs(integers, 1, 1, integer)[0][0][1].item<int64_t>(), integer);
      return integer == accepted ? absl::OkStatus() : absl::Status(code, std::to_string(integer));
    };
  };
  EXPECT_TRUE(WithExampleInteger(nullptr, integers, run(absl::StatusCode::kInternal, 1)).ok());
  EXPECT_THAT(tried, ElementsAre(0, 1));
  EXPECT_TRUE(WithExampleInteger(nullptr, integers, run(absl::StatusCode::kInternal, 0)).ok());
  EXPECT_THAT(tried, ElementsAre(0));
  EXPECT_EQ(WithExampleInteger(nullptr, integers, run(absl::StatusCode::kInvalidArgument, 2)).message(), "0");
  EXPECT_THAT(tried, ElementsAre(0, 1));
  EXPECT_FALSE(WithExampleInteger(nullptr, integers, run(absl::StatusCode::kCancelled, 1)).ok());
  EXPECT_THAT(tried, ElementsAre(0));
  EXPECT_FALSE(WithExampleInteger(nullptr, {{"x", DataType::kFp32, {-1}}}, run(absl::StatusCode::kInternal, 1)).ok());
  EXPECT_THAT(tried, ElementsAre(0));
}

}  // namespace
}  // namespace penstock
