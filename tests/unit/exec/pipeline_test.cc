#include "engine/exec/pipeline.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/schedule_book.h"
#include "engine/observe/metrics.h"
#include "tests/support/small_specs.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::SmallBatch;

constexpr int64_t kWidth = testing::kSmallWidth;

PipelineSpec Mlp(int stages, int micro_batches, CheckpointMode checkpoint, const std::string& kind = "1f1b") {
  return testing::SmallMlp(stages, micro_batches, kind, checkpoint);
}

std::vector<Device> TwoDevices() { return {{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}; }

// A pipeline in serial mode that notes its actions and fails where it is told to.
// Bytes that creations of one pipeline claim of the host's memory; beyond `limit` they are refused.
struct Claims {
  absl::StatusOr<std::unique_ptr<Pipeline>> Create(DevicePool& pool) {
    asked.clear();
    return Pipeline::Create(
        Mlp(2, 2, CheckpointMode::kNever),
        {.devices = &pool, .profile = {.rows = 2, .repeats = 1}, .claim_memory = [this](int64_t bytes) {
           asked.push_back(bytes);
           if (bytes <= limit) return absl::OkStatus();
           return absl::Status(absl::StatusCode::kResourceExhausted, "full");
         }});
  }
  int64_t limit = 1 << 30;
  std::vector<int64_t> asked;
};

TEST(PipelineMemory, IsClaimedBeforeAnythingIsPlacedAndAsMeasured) {
  DevicePool pool(TwoDevices(), DevicePool::Mode::kSerial);
  Claims claims;
  auto whole = claims.Create(pool);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE((*whole)->plan().undo);
  const int64_t weights = 4 * (*whole)->parameter_count();
  EXPECT_GE(claims.asked.front(), 3 * weights) << "weights, gradients, copies of weights for an undo";
  EXPECT_GT(claims.asked.back(), 3 * weights) << "activations were measured";

  const int64_t most = claims.asked.back();
  claims.limit = most - weights / 2;  // half the copies: activations are measured anew, and may differ by some bytes
  auto without = claims.Create(pool);
  ASSERT_TRUE(without.ok()) << without.status() << ::testing::PrintToString(claims.asked) << " beside " << most;
  EXPECT_FALSE((*without)->plan().undo);
  EXPECT_LE(claims.asked.back(), claims.limit);
  EXPECT_THAT((*without)->plan().why, ::testing::Contains(HasSubstr("No undo: ")));

  claims.limit = weights;
  const absl::Status refused = claims.Create(pool).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
}

class SerialPipeline : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec) {
    Pipeline::Options options;
    options.devices = &pool_;
    options.profile = {.rows = 2, .repeats = 1};
    options.before_action = [this](const Action& action) {
      log_.push_back(ToString(action));
      if (ToString(action) == break_at_) throw std::runtime_error("a layer broke\nwith a stack");
      if (ToString(action) == full_at_)
        throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory.");
    };
    options.metrics = [this](const Plan& plan) {
      std::vector<LaneDescription> lanes(plan.stages.size());
      for (size_t s = 0; s < lanes.size(); ++s) lanes[s].lane = static_cast<int>(s);
      metrics_ = std::make_shared<PipelineMetrics>(RealClock(), "test", lanes, ScheduleDescription());
      return metrics_;
    };
    auto pipeline = Pipeline::Create(spec, options);
    EXPECT_TRUE(pipeline.ok()) << pipeline.status();
    return pipeline.ok() ? *std::move(pipeline) : nullptr;
  }

  bool SameState(const NamedTensors& a, const NamedTensors& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i].name != b[i].name || !at::equal(a[i].tensor, b[i].tensor)) return false;
    }
    return true;
  }

  DevicePool pool_{TwoDevices(), DevicePool::Mode::kSerial};
  std::vector<std::string> log_;
  std::string break_at_;
  std::string full_at_;
  std::shared_ptr<PipelineMetrics> metrics_;
};

TEST_F(SerialPipeline, CountsTheActionsThatADeviceHadNoMemoryFor) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kNever));
  const auto counts = [&] {
    return std::vector{metrics_->lane(0).out_of_memory.value(), metrics_->lane(1).out_of_memory.value()};
  };
  full_at_ = "1F0";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(ReasonOf(pipeline->TrainStep(SmallBatch(4), {}).status()), "DEVICE_MEMORY");
  EXPECT_THAT(counts(), ElementsAre(0, 2));
  full_at_ = "0B1";
  EXPECT_EQ(ReasonOf(pipeline->TrainStep(SmallBatch(4), {}).status()), "DEVICE_MEMORY");
  full_at_.clear();
  break_at_ = "0F0";
  EXPECT_NE(ReasonOf(pipeline->TrainStep(SmallBatch(4), {}).status()), "DEVICE_MEMORY");
  EXPECT_THAT(counts(), ElementsAre(1, 2)) << "another failure is none";
}

TEST_F(SerialPipeline, RecomputesEachCheckpointedMicroBatchBeforeItsGradient) {
  auto pipeline = Make(Mlp(1, 2, CheckpointMode::kAlways, "gpipe"));
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  // The two OPT are its halves: norms, then the step.
  EXPECT_THAT(log_, ElementsAre("0F0", "0F1", "0R0", "0B0", "0R1", "0B1", "0OPT", "0OPT"));
}

TEST_F(SerialPipeline, ExemptsTheLastOfTheRealMicroBatches) {
  auto pipeline = Make(Mlp(1, 4, CheckpointMode::kExceptLast, "gpipe"));
  ASSERT_TRUE(pipeline->ForwardBackward(SmallBatch(6)).ok());  // 2, 2, 2 rows: three micro-batches, not four
  EXPECT_THAT(log_, ElementsAre("0F0", "0F1", "0F2", "0R0", "0B0", "0R1", "0B1", "0B2"));
}

TEST_F(SerialPipeline, NamesThePlaceOfTheFirstErrorAndStartsNothingLater) {
  auto pipeline = Make(Mlp(4, 3, CheckpointMode::kNever, "gpipe"));
  const NamedTensors before = pipeline->ExportState(true).value();
  break_at_ = "3F0";
  absl::Status status = pipeline->TrainStep(SmallBatch(3), {}).status();
  EXPECT_EQ(ValuesOf(status)["stage"], "3");
  EXPECT_EQ(ValuesOf(status)["micro_batch"], "0");
  EXPECT_EQ(ValuesOf(status)["action"], "3F0");
  EXPECT_THAT(std::string(status.message()), HasSubstr("stage 3, micro-batch 0, action 3F0"));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("stack")));
  EXPECT_EQ(log_.back(), "3F0");
  EXPECT_EQ(pipeline->step(), 0);
  EXPECT_TRUE(SameState(before, pipeline->ExportState(true).value()));
  break_at_.clear();
  EXPECT_TRUE(pipeline->TrainStep(SmallBatch(3), {}).ok());
  EXPECT_EQ(pipeline->step(), 1);
}

TEST_F(SerialPipeline, AfterAFailureNothingIsInFlightAndNoGradientsAreCounted) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kNever));
  break_at_ = "1B0";
  EXPECT_FALSE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  for (const int lane : {0, 1}) EXPECT_EQ(metrics_->lane(lane).inflight_micro_batches.value(), 0) << lane;
  break_at_ = "0B1";  // both stages have some
  EXPECT_FALSE(pipeline->ForwardBackward(SmallBatch(4)).ok());
  for (const int lane : {0, 1}) EXPECT_EQ((*metrics_->lane(lane).memory)[MemoryKind::kGradients].value(), 0) << lane;
}

TEST_F(SerialPipeline, UndoesAFailedContributionAndKeepsTheOnesBefore) {
  auto one = Make(Mlp(2, 2, CheckpointMode::kNever));
  auto two = Make(Mlp(2, 2, CheckpointMode::kNever));
  ContributionRequest first = SmallBatch(4);
  ContributionRequest second = SmallBatch(4);
  first.total_rows = second.total_rows = 8;
  ASSERT_TRUE(one->ForwardBackward(first).ok());
  ASSERT_TRUE(two->ForwardBackward(first).ok());
  break_at_ = "0B1";  // after others have added to the gradients
  EXPECT_FALSE(two->ForwardBackward(second).ok());
  break_at_.clear();
  ASSERT_TRUE(one->ForwardBackward(second).ok());
  ASSERT_TRUE(two->ForwardBackward(second).ok());
  ASSERT_TRUE(one->OptimizerStep({}).ok());
  ASSERT_TRUE(two->OptimizerStep({}).ok());
  EXPECT_TRUE(SameState(one->ExportState(true).value(), two->ExportState(true).value()));
}

TEST_F(SerialPipeline, ContributionsEqualOneStepWithTheSameMicroBatches) {
  auto parts = Make(Mlp(2, 2, CheckpointMode::kAlways));
  auto whole = Make(Mlp(2, 4, CheckpointMode::kAlways));
  ContributionRequest all = SmallBatch(8);
  for (int half = 0; half < 2; ++half) {
    ContributionRequest part;
    part.inputs = NamedTensors{{"input", all.inputs[0].value.tensor()->narrow(0, half * 4, 4)}};
    part.target = all.target.narrow(0, half * 4, 4);
    part.total_rows = 8;
    ASSERT_TRUE(parts->ForwardBackward(part).ok());
  }
  auto stepped = parts->OptimizerStep({});
  auto trained = whole->TrainStep(all, {});
  ASSERT_TRUE(stepped.ok());
  ASSERT_TRUE(trained.ok());
  EXPECT_EQ(stepped->gradient_norm, trained->gradient_norm);
  EXPECT_TRUE(SameState(parts->ExportState(true).value(), whole->ExportState(true).value()));
}

TEST_F(SerialPipeline, ACallTellsTheMeanOverItsOwnRows) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kNever));
  ContributionRequest request = SmallBatch(4);
  const auto alone = pipeline->ForwardBackward(request);
  pipeline->DiscardGradients();
  request.total_rows = 8;
  const auto half_of_a_step = pipeline->ForwardBackward(request);
  ASSERT_TRUE(alone.ok() && half_of_a_step.ok());
  EXPECT_DOUBLE_EQ(*half_of_a_step->loss, *alone->loss);
}

TEST_F(SerialPipeline, LabelsThatAreIgnoredDoNotCount) {
  PipelineSpec spec = Mlp(2, 2, CheckpointMode::kNever);
  spec.loss.name = "cross_entropy";
  auto pipeline = Make(spec);
  ContributionRequest request = SmallBatch(4);
  request.target = at::tensor({int64_t{1}, int64_t{-100}, int64_t{-100}, int64_t{-100}});
  ContributionRequest first;
  first.inputs = NamedTensors{{"input", request.inputs[0].value.tensor()->narrow(0, 0, 1)}};
  first.target = request.target.narrow(0, 0, 1);
  const auto alone = pipeline->ForwardBackward(first);
  pipeline->DiscardGradients();
  const auto beside_ignored = pipeline->ForwardBackward(request);
  ASSERT_TRUE(alone.ok() && beside_ignored.ok()) << alone.status() << beside_ignored.status();
  EXPECT_NEAR(*beside_ignored->loss, *alone->loss, 1e-6);
  request.total_rows = 8;
  EXPECT_EQ(ValuesOf(pipeline->ForwardBackward(request).status())["field"], "total_elements");
}

TEST_F(SerialPipeline, AppliesNothingWhenTheLossIsNotFinite) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kExceptLast));
  const NamedTensors before = pipeline->ExportState(true).value();
  ContributionRequest bad = SmallBatch(4);
  bad.target = at::full({4, kWidth}, std::numeric_limits<float>::quiet_NaN());
  auto outcome = pipeline->TrainStep(bad, {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->applied, false);
  EXPECT_EQ(outcome->step, 0);
  EXPECT_TRUE(SameState(before, pipeline->ExportState(true).value()));
  auto good = pipeline->TrainStep(SmallBatch(4), {});
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->applied, true);
}

// One layer with weights of zero: what comes out and the loss are small, whatever comes in.
TEST_F(SerialPipeline, AppliesNothingWhenAGradientIsNotFinite) {
  PipelineSpec spec = Mlp(1, 2, CheckpointMode::kNever);
  spec.model = {};
  spec.model.layers = {{"linear", "", {{"in", kWidth}, {"out", kWidth}}}};
  auto pipeline = Make(spec);
  NamedTensors zeros = pipeline->ExportState(true).value();
  for (NamedTensor& tensor : zeros) tensor.tensor.zero_();
  ASSERT_TRUE(pipeline->ImportState(zeros, 0).ok());
  ContributionRequest steep;
  steep.inputs = NamedTensors{{"input", at::full({4, kWidth}, 1e38f)}};
  steep.target = at::full({4, kWidth}, 100.0f);
  auto outcome = pipeline->TrainStep(steep, {});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(std::isfinite(*outcome->loss));
  EXPECT_EQ(outcome->applied, false);
  EXPECT_EQ(pipeline->step(), 0);
  EXPECT_TRUE(SameState(zeros, pipeline->ExportState(true).value()));
}

TEST_F(SerialPipeline, TheClipOfACallWinsOverTheSpecifications) {
  PipelineSpec clipped = Mlp(2, 2, CheckpointMode::kNever);
  clipped.optimizer.clip_norm = 1e-3;
  auto by_specification = Make(clipped);
  auto by_call = Make(Mlp(2, 2, CheckpointMode::kNever));
  const ContributionRequest request = SmallBatch(4);
  ASSERT_TRUE(by_specification->TrainStep(request, {}).ok());
  ASSERT_TRUE(by_call->TrainStep(request, {.clip_norm = 1e-3}).ok());
  EXPECT_TRUE(SameState(by_specification->ExportState(true).value(), by_call->ExportState(true).value()));
}

TEST_F(SerialPipeline, ForwardThenBackwardAddsTheSameGradients) {
  auto apart = Make(Mlp(2, 2, CheckpointMode::kAlways));
  auto whole = Make(Mlp(2, 2, CheckpointMode::kAlways));
  ContributionRequest batch = SmallBatch(4);
  auto forward = apart->Forward({.inputs = batch.inputs, .micro_batches = {}, .outputs = {}, .cancel = nullptr});
  ASSERT_TRUE(forward.ok()) << forward.status();
  // d mean((y - t)^2) / dy of each micro-batch's mean, weighted by its half of the rows.
  const at::Tensor gradient = (*forward->outputs[0].value.tensor() - batch.target) * (2.0 / (2 * kWidth)) * 0.5;
  ASSERT_TRUE(apart->Backward(forward->graph, {{"output", gradient}}, /*retain_graph=*/false).ok());
  EXPECT_EQ(ReasonOf(apart->Backward(forward->graph, {{"output", gradient}}, false).status()), "GRAPH_CONSUMED");
  ASSERT_TRUE(apart->OptimizerStep({}).ok());
  ASSERT_TRUE(whole->TrainStep(batch, {}).ok());
  const NamedTensors a = apart->ExportState(false).value();
  const NamedTensors b = whole->ExportState(false).value();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::allclose(a[i].tensor, b[i].tensor, 1e-5, 1e-7)) << a[i].name;
}

TEST_F(SerialPipeline, RetainedGraphGoesBackwardTwiceWithEqualGradients) {
  for (CheckpointMode mode : {CheckpointMode::kNever, CheckpointMode::kAlways}) {
    auto twice = Make(Mlp(2, 2, mode));
    auto once = Make(Mlp(2, 2, mode));
    const ContributionRequest batch = SmallBatch(4);
    const at::Tensor gradient = at::randn({4, kWidth});
    auto a = twice->Forward({.inputs = batch.inputs, .micro_batches = {}, .outputs = {}, .cancel = nullptr});
    ASSERT_TRUE(twice->Backward(a->graph, {{"output", gradient}}, true).ok());
    ASSERT_TRUE(twice->Backward(a->graph, {{"output", gradient}}, false).ok());
    auto b = once->Forward({.inputs = batch.inputs, .micro_batches = {}, .outputs = {}, .cancel = nullptr});
    ASSERT_TRUE(once->Backward(b->graph, {{"output", gradient * 2}}, false).ok());
    auto norm_twice = twice->OptimizerStep({});
    auto norm_once = once->OptimizerStep({});
    EXPECT_NEAR(*norm_twice->gradient_norm, *norm_once->gradient_norm, 1e-5 * *norm_once->gradient_norm);
  }
}

TEST_F(SerialPipeline, AStaleGraphIsRefusedByName) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kNever));
  auto forward =
      pipeline->Forward({.inputs = SmallBatch(4).inputs, .micro_batches = {}, .outputs = {}, .cancel = nullptr});
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  EXPECT_EQ(ReasonOf(pipeline->Backward(forward->graph, {{"output", at::zeros({4, kWidth})}}, false).status()),
            "GRAPH_STALE");
}

TEST_F(SerialPipeline, RefusesInputsThatDoNotMatchNamingFieldAndValue) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kNever));
  struct Case {
    NamedTensors inputs;
    std::string field;
    std::string value;
  };
  const at::Tensor good = at::zeros({2, kWidth});
  const std::vector<Case> cases = {
      {{{"other", good}}, "inputs[0].name", "other"},
      {{{"input", good}, {"input", good}}, "inputs[1].name", "input"},
      {{}, "inputs", "0 tensors"},
      {{{"input", at::zeros({2, kWidth + 1})}}, "inputs[0].shape", "[2, 9]"},
      {{{"input", at::zeros({kWidth})}}, "inputs[0].shape", "[8]"},
      {{{"input", at::zeros({0, kWidth})}}, "inputs[0].shape", "[0, 8]"},
      {{{"input", good.to(at::kDouble)}}, "inputs[0].type", "FP64"},
  };
  for (const Case& one : cases) {
    ContributionRequest request;
    request.inputs = one.inputs;
    request.target = good;
    absl::Status status = pipeline->TrainStep(request, {}).status();
    EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE") << status;
    EXPECT_EQ(ValuesOf(status)["field"], one.field) << status;
    EXPECT_EQ(ValuesOf(status)["value"], one.value) << status;
  }
  ContributionRequest request = SmallBatch(4);
  request.micro_batches = 0;
  EXPECT_EQ(ValuesOf(pipeline->TrainStep(request, {}).status())["value"], "0");
  request.micro_batches = -3;
  EXPECT_EQ(ValuesOf(pipeline->TrainStep(request, {}).status())["value"], "-3");
  request = SmallBatch(4);
  request.total_rows = 3;
  EXPECT_EQ(ValuesOf(pipeline->ForwardBackward(request).status())["field"], "total_rows");
  EXPECT_TRUE(log_.empty());
}

TEST_F(SerialPipeline, CancelStopsBeforeTheNextActionAndAddsNothing) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kNever));
  ContributionRequest request = SmallBatch(4);
  request.cancel = std::make_shared<CancelToken>();
  request.cancel->Cancel();
  EXPECT_EQ(ReasonOf(pipeline->ForwardBackward(request).status()), "WORK_CANCELLED");
  EXPECT_TRUE(log_.empty());
  EXPECT_FALSE(pipeline->accumulating());
}

TEST_F(SerialPipeline, StateGoesOutAndInAndAMisfitIsNamed) {
  auto pipeline = Make(Mlp(2, 2, CheckpointMode::kNever));
  NamedTensors state = pipeline->ExportState(true).value();
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  EXPECT_FALSE(SameState(state, pipeline->ExportState(true).value()));
  ASSERT_TRUE(pipeline->ImportState(state, 0).ok());
  EXPECT_TRUE(SameState(state, pipeline->ExportState(true).value()));
  EXPECT_EQ(pipeline->step(), 0);

  NamedTensors wrong = state;
  wrong[1].tensor = at::zeros({3});
  absl::Status status = pipeline->ImportState(wrong, 0);
  EXPECT_EQ(ReasonOf(status), "MODEL_MISMATCH");
  EXPECT_EQ(ValuesOf(status)["field"], wrong[1].name);
  wrong = state;
  wrong.push_back({"stranger", at::zeros({1})});
  EXPECT_EQ(ValuesOf(pipeline->ImportState(wrong, 0))["field"], "stranger");
  wrong = state;
  wrong.pop_back();
  EXPECT_EQ(ReasonOf(pipeline->ImportState(wrong, 0)), "MODEL_MISMATCH");
  EXPECT_TRUE(SameState(state, pipeline->ExportState(true).value()));
}

TEST_F(SerialPipeline, LanesLeaveTheStepAndTheirTimeIsConserved) {
  auto pipeline = Make(Mlp(2, 4, CheckpointMode::kAlways));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pipeline->TrainStep(SmallBatch(8), {}).ok());
  for (int stage = 0; stage < 2; ++stage) {
    const StateTimes times = metrics_->lane(stage).state.Snapshot();
    EXPECT_EQ(times.state, StageState::kNoWork);
    int64_t sum = 0;
    for (int64_t nanos : times.nanos) sum += nanos;
    EXPECT_EQ(sum, times.Total());
    EXPECT_GT(times[StageState::kRecompute], 0);
    EXPECT_GT(times[StageState::kOptimizer], 0);
    EXPECT_EQ(metrics_->lane(stage).phases[Phase::kForward].Snapshot().count(), 3 * 4);
    EXPECT_EQ(metrics_->lane(stage).phases[Phase::kRecompute].Snapshot().count(), 3 * 4);
    EXPECT_EQ(metrics_->lane(stage).inflight_micro_batches.value(), 0);
  }
}

// The machine's clock, which throws once on a device's thread, at a place that the test chooses.
class BreakingClock : public Clock {
 public:
  int64_t NowNanos() override {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    if (std::string(name).starts_with("ps-cpu") && left_.fetch_sub(1) == 1) throw std::runtime_error("a broken clock");
    return RealClock()->NowNanos();
  }
  absl::Time WallNow() override { return RealClock()->WallNow(); }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, int64_t deadline_nanos) override
      ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return RealClock()->AwaitUntil(mutex, condition, deadline_nanos);
  }

  void BreakAt(int call) { left_ = call; }
  bool broke() const { return left_ <= 0; }

 private:
  std::atomic<int> left_ = std::numeric_limits<int>::max();
};

TEST(ThreadedPipeline, AnExceptionAnywhereInALaneEndsTheRunAndTheNextOneWorks) {
  BreakingClock clock;
  DevicePool pool(TwoDevices(), DevicePool::Mode::kThreads);
  Pipeline::Options options;
  options.devices = &pool;
  options.clock = &clock;
  options.profile = {.rows = 2, .repeats = 1};
  auto made = Pipeline::Create(Mlp(2, 2, CheckpointMode::kExceptLast), options);
  ASSERT_TRUE(made.ok()) << made.status();
  const NamedTensors before = (*made)->ExportState(true).value();
  for (int call = 1;; ++call) {
    clock.BreakAt(call);
    const absl::Status status = (*made)->ForwardBackward(SmallBatch(4)).status();
    const bool broke = clock.broke();
    clock.BreakAt(std::numeric_limits<int>::max());
    EXPECT_EQ(ReasonOf(status), broke ? "BUG" : "") << call << ": " << status;
    if (broke) {
      EXPECT_NE(ValuesOf(status)["incident"], "") << call;
    }
    ASSERT_TRUE((*made)->ForwardBackward(SmallBatch(4)).ok()) << call;
    (*made)->DiscardGradients();
    if (!broke) {
      EXPECT_GT(call, 20) << "all places were tried";
      break;
    }
  }
}

TEST(ThreadedPipeline, AnExceptionAnywhereInALaneEndsTheInferenceAndTheNextOneWorks) {
  BreakingClock clock;
  DevicePool pool(TwoDevices(), DevicePool::Mode::kThreads);
  Pipeline::Options options;
  options.devices = &pool;
  options.clock = &clock;
  options.profile = {.rows = 2, .repeats = 1};
  auto made = Pipeline::Create(Mlp(2, 2, CheckpointMode::kExceptLast), options);
  ASSERT_TRUE(made.ok()) << made.status();
  const auto infer = [&] {
    absl::Notification done;
    absl::StatusOr<ForwardOutcome> answer;
    (*made)->InferAsync({.inputs = SmallBatch(4).inputs}, [&](absl::StatusOr<ForwardOutcome> outcome) {
      answer = std::move(outcome);
      done.Notify();
    });
    done.WaitForNotification();
    return answer.status();
  };
  for (int call = 1; call <= 12; ++call) {
    clock.BreakAt(call);
    const absl::Status status = infer();
    clock.BreakAt(std::numeric_limits<int>::max());
    EXPECT_EQ(ReasonOf(status), status.ok() ? "" : "BUG") << call << ": " << status;
    EXPECT_TRUE(infer().ok()) << call;
  }
}

TEST(ScheduleBook, KeepsTheListsThatWereUsedLast) {
  BuildRequest request;
  request.kind = "1f1b";
  request.lanes = 2;
  ScheduleBook book(request);
  const ListsOfRun first = *book.Find(SchedulePurpose::kForwardOnly, 1);
  for (int m = 2; m <= 200; ++m) {
    ASSERT_TRUE(book.Find(SchedulePurpose::kForwardOnly, m).ok());
    EXPECT_EQ(book.Find(SchedulePurpose::kForwardOnly, 1)->schedule, first.schedule) << "in use all the time";
  }
  EXPECT_EQ(book.size(), ScheduleBook::kMaxLists);
}

TEST(ScheduleBook, CallersAtOnceGetTheSameList) {
  BuildRequest request;
  request.kind = "1f1b";
  request.lanes = 2;
  ScheduleBook book(request);
  std::vector<ListsOfRun> found(4);
  {
    std::vector<std::unique_ptr<Thread>> callers;
    for (ListsOfRun& one : found) {
      callers.push_back(
          std::make_unique<Thread>("caller", [&] { one = *book.Find(SchedulePurpose::kForwardOnly, 64); }));
    }
  }
  for (const ListsOfRun& one : found) EXPECT_EQ(one.schedule, found[0].schedule);
  EXPECT_EQ(book.size(), 1);
}

TEST(ThreadedPipeline, InfersWhileItTrainsOnWeightsOfOneStep) {
  DevicePool pool(TwoDevices(), DevicePool::Mode::kThreads);
  Pipeline::Options options;
  options.devices = &pool;
  options.profile = {.rows = 2, .repeats = 1};
  auto made = Pipeline::Create(Mlp(2, 4, CheckpointMode::kExceptLast), options);
  ASSERT_TRUE(made.ok()) << made.status();
  Pipeline& pipeline = **made;
  const NamedTensors input = {{"input", at::randn({4, kWidth})}};
  const auto infer = [&](absl::Notification& done, absl::StatusOr<ForwardOutcome>& answer) {
    pipeline.InferAsync({.inputs = input, .micro_batches = 2, .outputs = {}, .cancel = nullptr},
                        [&](absl::StatusOr<ForwardOutcome> outcome) {
                          answer = std::move(outcome);
                          done.Notify();
                        });
  };
  // Outputs of every step's weights, one at a time.
  std::vector<ContributionRequest> batches;
  for (int i = 0; i < 30; ++i) batches.push_back(SmallBatch(8));
  const NamedTensors start = pipeline.ExportState(true).value();
  std::vector<at::Tensor> expected;
  for (int step = 0; step <= 30; ++step) {
    absl::Notification done;
    absl::StatusOr<ForwardOutcome> answer;
    infer(done, answer);
    done.WaitForNotification();
    ASSERT_TRUE(answer.ok());
    expected.push_back(*answer->outputs[0].value.tensor());
    if (step < 30) {
      ASSERT_TRUE(pipeline.TrainStep(batches[step], {}).ok());
    }
  }
  // The same training again, with inference thrown in at any time.
  ASSERT_TRUE(pipeline.ImportState(start, 0).ok());
  std::vector<absl::Notification> done(120);
  std::vector<absl::StatusOr<ForwardOutcome>> answers(120);
  {
    Thread client("client", [&] {
      for (int i = 0; i < 120; ++i) {
        infer(done[i], answers[i]);
        done[i].WaitForNotification();
      }
    });
    for (int step = 0; step < 30; ++step) ASSERT_TRUE(pipeline.TrainStep(batches[step], {}).ok());
  }
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_TRUE(at::equal(*answer->outputs[0].value.tensor(), expected.at(answer->step))) << "step " << answer->step;
  }
}

}  // namespace
}  // namespace penstock
