#include "engine/exec/stage_executor.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_time.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/torch_status.h"
#include "engine/exec/action_labels.h"
#include "engine/exec/trace_hooks.h"

namespace penstock {
namespace {

// The values, when they are there: at once but between accelerators.
absl::StatusOr<Batch> Await(ValuesInFlight message, DeviceStreams& streams) {
  if (message.ready != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(AwaitTensors({message.values.AllTensors(), std::move(message.ready)}, streams).status());
  }
  return std::move(message.values);
}

// Whether values have left the sender's device. Where asking fails, waiting for them tells why.
bool Arrived(const ValuesInFlight& message) {
  if (message.ready == nullptr) return true;
  bool ready = true;
  (void)RunTorch([&] { ready = message.ready->Ready(); });
  return ready;
}

// As torchgpipe's descendants call the work of a micro-batch on a stage.
std::string ProfilerLabel(const Action& action) {
  return absl::StrCat("chunk", action.micro_batch, "-part", action.stage);
}

}  // namespace

StageExecutor::StageExecutor(std::shared_ptr<Run> run, Lane* lane)
    : run_(std::move(run)),
      lane_(lane),
      actions_(run_->lists.schedule->lanes.at(lane->index)),
      step_(run_.get()),
      accounts_(run_.get(), lane),
      begin_nanos_(lane->clock->NowNanos()) {
  for (Stage* stage : lane_->stages) {
    stages_.emplace_back(run_.get(), stage, lane_->metrics);
    if (run_->watch_passes) {
      for (const Pass& pass : run_->passes[stage->index()]) Watch(PassEvent::When::kLeftOver, {}, pass);
    }
  }
  const auto is_step = [](const Action& action) { return action.kind == ActionKind::kOptimizer; };
  const auto first_step = std::find_if(actions_.begin(), actions_.end(), is_step);
  PENSTOCK_CHECK(std::all_of(first_step, actions_.end(), is_step));
  optimizer_position_ = first_step - actions_.begin();
  run_->spec.inference ? lane_->state.OpenInference() : lane_->state.OpenStep();
}

StageRun* StageExecutor::Find(int stage) {
  for (StageRun& one : stages_) {
    if (one.stage().index() == stage) return &one;
  }
  return nullptr;
}

StageRun& StageExecutor::StageOf(const Action& action) {
  StageRun* stage = Find(action.stage);
  PENSTOCK_CHECK(stage != nullptr);  // the lists place stages as the plan does
  return *stage;
}

StageExecutor::Readiness StageExecutor::Poll() {
  const absl::StatusOr<Readiness> readiness = Guarded("a lane", [this] { return absl::StatusOr<Readiness>(Look()); });
  if (readiness.ok()) return *readiness;
  run_->coordinator->Fail(readiness.status());
  Leave();
  return Readiness::kDone;
}

StageExecutor::Readiness StageExecutor::Look() {
  if (left_) return Readiness::kDone;
  if (absl::Status read = lane_->timeline.Read(); !read.ok() && untold_ > 0) FailLate(std::move(read));
  if (step_.awaits_norms() && !run_->coordinator->Stopped()) {
    if (absl::Status taken = RunTorch([this] { step_.TakeNorms(); }); !taken.ok()) FailLate(std::move(taken));
  }
  while (!run_->coordinator->Stopped()) {
    const Action* action = Next();
    if (action == nullptr) break;
    if (IsReceive(action->kind)) {
      if (!Receive(*action)) return Readiness::kWaiting;
      ++position_;
    } else if (action->kind == ActionKind::kOptimizer && !step_.MayGoOn()) {
      Wait(StageState::kSync);
      return Readiness::kWaiting;
    } else if (!run_->led_here && !TakeFromLeader(*action)) {
      return Readiness::kWaiting;
    } else {
      return Readiness::kReady;
    }
  }
  if (untold_ > 0 && !device_failed_) {  // the device still works
    Wait(StageState::kDrain);
    return Readiness::kWaiting;
  }
  Leave();
  return Readiness::kDone;
}

bool StageExecutor::Receive(const Action& action) {
  const MessageKey key = KeyOf(action);
  std::optional<ValuesInFlight> message = lane_->transport->TryReceive(key);
  const bool gradient = action.kind == ActionKind::kReceiveBackward;
  const StageState reason = gradient   ? StageState::kWaitGradient
                            : started_ ? StageState::kWaitActivation
                                       : StageState::kFill;
  if (!message.has_value()) {
    Wait(reason, key);
    // It may have come between the look and the note, when its arrival woke no one.
    message = lane_->transport->TryReceive(key);
    if (!message.has_value()) return false;
  }
  if (!run_->spec.inference && !Arrived(*message))
    lane_->state.WaitInStep(reason);  // the device waits, though the host goes on
  const int64_t begin = lane_->clock->NowNanos();
  absl::StatusOr<Batch> values = Await(*std::move(message), *lane_->streams);
  if (values.ok()) {
    StageOf(action).Keep(gradient, action.peer, action.micro_batch, *std::move(values));
  } else {
    Fail(values.status(), action);
  }
  TraceMessage(*lane_->metrics, *run_, action, key, begin, lane_->clock->NowNanos());
  waiting_.reset();
  return true;
}

void StageExecutor::Wait(StageState reason, std::optional<MessageKey> awaited) {
  if (run_->spec.inference || waiting_ == reason) return;
  waiting_ = reason;
  lane_->state.WaitInStep(reason, awaited);
}

void StageExecutor::Execute() {
  const Action action = *Next();
  if (absl::Status failed = Guarded("an action", [&] { RunAction(action); }); !failed.ok()) Fail(failed, action);
}

void StageExecutor::RunAction(const Action& action) {
  waiting_.reset();
  const bool last_part = action.kind != ActionKind::kOptimizer || step_.part() == LaneStep::Part::kApply;
  const Launched launched{action, position_, step_.part(), run_->progress != nullptr && last_part};
  const StageState work = run_->spec.inference ? StageState::kInfer : LabelsOf(action.kind).state;
  absl::Status status = lane_->timeline.Begin(this, work, [this, launched](int64_t at) { Begun(launched, at); });
  if (!status.ok()) {
    Fail(std::move(status), action);
    return;
  }
  ++untold_;  // behind the call, which may have told it and may throw
  status = Compute(action);
  status.Update(lane_->timeline.End(this, [this, launched](int64_t at) { Ended(launched, at); }));
  ++untold_;
  started_ = true;
  if (!status.ok()) {
    Fail(std::move(status), action);
    return;
  }
  if (!last_part) {
    EndStepPart();
    return;
  }
  if (action.kind != ActionKind::kOptimizer) {
    Pass& pass = StageOf(action).pass(action.micro_batch);
    Watch(PassEvent::When::kEnded, action, pass);
    if (!run_->spec.inference) accounts_.Count(action, pass);
    HandOver(action);
    if (!run_->led_here) SendToLeader(action);
  }
  ++position_;
  while (Next() != nullptr && IsSend(Next()->kind)) Send(actions_[position_++]);
}

void StageExecutor::Begun(const Launched& launched, int64_t at) {
  --untold_;
  begun_ = launched;
  action_begin_ = at;
  if (launched.followed) run_->progress->Begin(lane_index(), launched.position, at);
}

void StageExecutor::Ended(const Launched& launched, int64_t at) {
  --untold_;
  const Action& action = launched.action;
  const int64_t took = at - action_begin_;
  if (launched.followed) run_->progress->End(lane_index(), at);
  if (run_->spec.inference)
    run_->filling->inference_costs().Observe(StageIndex(action.stage), run_->spec.rows[action.micro_batch], took);
  lane_->metrics->ObservePhase(run_->spec.inference ? Phase::kInfer : LabelsOf(action.kind).phase, took);
  TraceAction(*lane_->metrics, *run_, action, static_cast<int>(launched.part), action_begin_, at);
}

absl::Status StageExecutor::Compute(const Action& action) {
  const int64_t had = ThreadTimeNanos();
  step_.Enter(action.kind);
  absl::Status status = RunTorch([&] {
    if (run_->before_action) run_->before_action(action);
    at::RecordFunction label(at::RecordScope::USER_SCOPE);  // for LibTorch's profilers; nothing where none listens
    if (label.isActive() && action.kind != ActionKind::kOptimizer) label.before(ProfilerLabel(action));
    lane_->streams->RunOn(StreamKind::kCompute, [&] { Perform(action); });
  });
  lane_->metrics->compute_nanos.Add(ThreadTimeNanos() - had);
  return status;
}

void StageExecutor::Perform(const Action& action) {
  StageRun& stage = StageOf(action);
  const int m = action.micro_batch;
  if (action.kind == ActionKind::kOptimizer) return step_.Compute(stage.stage());
  Watch(PassEvent::When::kBegins, action, stage.pass(m));
  switch (action.kind) {
    case ActionKind::kForward:
      return stage.Forward(m);
    case ActionKind::kRecompute:
      return stage.Recompute(m);
    case ActionKind::kBackward:
      return stage.Backward(m);
    case ActionKind::kInputGradient:
      return stage.InputGradient(m);
    case ActionKind::kWeightGradient:
      return stage.WeightGradient(m);
    default:
      PENSTOCK_CHECK(false);  // the verifier lets nothing else through
  }
}

void StageExecutor::Watch(PassEvent::When when, const Action& action, const Pass& pass) const {
  if (run_->watch_passes) run_->watch_passes({when, lane_->index, action, pass});
}

// Between stages of one lane nothing is sent: what one has made is there for the other.
void StageExecutor::HandOver(const Action& action) {
  const bool gradient = ConsumesGradient(action.kind);
  if (stages_.size() == 1 || (!gradient && action.kind != ActionKind::kForward)) return;
  const int m = action.micro_batch;
  StageRun& from = StageOf(action);
  StageRun* neighbour = Find(action.stage + (gradient ? -1 : 1));
  if (neighbour != nullptr) neighbour->Keep(gradient, -1, m, from.Take(gradient, -1, m));
  for (const SkipPort& port : gradient ? from.stage().incoming() : from.stage().outgoing()) {
    StageRun* to = Find(port.peer);
    if (to != nullptr) to->Keep(gradient, action.stage, m, from.Take(gradient, port.peer, m));
  }
}

namespace {

// What the leader sends for an action of a run, in the order of MessageKind.
std::vector<MessageKind> FromLeader(const Run& run, const Action& action) {
  const bool first = action.stage == 0;
  const bool last = action.stage + 1 == run.lists.schedule->stages;
  if (action.kind == ActionKind::kForward) {
    std::vector<MessageKind> kinds;
    if (first) kinds.push_back(MessageKind::kInput);
    if (last && run.targets) kinds.push_back(MessageKind::kTarget);
    return kinds;
  }
  if (!ConsumesGradient(action.kind) || !last || run.spec.purpose != SchedulePurpose::kBackwardOnly) return {};
  return {MessageKind::kOutputGradient};
}

void Put(Run& run, MessageKind kind, int micro_batch, Batch values) {
  if (kind == MessageKind::kInput) {
    run.inputs.front()[micro_batch] = std::move(values);
  } else if (kind == MessageKind::kTarget) {
    LossContext& loss = run.losses[micro_batch];
    loss.target = values.TensorAt(0);
    if (values.size() > 1) loss.weights = values.TensorAt(1);
  } else {
    run.output_gradients[micro_batch] = std::move(values);
  }
}

}  // namespace

bool StageExecutor::TakeFromLeader(const Action& action) {
  for (const MessageKind kind : FromLeader(*run_, action)) {
    const MessageKey key{.run = run_->spec.id, .kind = kind, .stage = action.stage, .micro_batch = action.micro_batch};
    if (came_.contains(key)) continue;
    std::optional<ValuesInFlight> message = lane_->transport->TryReceive(key);
    if (!message.has_value()) {
      Wait(started_ ? StageState::kWaitActivation : StageState::kFill, key);
      message = lane_->transport->TryReceive(key);  // it may have come before the note
    }
    if (!message.has_value()) return false;
    came_.insert(key);
    Put(*run_, kind, action.micro_batch, std::move(message->values));
    waiting_.reset();
  }
  return true;
}

void StageExecutor::SendToLeader(const Action& action) {
  const auto m = static_cast<size_t>(action.micro_batch);
  const bool output = action.kind == ActionKind::kForward && action.stage + 1 == run_->lists.schedule->stages &&
                      run_->spec.keep_outputs;
  const bool gradient = ConsumesGradient(action.kind) && action.stage == 0 && run_->spec.input_gradients;
  if (!output && !gradient) return;
  Batch values = std::exchange((output ? run_->outputs.back() : run_->input_gradient_values.front())[m], {});
  const MessageKey key{.run = run_->spec.id,
                       .kind = output ? MessageKind::kOutput : MessageKind::kInputGradient,
                       .stage = action.stage,
                       .micro_batch = action.micro_batch};
  if (absl::Status sent = lane_->transport->Send(key, std::move(values)); !sent.ok()) Fail(std::move(sent), action);
}

// One stage has done a part of the step; the lane's next one does the same part, and after the last one comes the next
// part.
void StageExecutor::EndStepPart() {
  const bool last = ++position_ == actions_.size();
  if (last) position_ = optimizer_position_;
  step_.EndPart(last);
}

void StageExecutor::Send(const Action& action) {
  const bool gradient = action.kind == ActionKind::kSendBackward;
  Batch message = StageOf(action).Take(gradient, action.peer, action.micro_batch);
  const MessageKey key = KeyOf(action);
  const int64_t bytes = ByteSize(message);
  const int64_t begin = lane_->clock->NowNanos();
  absl::Status status = lane_->transport->Send(key, std::move(message));
  const int64_t end = lane_->clock->NowNanos();
  TraceMessage(*lane_->metrics, *run_, action, key, begin, end);
  LinkMetrics* link = lane_->metrics->LinkTo(
      {.to = lane_->lane_of[key.stage], .kind = gradient ? LinkKind::kGradient : LinkKind::kActivation});
  if (link != nullptr) {
    link->bytes.Add(bytes);
    link->nanos.Add(end - begin);
  }
  if (!status.ok()) Fail(std::move(status), action);
}

bool StageExecutor::AwaitDevice() {
  absl::StatusOr<bool> waited = lane_->timeline.Await();
  if (waited.ok() && !*waited && step_.awaits_norms()) {
    const absl::Status came = RunTorch([this] { step_.AwaitNorms(); });
    waited = came.ok() ? absl::StatusOr<bool>(true) : came;
  }
  if (waited.ok()) return *waited;
  if (untold_ == 0 && !step_.awaits_norms()) return false;
  FailLate(waited.status());
  return true;
}

// The host has launched more since, also of the step.
void StageExecutor::FailLate(absl::Status status) {
  if (std::exchange(device_failed_, true)) return;
  const Action& action = begun_.has_value() ? begun_->action : actions_.front();
  std::optional<FaultPoint> at;
  if (action.kind == ActionKind::kOptimizer)
    at = begun_.has_value() ? LaneStep::FirstPointOf(begun_->part) : step_.at();
  Fail(std::move(status), action, at);
}

// Where there is no memory to say where, it fails all the same: else the action would be tried again.
void StageExecutor::Fail(absl::Status status, const Action& action, std::optional<FaultPoint> at) {
  Guarded("what an action failed with", [&] {
    if (ReasonOf(status) == "DEVICE_MEMORY") lane_->metrics->out_of_memory.Add();
    if (ReasonOf(status) == "LAYER_FAILED") lane_->streams->CheckAlive();
    if (status.code() == absl::StatusCode::kInternal) {  // what another lane's device has sent may fail here
      for (DeviceStreams* device : run_->devices) device->CheckAlive();
    }
    const std::string place =
        absl::StrCat("stage ", action.stage, ", micro-batch ", action.micro_batch, ", action ", ToString(action), ": ");
    absl::Status placed = WithValue(WithPrefix(status, place), "stage", absl::StrCat(action.stage));
    placed = WithValue(std::move(placed), "micro_batch", absl::StrCat(action.micro_batch));
    placed = WithValue(std::move(placed), "action", ToString(action));
    if (at.has_value()) placed = WithValue(std::move(placed), kStepPart, ToString(*at));
    status = std::move(placed);
  }).IgnoreError();
  run_->coordinator->Fail(std::move(status));
}

void StageExecutor::Leave() {
  if (std::exchange(left_, true)) return;
  const auto guarded = [this](const std::function<void()>& part) {
    if (absl::Status done = Guarded("the end of a lane", part); !done.ok()) run_->coordinator->Fail(std::move(done));
  };
  if (untold_ > 0)
    guarded([this] { lane_->timeline.GiveUp(this); });  // only where a look has failed: what is told refers to this
  guarded([this] { CloseLane(); });
  run_->coordinator->Leave(/*before_the_end=*/Next() != nullptr);
}

void StageExecutor::CloseLane() {
  if (run_->progress != nullptr) run_->progress->Leave(lane_index());
  if (run_->spec.inference) {
    lane_->state.CloseInference();
  } else {
    lane_->state.WaitInStep(StageState::kDrain);
    for (const Stage* stage : lane_->stages) {
      if (run_->spec.keep_graph) break;
      for (Pass& pass : run_->passes[stage->index()]) pass = Pass();
    }
    accounts_.Close();
  }
  // Nothing of the run outlives its end, though this object may do so by a moment.
  TraceLaneRun(*lane_->metrics, *run_, begin_nanos_, lane_->clock->NowNanos());
  stages_.clear();
  for (const Stage* stage : lane_->stages) run_->inputs[stage->index()].clear();
}

MessageKey StageExecutor::KeyOf(const Action& action) const {
  const bool gradient = action.kind == ActionKind::kSendBackward || action.kind == ActionKind::kReceiveBackward;
  MessageKey key{.run = run_->spec.id,
                 .kind = gradient ? MessageKind::kGradient : MessageKind::kActivation,
                 .stage = action.stage,
                 .micro_batch = action.micro_batch};
  if (action.peer >= 0) {
    key.stage = IsSend(action.kind) ? action.peer : action.stage;
    key.peer = IsSend(action.kind) ? action.stage : action.peer;
  } else if (IsSend(action.kind)) {
    key.stage += gradient ? -1 : 1;
  }
  return key;
}

}  // namespace penstock
