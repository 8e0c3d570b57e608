#include "engine/exec/stage_executor.h"

#include <ATen/record_function.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

StageState WorkState(const Run& run, ActionKind kind) {
  if (run.inference) return StageState::kInfer;
  switch (kind) {
    case ActionKind::kForward:
      return StageState::kForward;
    case ActionKind::kRecompute:
      return StageState::kRecompute;
    case ActionKind::kOptimizer:
      return StageState::kOptimizer;
    default:
      return StageState::kBackward;
  }
}

Phase PhaseOf(const Run& run, ActionKind kind) {
  if (run.inference) return Phase::kInfer;
  switch (kind) {
    case ActionKind::kForward:
      return Phase::kForward;
    case ActionKind::kRecompute:
      return Phase::kRecompute;
    case ActionKind::kOptimizer:
      return Phase::kOptimizer;
    default:
      return Phase::kBackward;
  }
}

// The values, when they are there: at once but between accelerators.
absl::StatusOr<Batch> Await(ValuesInFlight message, DeviceStreams& streams) {
  if (message.ready != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(
        AwaitTensors({message.values.TensorsByPosition(), std::move(message.ready)}, streams).status());
  }
  return std::move(message.values);
}

// As torchgpipe's descendants call the work of a micro-batch on a stage.
std::string ProfilerLabel(const Action& action) {
  return absl::StrCat("chunk", action.microbatch, "-part", action.stage);
}

size_t PortOf(const std::vector<SkipPort>& ports, int peer) {
  for (size_t port = 0; port < ports.size(); ++port) {
    if (ports[port].peer == peer) return port;
  }
  PENSTOCK_CHECK(false);  // the lists come from the same plan as the ports
}

}  // namespace

StageExecutor::StageExecutor(std::shared_ptr<Run> run, Lane* lane)
    : run_(std::move(run)),
      lane_(lane),
      actions_(run_->schedule->ranks.at(lane->stage->index())),
      received_(run_->schedule->microbatches),
      outgoing_(run_->schedule->microbatches),
      outgoing_skips_(run_->schedule->microbatches) {
  if (run_->decision != nullptr && !run_->decision->tied.empty()) step_ = Step::kShareTies;
  run_->inference ? lane_->state.OpenInference() : lane_->state.OpenStep();
}

const Action* StageExecutor::Next() const { return position_ < actions_.size() ? &actions_[position_] : nullptr; }

StageExecutor::Readiness StageExecutor::Poll() {
  if (left_) return Readiness::kDone;
  while (!run_->Stopped()) {
    const Action* action = Next();
    if (action == nullptr) break;
    if (IsReceive(action->kind)) {
      if (!Receive(*action)) return Readiness::kWaiting;
      ++position_;
    } else if (action->kind == ActionKind::kOptimizer && !StepMayGoOn()) {
      Wait(StageState::kSync);
      return Readiness::kWaiting;
    } else {
      return Readiness::kReady;
    }
  }
  // A granted step changes weights on every stage or on none: an error elsewhere doesn't stop it here.
  if (step_ == Step::kApply && Next() != nullptr && Granted()) return Readiness::kReady;
  Leave();
  return Readiness::kDone;
}

bool StageExecutor::Receive(const Action& action) {
  const MessageKey key = KeyOf(action);
  std::optional<ValuesInFlight> message = lane_->transport->TryReceive(key);
  if (!message.has_value()) {
    const bool gradient = action.kind == ActionKind::kReceiveBackward;
    Wait(gradient ? StageState::kWaitGradient : started_ ? StageState::kWaitActivation : StageState::kFill, key);
    // It may have come between the look and the note: the sender told nobody then.
    message = lane_->transport->TryReceive(key);
    if (!message.has_value()) return false;
  }
  absl::StatusOr<Batch> values = Await(*std::move(message), *lane_->streams);
  if (values.ok()) {
    Keep(action, *std::move(values));
  } else {
    Fail(values.status(), action);
  }
  waiting_.reset();
  return true;
}

// Where a message waits for the action that uses it.
void StageExecutor::Keep(const Action& action, Batch message) {
  const int m = action.microbatch;
  if (action.peer < 0) {
    received_[m] = std::move(message);
    return;
  }
  Pass& pass = run_->passes[lane_->stage->index()][m];
  if (action.kind == ActionKind::kReceiveBackward) {
    pass.sent.resize(lane_->stage->outgoing().size());
    pass.sent[PortOf(lane_->stage->outgoing(), action.peer)].PutGradient(std::move(message));
    return;
  }
  // The stash itself was the first use.
  const int life = (!run_->inference && run_->checkpointed[m] ? Portal::kCheckpointed : Portal::kPlain) - 1;
  pass.received.resize(lane_->stage->incoming().size());
  pass.received[PortOf(lane_->stage->incoming(), action.peer)] = Portal(std::move(message), life);
}

void StageExecutor::Wait(StageState reason, std::optional<MessageKey> awaited) {
  if (run_->inference || waiting_ == reason) return;
  waiting_ = reason;
  lane_->state.WaitInStep(reason, awaited);
}

void StageExecutor::Execute() {
  const Action action = *Next();
  waiting_.reset();
  const int64_t begin = lane_->state.BeginAction(WorkState(*run_, action.kind));
  const bool followed = run_->progress != nullptr && (action.kind != ActionKind::kOptimizer || step_ == Step::kApply);
  if (followed) run_->progress->Begin(rank(), position_, begin);
  absl::Status status = Compute(action);
  const int64_t end = lane_->state.EndAction();
  if (followed) run_->progress->End(rank(), end);
  if (run_->inference)
    run_->filling->inference_costs().Observe(action.stage, run_->rows[action.microbatch], end - begin);
  started_ = true;
  lane_->metrics->ObservePhase(PhaseOf(*run_, action.kind), end - begin);
  if (!status.ok()) {
    Fail(std::move(status), action);
    return;
  }
  if (action.kind == ActionKind::kOptimizer && step_ != Step::kApply) {
    EndStepPart();
    return;
  }
  ++position_;
  while (Next() != nullptr && IsSend(Next()->kind)) Send(actions_[position_++]);
}

absl::Status StageExecutor::Compute(const Action& action) {
  return RunTorch([&] {
    if (run_->before_action) run_->before_action(action);
    at::RecordFunction label(at::RecordScope::USER_SCOPE);  // for LibTorch's profilers; nothing where none listens
    if (label.isActive() && action.kind != ActionKind::kOptimizer) label.before(ProfilerLabel(action));
    lane_->streams->RunOn(StreamKind::kCompute, [&] { Perform(action); });
  });
}

void StageExecutor::Perform(const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return ComputeForward(action);
    case ActionKind::kRecompute:
      return ComputeRecompute(action);
    case ActionKind::kBackward:
      return ComputeBackward(action);
    case ActionKind::kOptimizer:
      return ComputeStep();
    default:
      PENSTOCK_CHECK(false);  // the verifier lets nothing else through
  }
}

void StageExecutor::ComputeForward(const Action& action) {
  const int m = action.microbatch;
  Stage& stage = *lane_->stage;
  Batch inputs = stage.first() ? run_->inputs[m] : std::exchange(received_[m], {});
  const bool graph = !run_->inference && !run_->checkpointed[m];
  Pass& pass = run_->passes[stage.index()][m];
  stage.Forward(std::move(inputs), ContextOf(m, graph, false), LossOf(m), pass);
  const bool last = stage.index() + 1 == run_->schedule->stages;
  if (last && pass.loss.defined()) run_->loss_values[m] = pass.loss.item().toDouble();
  const auto detached = [](const at::Tensor& tensor) { return tensor.detach(); };
  if (!last) outgoing_[m] = pass.outputs.MapTensors(detached);
  if (last && run_->keep_outputs) {
    run_->outputs[m] = pass.outputs.MapTensors([](const at::Tensor& tensor) { return ToHost(tensor.detach()); });
  }
  outgoing_skips_[m].clear();
  for (const Batch& skips : pass.skip_outputs) outgoing_skips_[m].push_back(skips.MapTensors(detached));
  if (run_->inference) {
    pass = Pass();
  } else {
    ++inflight_;
    lane_->metrics->inflight_microbatches.Add(1);
    if (!graph) pass.DropGraph();
  }
}

void StageExecutor::ComputeRecompute(const Action& action) {
  Pass& pass = run_->passes[lane_->stage->index()][action.microbatch];
  lane_->stage->Recompute(ContextOf(action.microbatch, true, true), LossOf(action.microbatch), pass);
  lane_->metrics->recomputed_bytes.Add(ByteSize(pass.outputs));
}

void StageExecutor::ComputeBackward(const Action& action) {
  const int m = action.microbatch;
  Stage& stage = *lane_->stage;
  stage.BeginContribution(run_->accumulating);
  const bool last = stage.index() + 1 == run_->schedule->stages;
  Batch gradients;
  if (!last) {
    gradients = std::exchange(received_[m], {});
  } else if (run_->losses.empty()) {
    gradients = run_->output_gradients[m];
  }
  InputGradients back = stage.Backward(run_->passes[stage.index()][m], gradients, run_->retain_graph);
  outgoing_skips_[m] = std::move(back.skips);
  if (!stage.first()) {
    outgoing_[m] = std::move(back.inputs);
  } else if (run_->input_gradients) {
    run_->input_gradient_values[m] = back.inputs.MapTensors(ToHost);
  }
  if (inflight_ > 0) {  // 0: the forward was another run's
    --inflight_;
    lane_->metrics->inflight_microbatches.Add(-1);
  }
}

bool StageExecutor::Granted() const { return run_->decision->granted.load(std::memory_order_acquire); }

bool StageExecutor::StepMayGoOn() const {
  if (step_ == Step::kNorms) return run_->decision->ties_missing.load(std::memory_order_acquire) == 0;
  return step_ == Step::kShareTies || Granted();
}

void StageExecutor::ComputeStep() {
  StepDecision& decision = *run_->decision;
  Stage& stage = *lane_->stage;
  switch (step_) {
    case Step::kShareTies:
      return stage.ShareTiedGradients(decision.tied);
    case Step::kNorms:
      for (const at::Tensor& norm : stage.SumTiedGradients(decision.tied)) {
        decision.norms[stage.index()].push_back(ToHost(norm));
      }
      return;
    case Step::kApply:
      if (decision.applied) stage.Step(decision.learning_rate, decision.scale);
      stage.EndStatistics(decision.applied);
      stage.ClearGradients();
  }
}

void StageExecutor::EndStepPart() {
  if (step_ == Step::kShareTies) {
    step_ = Step::kNorms;
    if (run_->decision->ties_missing.fetch_sub(1, std::memory_order_acq_rel) == 1) run_->wake();
  } else {
    step_ = Step::kApply;
    if (run_->decision->missing.fetch_sub(1, std::memory_order_acq_rel) == 1) run_->decide();
  }
}

void StageExecutor::Send(const Action& action) {
  const int m = action.microbatch;
  Batch message;
  if (action.peer < 0) {
    message = std::exchange(outgoing_[m], {});
  } else {
    const bool forward = action.kind == ActionKind::kSendForward;
    message = outgoing_skips_[m].at(PortOf(forward ? lane_->stage->outgoing() : lane_->stage->incoming(), action.peer));
  }
  absl::Status status = lane_->transport->Send(KeyOf(action), std::move(message));
  if (!status.ok()) Fail(std::move(status), action);
}

void StageExecutor::Fail(absl::Status status, const Action& action) {
  const std::string place =
      absl::StrCat("stage ", action.stage, ", micro-batch ", action.microbatch, ", action ", ToString(action), ": ");
  status = WithValue(WithPrefix(status, place), "stage", absl::StrCat(action.stage));
  status = WithValue(std::move(status), "micro_batch", absl::StrCat(action.microbatch));
  status = WithValue(std::move(status), "action", ToString(action));
  run_->error.Record(std::move(status));
  run_->wake();
  if (step_ == Step::kApply) ++position_;  // its part of the step is over, done or not
}

void StageExecutor::Leave() {
  left_ = true;
  if (Next() != nullptr) run_->cut_short.fetch_add(1, std::memory_order_relaxed);
  if (run_->progress != nullptr) run_->progress->Leave(rank());
  const int stage = lane_->stage->index();
  if (run_->Stopped()) run_->wake();  // whoever waits for this lane waits for nothing now
  if (run_->inference) {
    lane_->state.CloseInference();
  } else {
    lane_->state.WaitInStep(StageState::kDrain);
    if (!run_->keep_graph) {
      for (Pass& pass : run_->passes[stage]) pass = Pass();
    }
    lane_->metrics->inflight_microbatches.Add(-inflight_);
  }
  // Nothing of the run outlives its end, though this object may do so by a moment.
  received_.clear();
  outgoing_.clear();
  outgoing_skips_.clear();
  if (lane_->stage->first()) run_->inputs.clear();
  if (run_->open_lanes.fetch_sub(1, std::memory_order_acq_rel) == 1) run_->done();
}

PassContext StageExecutor::ContextOf(int microbatch, bool graph, bool recomputing) const {
  return {.training = run_->training,
          .graph = graph,
          .recomputing = recomputing,
          .input_gradients = run_->input_gradients,
          .seed = run_->seed,
          .step = run_->step,
          .microbatch = MicrobatchIndex(run_->microbatch_base + microbatch)};
}

LossContext StageExecutor::LossOf(int microbatch) const {
  return run_->losses.empty() ? LossContext() : run_->losses[microbatch];
}

MessageKey StageExecutor::KeyOf(const Action& action) const {
  const bool gradient = action.kind == ActionKind::kSendBackward || action.kind == ActionKind::kReceiveBackward;
  MessageKey key{.run = run_->id, .gradient = gradient, .stage = action.stage, .microbatch = action.microbatch};
  if (action.peer >= 0) {
    key.stage = IsSend(action.kind) ? action.peer : action.stage;
    key.peer = IsSend(action.kind) ? action.stage : action.peer;
  } else if (IsSend(action.kind)) {
    key.stage += gradient ? -1 : 1;
  }
  return key;
}

}  // namespace penstock
