// A fault in every part of an optimizer step, on every stage, with copies to undo it and without: what the weights, the
// gradients, the notes of batch norms and the answers are afterwards.

#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "tests/support/group_in_process.h"
#include "tests/support/small_specs.h"

namespace penstock {
namespace {

constexpr int64_t kFaultWidth = 3;
constexpr int kStages = 2;

// Its gradients are always clipped.
PipelineSpec Spec() {
  PipelineSpec spec = testing::TiedAroundBatchNorm();
  spec.optimizer.clip_norm = 1e-3;
  return spec;
}

struct Fault {
  FaultPoint point = FaultPoint::kUpdate;
  int stage = 0;
};

// The rank of each stage; empty: one process without a group.
using Placement = std::vector<int>;

std::vector<Device> Devices() { return {{"cpu:0", {0}}, {"cpu:1", {0}}}; }

// A pipeline that can be broken, with copies to undo a step or without.
class Breakable {
 public:
  explicit Breakable(bool undo, const Placement& ranks = {}) {
    Pipeline::Options options;
    options.fault_point = [this](FaultPoint point, int stage) {
      if (point == FaultPoint::kStatistics && stage == 0 && meanwhile) std::exchange(meanwhile, nullptr)();
      for (const Fault& fault : faults) {
        if (fault.point == point && fault.stage == stage) throw std::bad_alloc();
      }
    };
    if (ranks.empty()) {
      alone = std::make_unique<DevicePool>(Devices(), DevicePool::Mode::kSerial);
      options.devices = pool = alone.get();
    } else {
      group = std::make_unique<testing::GroupInProcess>(2, Devices());
      options = group->Options(std::move(options));
      pool = options.devices;
    }
    options.edits.plan = [=](Plan& plan) {
      plan.undo = plan.undo && undo;
      for (size_t s = 0; s < ranks.size(); ++s) plan.stages[s].rank = Rank(ranks[s]);
    };
    pipeline = Pipeline::Create(Spec(), std::move(options)).value();
  }

  absl::StatusOr<ForwardOutcome> Infer(const at::Tensor& input) {
    absl::Notification done;
    absl::StatusOr<ForwardOutcome> answer;
    pipeline->InferAsync(Ask(input), [&](absl::StatusOr<ForwardOutcome> outcome) {
      answer = std::move(outcome);
      done.Notify();
    });
    pool->Wait(done);
    return answer;
  }
  static ForwardRequest Ask(const at::Tensor& input) {
    ForwardRequest request;
    request.inputs = NamedTensors{{"input", input}};
    return request;
  }

  std::unique_ptr<DevicePool> alone;
  std::unique_ptr<testing::GroupInProcess> group;
  DevicePool* pool = nullptr;
  std::unique_ptr<Pipeline> pipeline;
  std::vector<Fault> faults;
  std::function<void()> meanwhile;  // while the weights change
};

bool Same(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || !at::equal(a[i].tensor, b[i].tensor)) return false;
  }
  return true;
}

// Every fault that a step can meet: the decision is one for all stages.
std::vector<Fault> FaultsOfAStep() {
  std::vector<Fault> faults = {{FaultPoint::kDecide, 0}};
  for (const FaultPoint point : {FaultPoint::kShareTies, FaultPoint::kSumTies, FaultPoint::kKeepForUndo,
                                 FaultPoint::kUpdate, FaultPoint::kStatistics, FaultPoint::kUpdated}) {
    for (int stage = 0; stage < kStages; ++stage) faults.push_back({point, stage});
  }
  return faults;
}

bool WeightsMayHaveChanged(const Fault& fault) { return fault.point >= FaultPoint::kUpdate; }

std::string Describe(const Fault& fault) { return absl::StrCat(std::string(ToString(fault.point)), " ", fault.stage); }

class StepFault : public ::testing::TestWithParam<Placement> {
 protected:
  ContributionRequest Part(int i) const {
    ContributionRequest request;
    request.inputs = NamedTensors{{"input", inputs_[i]}};
    request.target = target_;
    return request;
  }
  // Two contributions, of which the second adds to the first.
  void Accumulate(Pipeline& pipeline) const {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(pipeline.ForwardBackward(Part(i)).ok());
  }

  void ExpectRolledBack(const absl::Status& status, const Fault& fault) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_EQ(ReasonOf(status), "STEP_ROLLED_BACK") << status;
    EXPECT_EQ(ValuesOf(status)["cause"], "HOST_MEMORY");
    EXPECT_EQ(ValuesOf(status)["step_part"], ToString(fault.point));
    if (fault.point != FaultPoint::kDecide) {
      EXPECT_EQ(ValuesOf(status)["stage"], absl::StrCat(fault.stage));
    }
  }

  // Nothing is given away, and only the state before mends it.
  void ExpectBroken(Breakable& broken, const NamedTensors& before, int64_t step) {
    Pipeline& pipeline = *broken.pipeline;
    const std::string kReason = "PIPELINE_BROKEN";
    EXPECT_EQ(ReasonOf(pipeline.health()), kReason);
    EXPECT_EQ(ReasonOf(broken.Infer(inputs_[0]).status()), kReason);
    EXPECT_EQ(ReasonOf(pipeline.ExportState(true).status()), kReason);
    EXPECT_EQ(ReasonOf(pipeline.Forward(Breakable::Ask(inputs_[0])).status()), kReason);
    EXPECT_EQ(ReasonOf(pipeline.ForwardBackward(Part(0)).status()), kReason);
    EXPECT_EQ(ReasonOf(pipeline.TrainStep(Part(0), {}).status()), kReason);
    EXPECT_EQ(ReasonOf(pipeline.OptimizerStep({}).status()), kReason);
    EXPECT_FALSE(pipeline.accumulating());
    broken.faults.clear();
    NamedTensors half = before;
    half.pop_back();
    EXPECT_EQ(ReasonOf(pipeline.ImportState(half, step)), "MODEL_MISMATCH");
    EXPECT_EQ(ReasonOf(pipeline.health()), kReason);
    ASSERT_TRUE(pipeline.ImportState(before, step).ok());
    EXPECT_TRUE(pipeline.health().ok());
    EXPECT_TRUE(broken.Infer(inputs_[0]).ok());
  }

  const std::vector<at::Tensor> inputs_ = {at::randn({4, kFaultWidth}), at::randn({4, kFaultWidth})};
  const at::Tensor target_ = at::randn({4, kFaultWidth});
};

TEST_P(StepFault, WithUndoTheStepIsTakenAgainAsIfNothingHadBeen) {
  Breakable broken(/*undo=*/true, GetParam());
  Breakable sound(/*undo=*/true);
  for (const Fault& fault : FaultsOfAStep()) {
    SCOPED_TRACE(Describe(fault));
    Accumulate(*broken.pipeline);
    Accumulate(*sound.pipeline);
    const NamedTensors before = broken.pipeline->ExportState(true).value();
    const int64_t step = broken.pipeline->step();
    const at::Tensor inferred = *broken.Infer(inputs_[0])->outputs[0].value.tensor();
    broken.faults = {fault};
    for (int attempt = 0; attempt < 2; ++attempt) ExpectRolledBack(broken.pipeline->OptimizerStep({}).status(), fault);
    EXPECT_TRUE(broken.pipeline->accumulating());
    EXPECT_EQ(broken.pipeline->step(), step);
    EXPECT_TRUE(Same(broken.pipeline->ExportState(true).value(), before));
    EXPECT_TRUE(at::equal(*broken.Infer(inputs_[0])->outputs[0].value.tensor(), inferred));
    broken.faults.clear();
    const auto retried = broken.pipeline->OptimizerStep({});
    const auto undisturbed = sound.pipeline->OptimizerStep({});
    ASSERT_TRUE(retried.ok()) << retried.status();
    EXPECT_EQ(*retried->gradient_norm, *undisturbed->gradient_norm);
    EXPECT_GT(*retried->gradient_norm, 1e-2) << "it is clipped";
    EXPECT_TRUE(Same(broken.pipeline->ExportState(true).value(), sound.pipeline->ExportState(true).value()));
  }
}

TEST_P(StepFault, WithUndoATrainStepIsAppliedAsAWholeOrNotAtAll) {
  Breakable broken(/*undo=*/true, GetParam());
  Breakable sound(/*undo=*/true);
  for (const Fault& fault : FaultsOfAStep()) {
    SCOPED_TRACE(Describe(fault));
    // Its statistics belong to the step, whatever becomes of the first attempt.
    for (Breakable* each : {&broken, &sound}) ASSERT_TRUE(each->pipeline->Forward(Breakable::Ask(inputs_[1])).ok());
    const NamedTensors before = broken.pipeline->ExportState(true).value();
    broken.faults = {fault};
    ExpectRolledBack(broken.pipeline->TrainStep(Part(0), {}).status(), fault);
    EXPECT_FALSE(broken.pipeline->accumulating());
    EXPECT_TRUE(Same(broken.pipeline->ExportState(true).value(), before));
    broken.faults.clear();
    ASSERT_TRUE(broken.pipeline->TrainStep(Part(0), {}).ok());
    ASSERT_TRUE(sound.pipeline->TrainStep(Part(0), {}).ok());
    EXPECT_TRUE(Same(broken.pipeline->ExportState(true).value(), sound.pipeline->ExportState(true).value()));
  }
}

TEST_P(StepFault, WithoutUndoOnlyWhatHasChangedWeightsBreaksThePipeline) {
  Breakable broken(/*undo=*/false, GetParam());
  Breakable sound(/*undo=*/true);
  for (const Fault& fault : FaultsOfAStep()) {
    SCOPED_TRACE(Describe(fault));
    Accumulate(*broken.pipeline);
    Accumulate(*sound.pipeline);
    const NamedTensors before = broken.pipeline->ExportState(true).value();
    const int64_t step = broken.pipeline->step();
    broken.faults = {fault};
    const absl::Status status = broken.pipeline->OptimizerStep({}).status();
    if (WeightsMayHaveChanged(fault)) {
      EXPECT_EQ(ReasonOf(status), "PIPELINE_BROKEN") << status;
      EXPECT_EQ(ValuesOf(status)["step_part"], ToString(fault.point));
      ExpectBroken(broken, before, step);
      Accumulate(*broken.pipeline);
    } else {
      ExpectRolledBack(status, fault);
      broken.faults.clear();
    }
    const auto retried = broken.pipeline->OptimizerStep({});
    ASSERT_TRUE(retried.ok()) << retried.status();
    ASSERT_TRUE(sound.pipeline->OptimizerStep({}).ok());
    EXPECT_TRUE(Same(broken.pipeline->ExportState(true).value(), sound.pipeline->ExportState(true).value()));
  }
}

TEST_P(StepFault, AnUndoThatFailsBreaksThePipeline) {
  for (int stage = 0; stage < kStages; ++stage) {
    SCOPED_TRACE(stage);
    Breakable broken(/*undo=*/true, GetParam());
    const NamedTensors before = broken.pipeline->ExportState(true).value();
    broken.faults = {{FaultPoint::kUpdated, 1}, {FaultPoint::kUndo, stage}};
    EXPECT_EQ(ReasonOf(broken.pipeline->TrainStep(Part(0), {}).status()), "PIPELINE_BROKEN");
    ExpectBroken(broken, before, 0);
  }
}

TEST_P(StepFault, AnImportThatFailsHalfWayBreaksThePipeline) {
  Breakable broken(/*undo=*/true, GetParam());
  const NamedTensors before = broken.pipeline->ExportState(true).value();
  ASSERT_TRUE(broken.pipeline->TrainStep(Part(0), {}).ok());
  broken.faults = {{FaultPoint::kImport, 1}};
  const absl::Status status = broken.pipeline->ImportState(before, 0);
  EXPECT_EQ(ReasonOf(status), "PIPELINE_BROKEN") << status;
  EXPECT_EQ(ValuesOf(status)["cause"], "HOST_MEMORY");
  ExpectBroken(broken, before, 0);
  EXPECT_TRUE(Same(broken.pipeline->ExportState(true).value(), before));
}

TEST_P(StepFault, AnInferenceThatWaitsForTheStepGetsOldWeightsOrNone) {
  for (const bool undo : {true, false}) {
    SCOPED_TRACE(undo);
    Breakable broken(undo, GetParam());
    const at::Tensor old = *broken.Infer(inputs_[0])->outputs[0].value.tensor();
    absl::Notification done;
    absl::StatusOr<ForwardOutcome> answer;
    broken.faults = {{FaultPoint::kUpdated, 1}};
    broken.meanwhile = [&] {
      broken.pipeline->InferAsync(Breakable::Ask(inputs_[0]), [&](absl::StatusOr<ForwardOutcome> outcome) {
        answer = std::move(outcome);
        done.Notify();
      });
    };
    ASSERT_FALSE(broken.pipeline->TrainStep(Part(0), {}).ok());
    if (broken.meanwhile) broken.meanwhile();  // the other rank failed before this one came so far
    broken.pool->Wait(done);
    if (undo) {
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_TRUE(at::equal(*answer->outputs[0].value.tensor(), old));
    } else {
      EXPECT_EQ(ReasonOf(answer.status()), "PIPELINE_BROKEN");
    }
  }
}

// A step that is not applied has nothing to undo, but its accumulation must not be half gone.
TEST_P(StepFault, AStepThatIsNotAppliedIsAtomicToo) {
  Breakable broken(/*undo=*/true, GetParam());
  Breakable sound(/*undo=*/true);
  ContributionRequest infinite = Part(0);
  infinite.target = target_.div(0);
  for (Breakable* each : {&broken, &sound}) ASSERT_TRUE(each->pipeline->ForwardBackward(infinite).ok());
  broken.faults = {{FaultPoint::kUpdate, 1}};
  ExpectRolledBack(broken.pipeline->OptimizerStep({}).status(), broken.faults[0]);
  EXPECT_TRUE(broken.pipeline->accumulating());
  broken.faults.clear();
  const auto retried = broken.pipeline->OptimizerStep({});
  ASSERT_TRUE(retried.ok()) << retried.status();
  EXPECT_FALSE(*retried->applied);
  EXPECT_FALSE(*sound.pipeline->OptimizerStep({})->applied);
  EXPECT_TRUE(Same(broken.pipeline->ExportState(true).value(), sound.pipeline->ExportState(true).value()));
}

INSTANTIATE_TEST_SUITE_P(Placements, StepFault, ::testing::Values(Placement(), Placement{0, 1}, Placement{1, 0}));

}  // namespace
}  // namespace penstock
