// What callers get of a step that failed on a stage: a served pipeline over the real engine.

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/exec/cancel_token.h"
#include "engine/exec/device_pool.h"
#include "engine/store/hosted_pipeline.h"
#include "engine/store/timer_queue.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/store/temporary_folder.h"

namespace penstock::testing {
namespace {

constexpr int64_t kWidth = 3;
constexpr char kBroken[] = "PIPELINE_BROKEN";

PipelineSpec Spec() {
  const LayerSpec linear{"linear", "", {{"in", kWidth}, {"out", kWidth}}};
  PipelineSpec spec;
  spec.model.layers = {linear, {"batch_norm", "", {{"features", kWidth}}}, linear};
  spec.cut.balance = {2, 1};
  spec.schedule = {"1f1b", 2, CheckpointMode::kAlways};
  spec.optimizer.name = "adamw";
  spec.loss.name = "mean_squared_error";
  return spec;
}

// A served pipeline of two stages, which breaks where it is told, with copies to undo a step or without.
class Served {
 public:
  Served(const std::string& folder, bool undo) : handles_({}, &clock_, &timers_) {
    Pipeline::Options options;
    options.devices = &pool_;
    options.ablation.no_undo = !undo;
    options.fault_point = [this](FaultPoint point, int stage) {
      if (fault == std::pair(point, stage)) throw std::bad_alloc();
    };
    std::unique_ptr<Pipeline> pipeline = Pipeline::Create(Spec(), std::move(options)).value();
    hosted = HostedPipeline::Start(
        std::move(pipeline), CheckpointFolder::Open(RealFileSystem(), &clock_, folder, "gpt").value(),
        {.name = "gpt", .spec_digest = "d", .handles = &handles_, .timers = &timers_, .clock = &clock_});
  }
  ~Served() {
    hosted->Stop();
    hosted.reset();
    handles_.Close();
  }

  ContributionCall Batch() const {
    ContributionCall call;
    call.inputs.push_back({"input", input_});
    call.target = {"target", target_};
    return call;
  }
  // How the handle settled: OK, or its error.
  absl::Status Settled(const absl::StatusOr<Accepted>& accepted, std::optional<HandleName> Accepted::*handle) {
    if (!accepted.ok()) return accepted.status();
    absl::Status error;
    absl::Notification done;
    handles_.OnSettled("ann", {*((*accepted).*handle)}, HandleStore::WaitMode::kAll,
                       std::numeric_limits<int64_t>::max(), [&](std::vector<HandleStore::HandleAnswer> answers) {
                         error = answers[0].ok() ? answers[0]->error : answers[0].status();
                         done.Notify();
                       });
    done.WaitForNotification();
    return error;
  }
  absl::Status TrainStep() { return Settled(hosted->TrainStep(Ann(), Batch(), {}), &Accepted::outcome); }
  absl::Status Contribute() { return Settled(hosted->ForwardBackward(Ann(), Batch()), &Accepted::outcome); }
  absl::Status OptimizerStep() { return Settled(hosted->OptimizerStep(Ann(), {}), &Accepted::outcome); }
  absl::Status Infer() {
    InferCall call;
    call.inputs.push_back({"input", input_});
    return Settled(hosted->Infer(Ann(), std::move(call)), &Accepted::outputs);
  }
  absl::Status Forward() {
    ForwardCall call;
    call.inputs.push_back({"input", input_});
    return Settled(hosted->Forward(Ann(), std::move(call)), &Accepted::outputs);
  }
  absl::StatusOr<NamedTensors> Read() {
    absl::StatusOr<NamedTensors> tensors;
    absl::Notification done;
    hosted->ReadParameters({}, /*with_optimizer=*/true,
                           [&](absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> snapshot) {
                             tensors = snapshot.ok() ? absl::StatusOr<NamedTensors>((*snapshot)->tensors)
                                                     : absl::StatusOr<NamedTensors>(snapshot.status());
                             done.Notify();
                           });
    done.WaitForNotification();
    return tensors;
  }
  absl::Status Save(const std::string& id) {
    return Wait([&](auto done) { hosted->SaveCheckpoint(Ann(), id, done); });
  }
  absl::Status Restore(const std::string& id) {
    return Wait([&](auto done) { hosted->RestoreCheckpoint(Ann(), id, /*force=*/false, done); });
  }
  absl::Status Write(const NamedTensors& tensors, int64_t step) {
    const HandleName put = *handles_.Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
    handles_.Fulfil(put.id, tensors);
    return Wait([&](auto done) { hosted->WriteParameters(Ann(), {.handles = {put}, .step = step}, done); });
  }
  absl::StatusOr<std::optional<CheckpointInfo>> SaveLast() {
    absl::StatusOr<std::optional<CheckpointInfo>> answer;
    absl::Notification done;
    hosted->SaveLast(std::make_shared<CancelToken>(), [&](auto saved) {
      answer = std::move(saved);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }

  std::optional<std::pair<FaultPoint, int>> fault;  // changed only while nothing runs
  std::shared_ptr<HostedPipeline> hosted;

 private:
  static CallContext Ann() { return {.caller = "ann"}; }
  static absl::Status Wait(const std::function<void(HostedPipeline::StateCallback)>& call) {
    absl::Status status;
    absl::Notification done;
    call([&](const absl::StatusOr<StateAnswer>& answer) {
      status = answer.status();
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  const at::Tensor input_ = at::ones({4, kWidth}).cumsum(0).sin();
  const at::Tensor target_ = at::ones({4, kWidth}).cumsum(1).cos();
  FakeClock clock_;
  TimerQueue timers_{&clock_};
  HandleStore handles_;
  DevicePool pool_{{{"cpu:0", {0}}, {"cpu:1", {0}}}, DevicePool::Mode::kThreads};
};

bool Same(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || !at::equal(a[i].tensor, b[i].tensor)) return false;
  }
  return true;
}

// In the last part of the step, when every weight has changed, on each stage.
class ServedStepFault : public ::testing::TestWithParam<int> {
 protected:
  TemporaryFolder folder_;
  TemporaryFolder other_folder_;
};

TEST_P(ServedStepFault, WithUndoCallersSeeTheStateBefore) {
  Served served(folder_.path(), /*undo=*/true);
  Served sound(other_folder_.path(), /*undo=*/true);
  for (Served* each : {&served, &sound}) {
    ASSERT_TRUE(each->TrainStep().ok());
    ASSERT_TRUE(each->Contribute().ok());
  }
  const NamedTensors before = served.Read().value();
  served.fault = {FaultPoint::kUpdated, GetParam()};
  const absl::Status status = served.OptimizerStep();
  EXPECT_EQ(ReasonOf(status), "STEP_ROLLED_BACK") << status;
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  served.fault.reset();
  EXPECT_TRUE(served.hosted->statistics().accumulating);
  EXPECT_TRUE(Same(served.Read().value(), before));
  EXPECT_TRUE(served.Infer().ok());
  EXPECT_TRUE(served.Save("before").ok());
  ASSERT_TRUE(served.OptimizerStep().ok());
  ASSERT_TRUE(sound.OptimizerStep().ok());
  EXPECT_TRUE(Same(served.Read().value(), sound.Read().value()));
  ASSERT_TRUE(served.Restore("before").ok());
  EXPECT_TRUE(Same(served.Read().value(), before));
}

TEST_P(ServedStepFault, WithoutUndoNothingIsServedOrSavedUntilItIsMended) {
  Served served(folder_.path(), /*undo=*/false);
  Served sound(other_folder_.path(), /*undo=*/true);
  for (Served* each : {&served, &sound}) ASSERT_TRUE(each->TrainStep().ok());
  const NamedTensors before = served.Read().value();
  ASSERT_TRUE(served.Save("good").ok());
  ASSERT_TRUE(sound.TrainStep().ok());
  for (const bool by_restore : {true, false}) {
    served.fault = {FaultPoint::kUpdated, GetParam()};
    EXPECT_EQ(ReasonOf(served.TrainStep()), kBroken);
    served.fault.reset();
    EXPECT_EQ(ReasonOf(served.Infer()), kBroken);
    EXPECT_EQ(ReasonOf(served.Forward()), kBroken);
    EXPECT_EQ(ReasonOf(served.Contribute()), kBroken);
    EXPECT_EQ(ReasonOf(served.TrainStep()), kBroken);
    EXPECT_EQ(ReasonOf(served.Read().status()), kBroken);
    EXPECT_EQ(ReasonOf(served.Save("bad")), kBroken);
    EXPECT_EQ(ReasonOf(served.Write({before[0]}, 1)), kBroken) << "the rest would stay as it is";
    EXPECT_EQ(served.hosted->ListCheckpoints().size(), 1);
    ASSERT_TRUE(by_restore ? served.Restore("good").ok() : served.Write(before, 1).ok());
    EXPECT_TRUE(Same(served.Read().value(), before));
    ASSERT_TRUE(served.TrainStep().ok());
    EXPECT_TRUE(Same(served.Read().value(), sound.Read().value()));
    EXPECT_TRUE(served.Infer().ok());
  }
  served.fault = {FaultPoint::kUpdated, GetParam()};
  EXPECT_EQ(ReasonOf(served.TrainStep()), kBroken);
  EXPECT_EQ(ReasonOf(served.SaveLast().status()), kBroken);
  EXPECT_EQ(served.hosted->ListCheckpoints().size(), 1);
}

INSTANTIATE_TEST_SUITE_P(OnEachStage, ServedStepFault, ::testing::Values(0, 1));

}  // namespace
}  // namespace penstock::testing
