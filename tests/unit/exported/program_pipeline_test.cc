// Exported programs in pipelines: whatever the cut, schedule and checkpoint mode, training equals the plain loop over the same
// layers, bit for bit, dropout included.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/exported_program_file.h"
#include "tests/support/plain_reference.h"

namespace penstock::testing {
namespace {

struct Example {
  std::string program;
  std::string loss;
  std::vector<NamedTensor> inputs;
  at::Tensor target;
};

std::vector<Example> Examples() {
  const at::Tensor labels = at::randint(0, 5, {6}, at::kLong);
  const at::Tensor ids = at::randint(0, 11, {6, 7}, at::kLong);
  return {{"conv_net_both.pt2", "cross_entropy", {{"images", at::randn({6, 3, 8, 8})}}, labels},
          {"conv_net.pt2", "cross_entropy", {{"images", at::randn({6, 3, 8, 8})}}, labels},
          {"language_dropout_both.pt2", "cross_entropy", {{"ids", ids}, {"mask", at::ones({6, 7}, at::kLong)}}, ids},
          {"counting_both.pt2", "mean_squared_error", {{"x", at::randn({6, 4})}}, at::randn({6, 3})}};
}

PipelineSpec SpecOf(const Example& example, int stages, const std::string& schedule, CheckpointMode checkpoint) {
  PipelineSpec spec;
  spec.model.program = example.program;
  const auto loaded = LoadProgram(PENSTOCK_EXPORTED_FOLDER, example.program, RealFileSystem());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  spec.model.loaded_program = *loaded;
  const int layers = spec.model.loaded_program->size();
  for (int s = 0; s < stages; ++s) {
    spec.cut.balance.push_back(layers * (s + 1) / stages - layers * s / stages);
  }
  spec.schedule = {schedule, 3, checkpoint};
  spec.optimizer.name = "adamw";
  spec.loss.name = example.loss;
  spec.seed = 11;
  return spec;
}

void ExpectAsPlainLoop(const Example& example, const PipelineSpec& spec, DevicePool& pool) {
  Pipeline::Options options;
  options.devices = &pool;
  options.profile.rows = 2;
  options.profile.repeats = 1;
  auto pipeline = Pipeline::Create(spec, options);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  PlainReference plain({.model = spec.model, .loss = spec.loss, .optimizer = spec.optimizer, .seed = spec.seed});
  std::vector<Value> values;
  for (const NamedTensor& input : example.inputs) values.emplace_back(input.tensor);
  for (int step = 0; step < 3; ++step) {
    ContributionRequest request;
    request.inputs = NamedTensors(example.inputs);
    request.target = example.target;
    const auto outcome = (*pipeline)->TrainStep(request, {});
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const PlainReference::StepResult expected = plain.TrainStep(values, example.target, spec.schedule.micro_batches);
    ASSERT_EQ(outcome->loss, expected.loss) << "step " << step;
    ASSERT_EQ(outcome->gradient_norm, expected.gradient_norm) << "step " << step;
  }
  const NamedTensors state = (*pipeline)->ExportState(false);
  ASSERT_EQ(state.size(), plain.SavedTensors().size());
  for (const NamedTensor& expected : plain.SavedTensors()) {
    const auto found =
        std::find_if(state.begin(), state.end(), [&](const NamedTensor& one) { return one.name == expected.name; });
    ASSERT_NE(found, state.end()) << expected.name;
    EXPECT_TRUE(at::equal(found->tensor, expected.tensor)) << expected.name;
  }
  absl::Notification done;
  (*pipeline)->InferAsync({.inputs = NamedTensors(example.inputs), .micro_batches = {}, .outputs = {}, .cancel = {}},
                          [&](absl::StatusOr<ForwardOutcome> outcome) {
                            EXPECT_TRUE(outcome.ok()) << outcome.status();
                            const Tensors expected = plain.Infer(values, spec.schedule.micro_batches);
                            EXPECT_TRUE(outcome.ok() && at::equal(*outcome->outputs[0].value.tensor(), expected[0]));
                            done.Notify();
                          });
  pool.Wait(done);
}

TEST(ProgramPipeline, EqualsThePlainLoopInEveryCutScheduleAndCheckpointMode) {
  at::set_num_threads(1);
  DevicePool pool({{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial);
  for (const Example& example : Examples()) {
    for (const int stages : {1, 2}) {
      for (const char* schedule : {"gpipe", "1f1b"}) {
        for (const CheckpointMode mode :
             {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever}) {
          SCOPED_TRACE(absl::StrCat(example.program, " ", stages, " ", schedule, " ", static_cast<int>(mode)));
          ExpectAsPlainLoop(example, SpecOf(example, stages, schedule, mode), pool);
        }
      }
    }
  }
}

TEST(ProgramPipeline, IsCutByMeasuredTime) {
  at::set_num_threads(1);
  DevicePool pool({{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial);
  for (const Example& example : Examples()) {
    SCOPED_TRACE(example.program);
    PipelineSpec spec = SpecOf(example, 2, "1f1b", CheckpointMode::kNever);
    spec.cut.balance.clear();
    spec.cut.stages = 2;
    ExpectAsPlainLoop(example, spec, pool);
  }
}

TEST(ProgramPipeline, KeepsTheNamesOfStateDict) {
  DevicePool pool({{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial);
  Pipeline::Options options;
  options.devices = &pool;
  const auto pipeline = Pipeline::Create(SpecOf(Examples()[2], 2, "1f1b", CheckpointMode::kNever), options);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  std::vector<std::string> names;
  for (const NamedTensor& tensor : (*pipeline)->ExportState(false)) names.push_back(tensor.name);
  EXPECT_EQ(std::count(names.begin(), names.end(), "embedding.weight"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "blocks.1.attention.qkv.bias"), 1);
  EXPECT_EQ(names.size(), 2 * 12 + 3) << "no copy of the tied weight";
}

}  // namespace
}  // namespace penstock::testing
