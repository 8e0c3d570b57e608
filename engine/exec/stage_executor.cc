#include "engine/exec/stage_executor.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/optim/gradient_norm.h"

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

}  // namespace

StageExecutor::StageExecutor(std::shared_ptr<Run> run, Lane* lane)
    : run_(std::move(run)),
      lane_(lane),
      actions_(run_->schedule->ranks.at(lane->stage->index())),
      received_(run_->schedule->microbatches),
      outgoing_(run_->schedule->microbatches) {
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
    } else if (action->kind == ActionKind::kOptimizer && norms_done_ &&
               !run_->decision->granted.load(std::memory_order_acquire)) {
      Wait(StageState::kSync);
      return Readiness::kWaiting;
    } else {
      return Readiness::kReady;
    }
  }
  // A granted step changes weights on every stage or on none: an error elsewhere doesn't stop it here.
  if (norms_done_ && Next() != nullptr && run_->decision->granted.load(std::memory_order_acquire)) {
    return Readiness::kReady;
  }
  Leave();
  return Readiness::kDone;
}

bool StageExecutor::Receive(const Action& action) {
  const MessageKey key = KeyOf(action);
  std::optional<Tensors> message = lane_->transport->TryReceive(key);
  if (!message.has_value()) {
    const bool gradient = action.kind == ActionKind::kReceiveBackward;
    Wait(gradient ? StageState::kWaitGradient : started_ ? StageState::kWaitActivation : StageState::kFill, key);
    // It may have come between the look and the note: the sender told nobody then.
    message = lane_->transport->TryReceive(key);
    if (!message.has_value()) return false;
  }
  received_[action.microbatch] = *std::move(message);
  waiting_.reset();
  return true;
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
  absl::Status status = Compute(action);
  const int64_t end = lane_->state.EndAction();
  started_ = true;
  lane_->metrics->ObservePhase(PhaseOf(*run_, action.kind), end - begin);
  if (!status.ok()) {
    Fail(std::move(status), action);
    return;
  }
  if (action.kind == ActionKind::kOptimizer && !norms_done_) {
    norms_done_ = true;
    if (run_->decision->missing.fetch_sub(1, std::memory_order_acq_rel) == 1) run_->decide();
    return;
  }
  ++position_;
  while (Next() != nullptr && IsSend(Next()->kind)) Send(actions_[position_++]);
}

absl::Status StageExecutor::Compute(const Action& action) {
  return RunTorch([&] {
    if (run_->before_action) run_->before_action(action);
    switch (action.kind) {
      case ActionKind::kForward:
        return ComputeForward(action);
      case ActionKind::kRecompute:
        return ComputeRecompute(action);
      case ActionKind::kBackward:
        return ComputeBackward(action);
      case ActionKind::kOptimizer:
        return norms_done_ ? ComputeStep() : ComputeNorms();
      default:
        PENSTOCK_CHECK(false);  // the verifier lets nothing else through
    }
  });
}

void StageExecutor::ComputeForward(const Action& action) {
  const int m = action.microbatch;
  Stage& stage = *lane_->stage;
  Tensors inputs = stage.first() ? run_->inputs[m] : std::exchange(received_[m], {});
  const bool graph = !run_->inference && !run_->checkpointed[m];
  Pass& pass = run_->passes[stage.index()][m];
  stage.Forward(std::move(inputs), ContextOf(m, graph, false), LossOf(m), pass);
  const bool last = stage.index() + 1 == run_->schedule->stages;
  if (last && pass.loss.defined()) run_->loss_values[m] = pass.loss.item().toDouble();
  Tensors values;
  if (!last || run_->keep_outputs) {
    for (const at::Tensor& output : pass.outputs) values.push_back(output.detach());
  }
  (last ? run_->outputs[m] : outgoing_[m]) = std::move(values);
  if (run_->inference) {
    pass = Pass();
  } else {
    ++inflight_;
    lane_->metrics->inflight_microbatches.Add(1);
    if (!graph) {  // keep the stash only
      pass.outputs.clear();
      pass.loss.reset();
    }
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
  Tensors gradients;
  if (!last) {
    gradients = std::exchange(received_[m], {});
  } else if (run_->losses.empty()) {
    gradients = run_->output_gradients[m];
  }
  outgoing_[m] = stage.Backward(run_->passes[stage.index()][m], gradients, run_->retain_graph);
  if (inflight_ > 0) {  // 0: the forward was another run's
    --inflight_;
    lane_->metrics->inflight_microbatches.Add(-1);
  }
}

void StageExecutor::ComputeNorms() {
  run_->decision->norms[lane_->stage->index()] = GradientNorms(lane_->stage->parameters());
}

void StageExecutor::ComputeStep() {
  if (run_->decision->applied) {
    lane_->stage->optimizer().Step(run_->decision->learning_rate, run_->decision->scale);
  }
  lane_->stage->ClearGradients();
}

void StageExecutor::Send(const Action& action) {
  MessageKey key = KeyOf(action);
  absl::Status status = lane_->transport->Send(key, std::exchange(outgoing_[action.microbatch], {}));
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
  if (norms_done_) ++position_;  // its half of the step is over, done or not
}

void StageExecutor::Leave() {
  left_ = true;
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
  if (run_->open_lanes.fetch_sub(1, std::memory_order_acq_rel) == 1) run_->done();
}

PassContext StageExecutor::ContextOf(int microbatch, bool graph, bool recomputing) const {
  return {.training = run_->training,
          .graph = graph,
          .recomputing = recomputing,
          .seed = run_->seed,
          .step = run_->step,
          .microbatch = MicrobatchIndex(run_->microbatch_base + microbatch)};
}

LossContext StageExecutor::LossOf(int microbatch) const {
  return run_->losses.empty() ? LossContext() : run_->losses[microbatch];
}

MessageKey StageExecutor::KeyOf(const Action& action) const {
  const bool gradient = action.kind == ActionKind::kSendBackward || action.kind == ActionKind::kReceiveBackward;
  const int receiver = action.stage + (action.kind == ActionKind::kSendForward    ? 1
                                       : action.kind == ActionKind::kSendBackward ? -1
                                                                                  : 0);
  return {.run = run_->id, .gradient = gradient, .stage = receiver, .microbatch = action.microbatch};
}

}  // namespace penstock
