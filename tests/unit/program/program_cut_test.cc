// Where the planner cuts an exported program, by what was measured of its layers.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/plan/cut.h"
#include "engine/plan/profile.h"
#include "tests/unit/program/pipeline_examples.h"

namespace penstock::testing {
namespace {

// A program as the planner sees it, measured: bytes as they are, times as the test sets them.
struct Measured {
  PlanRequest request;
  std::vector<LayerProfile> profile;

  Measured(const std::string& program, ProgramCuts cuts) {
    at::set_num_threads(1);
    ModelSpec model;
    model.program = program;
    model.loaded_program = LoadedProgram(program, cuts);
    const auto layers = ExpandModel(model);
    PENSTOCK_CHECK(layers.ok());
    request.layers = *layers;
    const auto shapes = BuildLayerShapes(*layers);
    PENSTOCK_CHECK(shapes.ok());
    for (const NamedLayer& layer : *shapes) request.skips.push_back(layer.layer->skips());
    request.devices = {{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}};
    request.schedule.checkpoint = CheckpointMode::kNever;
    const auto measured = ProfileLayers(*layers, {request.devices[0]}, {}, {.rows = 2, .repeats = 1}, RealClock());
    PENSTOCK_CHECK(measured.ok());
    profile = *measured;
    for (LayerProfile& layer : profile) SetSeconds(layer, 0);
  }

  static void SetSeconds(LayerProfile& layer, double seconds) {
    layer.forward_seconds = seconds / 3;
    layer.backward_seconds = 2 * seconds / 3;
  }

  // What enters the second of two stages.
  int64_t CrossingBytes(int first_layer) const {
    int64_t bytes = profile[first_layer - 1].output_bytes;
    for (const SkipRoute& route : RoutesOf(request, profile, {0, first_layer})) bytes += route.bytes;
    return bytes;
  }

  int Cut() const {
    const auto found = BalanceByCost(request, profile, 2, /*within_limits=*/false);
    EXPECT_TRUE(found.ok()) << found.status();
    return found->balance[0];
  }

  // The share of all time that the slower of two stages has.
  double Bottleneck() const {
    const std::vector<double> costs = CutCosts(request, profile);
    const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
    const double first = std::accumulate(costs.begin(), costs.begin() + Cut(), 0.0);
    return std::max(first, all - first) / all;
  }
};

TEST(ProgramCut, FallsWhereFewBytesCross) {
  for (const std::string program : {"language.pt2", "mixed_both.pt2", "conv_net_both.pt2"}) {
    SCOPED_TRACE(program);
    Measured measured(program, ProgramCuts::kNodes);
    measured.request.bytes_per_second = 1;  // nothing else counts
    int64_t least = measured.CrossingBytes(1);
    int64_t most = least;
    for (int layer = 2; layer < static_cast<int>(measured.profile.size()); ++layer) {
      least = std::min(least, measured.CrossingBytes(layer));
      most = std::max(most, measured.CrossingBytes(layer));
    }
    EXPECT_LT(least, most);
    EXPECT_EQ(measured.CrossingBytes(measured.Cut()), least);
  }
}

// All the time in one block: between modules nothing helps, between operators half of it goes to each stage.
TEST(ProgramCut, BetweenOperatorsDividesABlock) {
  const auto with_slow_block = [](ProgramCuts cuts) {
    Measured measured("mixed_both.pt2", cuts);
    const ProgramModel& model = *LoadedProgram("mixed_both.pt2", cuts);
    const int size = model.size();
    for (int i = 0; i < size; ++i) {
      const bool slow = cuts == ProgramCuts::kModules ? model.name(i) == "blocks_2" : i >= size / 3 && i < size / 2;
      if (slow) Measured::SetSeconds(measured.profile[i], 1);
    }
    return measured.Bottleneck();
  };
  EXPECT_EQ(with_slow_block(ProgramCuts::kModules), 1);
  EXPECT_LT(with_slow_block(ProgramCuts::kNodes), 0.55);
}

TEST(ProgramCut, EqualTimesMakeEqualStages) {
  Measured measured("mixed_both.pt2", ProgramCuts::kNodes);
  for (LayerProfile& layer : measured.profile) Measured::SetSeconds(layer, 1);
  EXPECT_LT(measured.Bottleneck(), 0.52);
}

// What the search finds while everything is open trains as the plain loop does.
TEST(ProgramCut, IsFoundBySearch) {
  DevicePool pool({{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial);
  const ProgramExample example = ProgramExamples(8)[4];
  PipelineSpec spec = ProgramSpec(example, 1, {});
  spec.cut = {};
  spec.limits.open = {.kind = true, .chunks = true, .micro_batches = true, .checkpoint = true};
  spec.limits.mini_batch_rows = 8;
  Pipeline::Options options;
  options.devices = &pool;
  options.profile.repeats = 1;
  const auto search = Pipeline::SearchPlans(spec, options);
  ASSERT_TRUE(search.ok()) << search.status();
  ASSERT_FALSE(search->candidates.empty()) << search->WhyNone();
  PipelineSpec best = ProgramSpec(example, 1, search->candidates.front().schedule);
  best.cut.balance = search->candidates.front().cut.balance;
  const auto pipeline = MakeProgramPipeline(best, pool);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  PlainReference plain = PlainOfProgram(best);
  ContributionRequest request;
  request.inputs = NamedTensors(example.inputs);
  request.target = example.target;
  const auto outcome = (*pipeline)->TrainStep(request, {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  const auto expected = plain.TrainStep(example.Values(), example.target, best.schedule.micro_batches);
  EXPECT_EQ(outcome->loss, expected.loss);
  EXPECT_EQ(outcome->gradient_norm, expected.gradient_norm);
}

}  // namespace
}  // namespace penstock::testing
