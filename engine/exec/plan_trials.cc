#include "engine/exec/plan_trials.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline_impl.h"
#include "engine/plan/memory.h"

namespace penstock {
namespace {

constexpr double kMinSecondsOfSteps = 0.1;  // of short steps, more,
constexpr int kMaxSteps = 100;              // but no more than these

bool CanRun(const Draft& draft) {
  if (draft.loss == nullptr) return false;
  const auto any = [](const TensorSignature& signature) { return signature.any; };
  const bool has_sample = draft.sample != nullptr;
  if (draft.loss->needs_target() && !(has_sample && draft.sample->target.defined())) {
    if (draft.signature.targets.empty() || any(draft.signature.targets[0])) return false;
  }
  return has_sample || std::none_of(draft.signature.inputs.begin(), draft.signature.inputs.end(), any);
}

// A mini-batch of the caller's sample, or as the signature describes it, with this integer in its inputs.
absl::StatusOr<ContributionRequest> ExampleBatch(const PlanningSample* sample, const ModelSignature& signature,
                                                 bool needs_target, int64_t rows, int64_t open_dimension,
                                                 int64_t integer) {
  ContributionRequest request;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    request.inputs = MeasuringInputs(sample, signature.inputs, rows, open_dimension, integer);
    if (!needs_target) return;
    if (sample != nullptr && sample->target.defined()) {
      request.target = TakeRows(sample->target, rows);
      return;
    }
    at::Tensor target = ExampleInputs(signature.targets, rows, open_dimension).at(0);
    // A loss may want probabilities; no other one minds.
    request.target = target.is_floating_point() ? target.sigmoid() : target;
  }));
  return request;
}

// Of a mini-batch: the same for all plans of a search, as far as its rows are known.
int64_t RowsOfAStep(const PipelineSpec& spec, const Pipeline::Options& options, const Plan& plan) {
  if (spec.limits.mini_batch_rows > 0) return spec.limits.mini_batch_rows;
  if (spec.limits.open.micro_batches) return kDefaultMiniBatchRows;
  return plan.schedule.micro_batches * (plan.micro_batch_rows > 0 ? plan.micro_batch_rows : options.profile.rows);
}

// What a trial places: all stages on this process's devices, by which it knows those of other ranks; no optimizer steps,
// so that there is nothing to undo and no memory to keep for it.
Plan ToTry(const std::vector<Device>& devices, Plan plan) {
  for (StagePlan& stage : plan.stages) {
    stage.rank = Rank(0);
    for (const Device& device : devices) {
      if (device.name != stage.device || device.rank == Rank(0)) continue;
      stage.device = absl::StrCat(device.kind == DeviceKind::kCuda ? "cuda:" : "cpu:", device.index);
    }
  }
  if (plan.undo) DropUndo("a trial does not need them", plan);
  return plan;
}

// The seconds of steps of a pipeline made for them.
absl::StatusOr<std::vector<double>> StepsOf(const PipelineSpec& spec, Pipeline::Options options, const Plan& plan,
                                            const OutOfTime& out_of_time) {
  options.clock = ClockOf(options);
  options.metrics = nullptr;
  options.before_action = nullptr;
  options.group = nullptr;
  PENSTOCK_ASSIGN_OR_RETURN(Draft draft, CheckSpecification(spec, options));
  draft.plan = ToTry(draft.request.devices, plan);
  PENSTOCK_ASSIGN_OR_RETURN(PlacedStages placed, PlaceStages(spec, options, draft, draft.plan));
  const std::shared_ptr<const PlanningSample> sample = draft.sample;
  const ModelSignature signature = draft.signature;
  const bool needs_target = draft.loss->needs_target();
  const int64_t rows = RowsOfAStep(spec, options, plan);
  const int64_t open_dimension = placed.open_dimension;
  const auto pipeline = AssemblePipeline(spec, std::move(options), std::move(draft), std::move(placed));
  std::vector<double> seconds;
  const auto run = [&](int64_t integer) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const ContributionRequest request,
                              ExampleBatch(sample.get(), signature, needs_target, rows, open_dimension, integer));
    double all = 0;
    for (int step = 0; step <= kRehearsalSteps || (all < kMinSecondsOfSteps && step < kMaxSteps); ++step) {
      if (out_of_time && out_of_time()) break;
      pipeline->DiscardGradients();
      PENSTOCK_ASSIGN_OR_RETURN(const RunOutcome outcome, pipeline->ForwardBackward(request));
      if (step == 0) continue;  // warms up
      seconds.push_back(outcome.seconds);
      all += outcome.seconds;
    }
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(WithExampleInteger(sample.get(), signature.inputs, run));
  return seconds;
}

}  // namespace

PlanTrials TrialsOnDevices(const PipelineSpec& spec, const Pipeline::Options& options, const Draft& draft) {
  PlanTrials trials;
  if (options.devices->mode() != DevicePool::Mode::kThreads) return trials;
  trials.measure = [&](Plan plan) -> absl::StatusOr<Plan> {
    PENSTOCK_ASSIGN_OR_RETURN(const PlacedStages placed,
                              PlaceStages(spec, options, draft, ToTry(draft.request.devices, plan)));
    PENSTOCK_RETURN_IF_ERROR(Calibrate(spec, options, draft, placed, plan));
    return plan;
  };
  // Lanes of other ranks would stand in each other's way here.
  const auto is_here = [](const Device& device) { return device.rank == Rank(0); };
  const bool here = std::all_of(draft.request.devices.begin(), draft.request.devices.end(), is_here);
  if (options.rehearse && here && CanRun(draft)) {
    trials.run = [&](const Plan& plan, const OutOfTime& out_of_time) {
      return StepsOf(spec, options, plan, out_of_time);
    };
  }
  return trials;
}

}  // namespace penstock
