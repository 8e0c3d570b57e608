#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/accelerators.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"
#include "engine/exec/pipeline_impl.h"
#include "engine/exec/signature_check.h"
#include "engine/exec/straight_values.h"
#include "engine/optim/gradient_norm.h"
#include "engine/tensor/held_values.h"
#include "engine/tensor/micro_batch.h"

// The main path of a training step:
//
//   caller                      cpu:0 (stage 0)                    cpu:1 (stage 1)
//   1 scatter  ──lists──▶       2 0F0 ─────activation──────▶       1F0, with the loss
//                                 0F1 ─────────────────────▶       1B0
//                                 0B0 ◀────gradient─────────       1F1
//                                 ...                              ...
//                               3 norms ──▶ gather, decide ◀─      norms, and copies of what the step changes
//                                 inference gives way, then both stages step
//   4 over, or undone on both stages
//
// A ForwardBackward ends before 3; an OptimizerStep is 3 alone; Forward and Backward, in pipeline_halves.cc, are the
// two halves of 2; Infer, in pipeline_inference.cc, is the forward half without a graph, from any thread, in the gaps
// of all of this.

namespace penstock {

// --- Runs ---

RunSpec PipelineImpl::NewSpec(SchedulePurpose purpose, int micro_batches) {
  RunSpec spec;
  spec.id = next_run_.fetch_add(1, std::memory_order_relaxed);
  spec.purpose = purpose;
  spec.micro_batches = micro_batches;
  spec.seed = spec_.seed;
  spec.step = StepId(step_.load());
  return spec;
}

PipelineImpl::LedRun PipelineImpl::NewRun(RunSpec spec, ListsOfRun lists, std::shared_ptr<CancelToken> cancel) {
  LedRun led;
  led.leader = std::make_shared<LocalCoordinator>(
      rank_.lanes(), [this] { rank_.WakeAll(); }, std::move(cancel));
  led.run = rank_.Prepare(std::move(spec), std::move(lists), led.leader);
  return led;
}

absl::Status PipelineImpl::RunToEnd(const LedRun& led, RunOutcome& outcome) {
  const std::shared_ptr<Run>& run = led.run;
  const int64_t rows = outcome.micro_batches == 0 ? 0 : (outcome.rows - 1) / outcome.micro_batches + 1;
  const int64_t begin = clock_->NowNanos();
  run->progress = rank_.filling().BeginRun(run->lists.schedule, rows, run->spec.Steps(), begin);
  ranks_.ClaimTurns(begin);
  const std::vector<StateTimes> before = metrics_->LaneTimes(begin);
  absl::Notification finished;
  led.leader->OnEnd([&] {
    const absl::Status closed = Guarded("the end of a run", [&] { ranks_.End(*run); });
    if (!closed.ok()) led.leader->Fail(closed);
    finished.Notify();
  });
  const absl::Status started = Guarded("the start of a run", [&] { ranks_.Start(run); });
  if (started.ok()) devices_->Wait(finished);
  const int64_t end = clock_->NowNanos();
  rank_.filling().EndRun(run->progress.get(), rows, end);
  PENSTOCK_RETURN_IF_ERROR(started);
  outcome.seconds = static_cast<double>(end - begin) * 1e-9;
  outcome.measured_bubble = TimesBetween(before, metrics_->LaneTimes(end)).MeasuredBubble();
  return led.leader->Result();
}

// --- Scatter ---

absl::StatusOr<ScatteredBatch> PipelineImpl::ScatterInputs(const NamedValues& inputs,
                                                           const std::optional<int>& micro_batches) const {
  const int asked = micro_batches.value_or(plan_.schedule.micro_batches);
  PENSTOCK_ASSIGN_OR_RETURN(NamedValues ordered, MatchSignature(signature_.inputs, inputs, "inputs"));
  for (NamedValue& input : ordered) {
    if (rank_.first_device() == nullptr) {  // messages to other ranks begin on the host
      PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { input.value = input.value.MapTensors(ToHost); }));
    }
    if (!input.value.is_tensor()) continue;
    // Wherever they are, they go to the first stage with its forward.
    const at::Device device = input.value.tensor()->device();
    if (IsOpen(device)) continue;
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                 absl::StrCat("inputs[", input.name,
                              "]: All inputs should be on the same device as the first partition (",
                              plan_.stages.front().device, "), or on another one of this process, got ", device.str()))
        .With("field", absl::StrCat("inputs[", input.name, "]"))
        .With("value", device.str());
  }
  return Scatter(ordered, asked, "inputs");
}

absl::Status PipelineImpl::ScatterTarget(const ContributionRequest& request, const ScatteredBatch& scattered,
                                         ScatteredLoss& result) const {
  const int64_t rows = TotalRows(scattered.rows);
  PENSTOCK_RETURN_IF_ERROR(CheckTarget(request.target, request.weights, request.loss, rows));
  if (request.loss.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(result.owned, MakeLoss(*request.loss));
  }
  const Loss* loss = request.loss.has_value() ? result.owned.get() : loss_.get();
  PENSTOCK_ASSIGN_OR_RETURN(const int output,
                            LossOutput(request.loss.value_or(spec_.loss), signature_.outputs, "loss"));
  double total = 0;
  bool uneven = request.weights.defined() || loss->weighs();  // not all elements count alike
  absl::Status status = RunTorch([&] {
    at::NoGradGuard no_graph;
    std::vector<double> counted;
    const bool targets = loss->needs_target();  // without, rows count
    const Tensors weights =
        request.weights.defined() ? SplitRows(request.weights, scattered.rows) : Tensors(scattered.rows.size());
    for (const at::Tensor& piece : targets ? SplitRows(request.target, scattered.rows) : Tensors()) {
      const at::Tensor& of_piece = weights[result.losses.size()];
      result.losses.push_back({.loss = loss, .target = piece, .weights = of_piece, .output = output});
      counted.push_back(loss->Counted(piece, of_piece));
    }
    if (!targets) {
      counted.assign(scattered.rows.begin(), scattered.rows.end());
      result.losses.resize(counted.size(), {.loss = loss, .target = {}, .weights = {}, .output = output});
    }
    result.counted = std::accumulate(counted.begin(), counted.end(), 0.0);
    total = result.counted;
    const int64_t elements = targets ? request.target.numel() : rows;
    const int64_t per_row = elements / std::max<int64_t>(rows, 1);
    if (request.total_elements.has_value()) {
      total = *request.total_elements;
    } else if (request.total_rows.has_value()) {
      total = static_cast<double>(*request.total_rows * per_row);
    }
    for (size_t m = 0; m < counted.size(); ++m) result.losses[m].share = total == 0 ? 0 : counted[m] / total;
    uneven = uneven || result.counted != static_cast<double>(elements);
  });
  PENSTOCK_RETURN_IF_ERROR(status);
  if (uneven && request.total_rows.has_value() && !request.total_elements.has_value()) {
    return InvalidField("total_elements", "is required, instead of total_rows, where labels are ignored or weighted",
                        absl::StrCat("total_rows ", *request.total_rows));
  }
  constexpr double kRounding = 1e-6;  // of a sum of weights that the caller has added up in another order
  if (total < result.counted * (1 - kRounding)) {
    return InvalidField(
        request.total_elements.has_value() ? "total_elements" : "total_rows",
        "must not be less than what this call has",
        absl::StrCat(request.total_elements.value_or(static_cast<double>(request.total_rows.value_or(0)))));
  }
  result.total = total;
  return absl::OkStatus();
}

// --- Training ---

absl::StatusOr<RunOutcome> PipelineImpl::Contribute(const ContributionRequest& request,
                                                    const std::optional<StepRule>& rule) {
  PENSTOCK_RETURN_IF_ERROR(health());
  PENSTOCK_RETURN_IF_ERROR(CheckInputs(request.inputs, /*needs_rows=*/true).status());
  PENSTOCK_ASSIGN_OR_RETURN(ScatteredBatch scattered, ScatterInputs(request.inputs, request.micro_batches));
  ScatteredLoss loss;
  PENSTOCK_RETURN_IF_ERROR(ScatterTarget(request, scattered, loss));
  std::vector<int> wanted;
  if (!request.outputs.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(wanted, MatchNames(signature_.outputs, request.outputs, "outputs"));
  }
  std::vector<std::vector<Batch>> inputs;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { inputs = InputsByStage(plan_, std::move(scattered.micro_batches)); }));
  const int m = static_cast<int>(scattered.rows.size());
  const SchedulePurpose purpose = rule.has_value() ? SchedulePurpose::kTrainingStep : SchedulePurpose::kContribution;
  PENSTOCK_ASSIGN_OR_RETURN(ListsOfRun lists, rank_.Find(purpose, m));

  RunSpec spec = NewSpec(purpose, m);
  spec.rows = scattered.rows;
  spec.training = true;
  spec.accumulating = accumulating_.load();
  spec.micro_batch_base = next_micro_batch_;
  spec.keep_outputs = !wanted.empty();
  LedRun led = NewRun(std::move(spec), std::move(lists), rule.has_value() ? nullptr : request.cancel);
  Run& run = *led.run;
  run.inputs = std::move(inputs);
  run.losses = std::move(loss.losses);
  run.own_loss = request.loss;
  led.open = ranks_.Lead(led.run, led.leader);

  RunOutcome outcome;
  outcome.micro_batches = m;
  outcome.rows = TotalRows(scattered.rows);
  // Outputs that can't be joined, or are more than a handle may hold, fail the call before it has changed anything.
  const auto gather = [&]() -> absl::Status {
    if (wanted.empty()) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(outcome.outputs, GatherOutputs(run, wanted));
    return absl::OkStatus();
  };
  if (rule.has_value()) led.leader->OpenStep(stage_count(), ties_, [&] { Decide(led, *rule, gather()); });
  absl::Status status = RunToEnd(led, outcome);
  if (rule.has_value()) {
    PENSTOCK_RETURN_IF_ERROR(FinishStep(led, status, outcome));
  } else {
    if (status.ok()) status = gather();
    ranks_.EndContribution(status.ok(), MicroBatchIndex(run.spec.micro_batch_base));
    PENSTOCK_RETURN_IF_ERROR(status);
    next_micro_batch_ += m;
    accumulating_ = true;
  }
  double sum = 0;
  for (double value : run.LossValues()) sum += value;
  if (!std::isfinite(sum)) loss_finite_ = loss_finite_ && rule.has_value();
  // The call's own mean: what it added, without its share of the step.
  outcome.counted = loss.counted;
  outcome.loss = loss.counted == 0 ? 0 : sum * (loss.total / loss.counted);
  outcome.step = step_.load();
  return outcome;
}

void PipelineImpl::Decide(const LedRun& led, const StepRule& rule, absl::Status status) {
  StepDecision decision;
  if (status.ok()) {
    status = RunTorch([&] {
      if (options_.fault_point) options_.fault_point(FaultPoint::kDecide, 0);
      at::NoGradGuard no_graph;
      decision.norm = GlobalNorm(led.leader->Norms());
    });
    if (!status.ok()) status = WithValue(std::move(status), kStepPart, ToString(FaultPoint::kDecide));
  }
  if (!status.ok()) return led.leader->Fail(std::move(status));
  decision.learning_rate = rule.learning_rate;
  decision.applied = rule.loss_finite && std::isfinite(decision.norm);
  for (double value : led.run->LossValues()) decision.applied = decision.applied && std::isfinite(value);
  decision.scale = ClipScale(decision.norm, rule.clip_norm);
  led.leader->Decide(decision);
  gate_.RequestExclusive([leader = led.leader] { leader->Grant(); });
  led.leader->ExpectGrant();  // only now: a request that throws is none
}

// The step is over on all stages or undone on all, or the pipeline is broken, before inference sees the weights again.
absl::Status PipelineImpl::FinishStep(const LedRun& led, const absl::Status& status, RunOutcome& outcome) {
  LocalCoordinator& leader = *led.leader;
  // All lanes have left: where the gate is granted only now, no stage has seen it.
  const bool changed = leader.Granted() && leader.decision().applied;
  if (leader.expects_grant()) devices_->Wait(leader.gate());
  const absl::Cleanup release = [this, granted = leader.expects_grant()] {
    if (granted) gate_.ReleaseExclusive();
  };
  if (!status.ok()) return UndoStep(led, changed, status);
  DiscardGradients();
  const StepDecision& decision = leader.decision();
  if (decision.applied) ChangeWeights(step_.load() + 1);
  outcome.gradient_norm = decision.norm;
  outcome.applied = decision.applied;
  outcome.learning_rate = decision.learning_rate;
  outcome.step = step_.load();
  return absl::OkStatus();
}

void PipelineImpl::ChangeWeights(int64_t step) {
  step_ = step;
  state_ = next_state_;
}

absl::Status PipelineImpl::UndoStep(const LedRun& led, bool changed, const absl::Status& cause) {
  const absl::Status undone = !changed ? absl::OkStatus() : plan_.undo ? ranks_.Undo() : cause;
  if (!undone.ok()) {
    Break("an optimizer step failed half-way", undone);
    return health();
  }
  ranks_.RestoreTiedGradients(led.leader->ties());
  // An OptimizerStep has noted nothing: what the open accumulation has noted stays.
  const bool contributed = led.run->spec.purpose == SchedulePurpose::kTrainingStep;
  ranks_.EndContribution(/*keep=*/false, contributed ? MicroBatchIndex(led.run->spec.micro_batch_base) : kNoMicroBatch);
  if (ValuesOf(cause).count(kStepPart) == 0) return cause;
  Error rolled_back(absl::StatusCode::kAborted, "STEP_ROLLED_BACK",
                    absl::StrCat("the step failed and was rolled back, nothing has changed: ", cause.message()));
  for (const auto& [name, value] : ValuesOf(cause)) rolled_back.With(name, value);
  return std::move(rolled_back).With("cause", ReasonOf(cause));
}

void PipelineImpl::Break(std::string_view what, const absl::Status& cause) {
  {
    absl::MutexLock lock(&health_mu_);
    health_ = broken_;  // before anything that may fail for want of memory
  }
  Error broken(absl::StatusCode::kFailedPrecondition, "PIPELINE_BROKEN",
               absl::StrCat(absl::string_view(what.data(), what.size()),
                            "; restore a checkpoint, write all parameters with the optimizer's state, or delete the "
                            "pipeline: ",
                            cause.message()));
  for (const auto& [name, value] : ValuesOf(cause)) broken.With(name, value);
  broken.With("cause", ReasonOf(cause));
  LogError("a pipeline is broken", {{"reason", ReasonOf(cause)}, {"text", std::string(cause.message())}});
  DiscardGradients();
  absl::Status told = broken;
  absl::MutexLock lock(&health_mu_);
  health_ = std::move(told);
}

absl::Status PipelineImpl::health() const {
  PENSTOCK_RETURN_IF_ERROR(ranks_.health());  // nothing mends the loss of a rank
  absl::MutexLock lock(&health_mu_);
  return health_;
}

PipelineImpl::StepRule PipelineImpl::RuleOf(const StepRequest& request) const {
  const OptimizerSpec now = optimizer();
  return {.learning_rate = request.learning_rate.value_or(LearningRate(now, step_.load())),
          .clip_norm = request.clip_norm.value_or(now.clip_norm),
          .loss_finite = loss_finite_};
}

absl::StatusOr<RunOutcome> PipelineImpl::ForwardBackward(ContributionRequest request) {
  return Contribute(request, std::nullopt);
}

absl::StatusOr<RunOutcome> PipelineImpl::TrainStep(ContributionRequest request, StepRequest step) {
  if (accumulating_) return NotNow("ACCUMULATION_OPEN", "accumulated gradients wait for an OptimizerStep");
  PENSTOCK_RETURN_IF_ERROR(CheckStep(step));
  return Contribute(request, RuleOf(step));
}

absl::StatusOr<RunOutcome> PipelineImpl::OptimizerStep(StepRequest request) {
  PENSTOCK_RETURN_IF_ERROR(health());
  if (!accumulating_) return NotNow("ACCUMULATION_EMPTY", "no gradients were accumulated");
  PENSTOCK_RETURN_IF_ERROR(CheckStep(request));
  PENSTOCK_ASSIGN_OR_RETURN(ListsOfRun lists, rank_.Find(SchedulePurpose::kOptimizerOnly, 0));
  const StepRule rule = RuleOf(request);
  LedRun led = NewRun(NewSpec(SchedulePurpose::kOptimizerOnly, 0), std::move(lists), nullptr);
  led.open = ranks_.Lead(led.run, led.leader);
  led.leader->OpenStep(stage_count(), ties_, [&] { Decide(led, rule, absl::OkStatus()); });
  RunOutcome outcome;
  const absl::Status status = RunToEnd(led, outcome);
  PENSTOCK_RETURN_IF_ERROR(FinishStep(led, status, outcome));
  return outcome;
}

void PipelineImpl::DiscardGradients() {
  ranks_.DiscardGradients();
  accumulating_ = false;
  loss_finite_ = true;
  next_micro_batch_ = 0;
}

// --- Gather ---

namespace {

// Joined outputs as results, which a handle can hold.
absl::StatusOr<NamedValues> ResultsOf(const std::vector<Batch>& micro_batches, const std::vector<std::string>& names) {
  PENSTOCK_ASSIGN_OR_RETURN(Batch joined, Gather(micro_batches, names));
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { joined = joined.MapTensors(Unpinned); }));
  NamedValues results = WithNames(joined, names);
  PENSTOCK_RETURN_IF_ERROR(CheckHeld(results));
  return results;
}

}  // namespace

absl::StatusOr<NamedValues> PipelineImpl::GatherOutputs(const Run& run, const std::vector<int>& wanted) const {
  const std::vector<std::string> names = OutputNames();
  const std::vector<Batch> all = JoinOutputs(plan_, run.outputs);
  if (wanted.size() == names.size() && std::is_sorted(wanted.begin(), wanted.end())) {  // all, in their order
    return ResultsOf(all, names);
  }
  std::vector<Batch> micro_batches;
  std::vector<std::string> picked_names;
  for (int position : wanted) picked_names.push_back(names[position]);
  for (const Batch& outputs : all) {
    std::vector<Value> picked;
    for (int position : wanted) {
      const auto index = static_cast<size_t>(position);
      picked.push_back(index < outputs.size() ? outputs[index] : Value());
    }
    micro_batches.push_back(Batch::Tuple(std::move(picked)));
  }
  return ResultsOf(micro_batches, picked_names);
}

std::vector<std::string> PipelineImpl::OutputNames() const {
  std::vector<std::string> names;
  for (const TensorSignature& output : signature_.outputs) names.push_back(output.name);
  return names;
}

absl::Status PipelineImpl::CheckStep(const StepRequest& request) const {
  if (request.learning_rate.has_value() && !(*request.learning_rate >= 0 && std::isfinite(*request.learning_rate))) {
    return InvalidField("learning_rate", "must be a finite number, at least 0", absl::StrCat(*request.learning_rate));
  }
  if (request.clip_norm.has_value() && !(*request.clip_norm >= 0 && std::isfinite(*request.clip_norm))) {
    return InvalidField("clip_norm", "must be a finite number, at least 0", absl::StrCat(*request.clip_norm));
  }
  return absl::OkStatus();
}

}  // namespace penstock
