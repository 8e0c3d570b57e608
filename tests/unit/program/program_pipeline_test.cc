// Exported programs in pipelines: whatever the cut, schedule and checkpoint mode, training equals the plain loop over
// the same layers, bit for bit, dropout included.

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "tests/unit/program/pipeline_examples.h"
#include "tests/unit/program/program_archives.h"

namespace penstock::testing {
namespace {

PipelineSpec SpecOf(const ProgramExample& example, int stages, const std::string& schedule, CheckpointMode checkpoint) {
  return ProgramSpec(example, stages, {schedule, 3, checkpoint});
}

void ExpectAsPlainLoop(const ProgramExample& example, const PipelineSpec& spec, DevicePool& pool) {
  const auto pipeline = MakeProgramPipeline(spec, pool);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  PlainReference plain = PlainOfProgram(spec);
  const std::vector<Value> values = example.Values();
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
  const NamedTensors state = (*pipeline)->ExportState(false).value();
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
  for (const ProgramExample& example : ProgramExamples(6)) {
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
  for (const ProgramExample& example : ProgramExamples(6)) {
    SCOPED_TRACE(example.program);
    PipelineSpec spec = SpecOf(example, 2, "1f1b", CheckpointMode::kNever);
    spec.cut.balance.clear();
    spec.cut.stages = 2;
    ExpectAsPlainLoop(example, spec, pool);
  }
}

TEST(ProgramPipeline, KeepsTheNamesOfStateDict) {
  DevicePool pool({{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, DevicePool::Mode::kSerial);
  const auto pipeline = MakeProgramPipeline(SpecOf(ProgramExamples(6)[2], 2, "1f1b", CheckpointMode::kNever), pool);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  std::vector<std::string> names;
  for (const NamedTensor& tensor : NamedTensors((*pipeline)->ExportState(false).value())) names.push_back(tensor.name);
  EXPECT_EQ(std::count(names.begin(), names.end(), "embedding.weight"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "blocks.1.attention.qkv.bias"), 1);
  EXPECT_EQ(names.size(), 2 * 12 + 3) << "no copy of the tied weight";
}

// Of the program of ProgramExamples() that takes a number.
PipelineSpec ScaledSpec(const std::string& from, const std::string& to) {
  Repacked changed("scaled.pt2");
  if (!from.empty()) changed.Replace("models/model.json", from, to);
  absl::StatusOr<ExportedProgram> program = changed.Read();
  PENSTOCK_CHECK(program.ok());
  auto model = ProgramModel::Create(*std::move(program), ProgramCuts::kModules);
  PENSTOCK_CHECK(model.ok());
  PipelineSpec spec;
  spec.model.program = "scaled.pt2";
  spec.model.loaded_program = *std::move(model);
  spec.cut.stages = 1;
  spec.schedule = {"gpipe", 1, CheckpointMode::kNever};
  spec.optimizer.name = "sgd";
  spec.loss.name = "mean_squared_error";
  return spec;
}

void ExpectSpecInvalid(const absl::Status& status, const std::string& sentence) {
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(sentence));
}

TEST(ProgramPipeline, AModelNeedsAnInputWithRowsAndItsLossAnOutputWithRows) {
  DevicePool pool({{"cpu:0", {0}, 0}}, DevicePool::Mode::kSerial);
  EXPECT_TRUE(MakeProgramPipeline(ScaledSpec("", ""), pool).ok());
  const std::string rows =
      R"json("rows": {"dtype": 7, "sizes": [{"as_expr": {"expr_str": "Symbol('s10', positive=True, )json"
      R"json(integer=True)", "hint": {"as_int": 4}}}, {"as_int": 4}])json";
  ExpectSpecInvalid(MakeProgramPipeline(ScaledSpec(rows, R"json("rows": {"dtype": 7, "sizes": [])json"), pool).status(),
                    "one of the inputs must have rows, got FP32 [] and FP32 []");
  PipelineSpec spec = ScaledSpec("", "");
  spec.model.program = "own_loss.pt2";
  spec.model.loaded_program = LoadedProgram("own_loss.pt2", ProgramCuts::kModules);
  spec.loss.output = "loss";
  ExpectSpecInvalid(MakeProgramPipeline(spec, pool).status(), "spec.loss.output: must have rows");
  spec.model.program = "simple.pt2";
  spec.model.loaded_program = LoadedProgram("simple.pt2", ProgramCuts::kModules);
  spec.loss.output = "";
  ExpectSpecInvalid(MakeProgramPipeline(spec, pool).status(), "spec.loss.output: must be of a floating type");
}

TEST(ProgramPipeline, ANumberIsCheckedAsRowsAre) {
  DevicePool pool({{"cpu:0", {0}, 0}}, DevicePool::Mode::kSerial);
  const auto pipeline = MakeProgramPipeline(ScaledSpec("", ""), pool);
  ASSERT_TRUE(pipeline.ok()) << pipeline.status();
  const auto check = [&](const at::Tensor& scale) {
    const NamedTensors inputs = {{"rows", at::ones({2, 4})}, {"scale", scale}};
    return (*pipeline)->CheckInputs(inputs, /*needs_rows=*/true).status();
  };
  EXPECT_TRUE(check(at::ones({})).ok());
  const absl::Status with_rows = check(at::ones({2}));
  EXPECT_EQ(ReasonOf(with_rows), "TENSOR_SIGNATURE");
  EXPECT_EQ(ValuesOf(with_rows)["field"], "inputs[1].shape");
  EXPECT_EQ(ValuesOf(check(at::ones({}, at::kLong)))["field"], "inputs[1].type");
  EXPECT_EQ(ReasonOf((*pipeline)->CheckTarget(at::ones({}), {}, {}, 2)), "TENSOR_SIGNATURE");
}

}  // namespace
}  // namespace penstock::testing
