// Acceptance of calls, and their end: see served_pipeline.h.
//
//   a call ──▶ Recorded? ──▶ Admit ──▶ prepare: pin, check ──▶ reserve handles ──▶ Recorded? Admit ──▶ queue ──▶ answer
//              (a retry)     (bounds,  (no lock held)                              (again: others       │
//                             order)                                                came meanwhile)     ▼
//                          settled by exactly one of: its run, its deadline, a cancel, a forced drain ◀── runs

#include "engine/serve/served_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

RejectReason RejectReasonOf(const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  if (reason == "QUEUE_FULL") return RejectReason::kQueueFull;
  if (reason == "HANDLE_BUDGET") return RejectReason::kMemory;
  if (reason == "GRAPH_LIMIT" || reason == "REQUEST_LOG_FULL" || reason == "CALLER_QUOTA") return RejectReason::kQuota;
  if (reason == "DRAINING") return RejectReason::kDraining;
  return RejectReason::kInvalid;
}

}  // namespace

absl::Status CancelledCall() { return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the call was cancelled"); }

std::vector<HandleName> Accepted::handles() const {
  std::vector<HandleName> names;
  for (const auto* name : {&outcome, &outputs, &graph}) {
    if (name->has_value()) names.push_back(**name);
  }
  return names;
}

std::optional<BatchMode> Work::batch_mode() const {
  switch (method) {
    case WorkMethod::kInfer:
      return BatchMode::kInfer;
    case WorkMethod::kForward:
      return BatchMode::kForward;
    case WorkMethod::kBackward:
      return BatchMode::kBackward;
    case WorkMethod::kForwardBackward:
    case WorkMethod::kTrainStep:
      return BatchMode::kTrain;
    case WorkMethod::kOptimizerStep:
    case WorkMethod::kSaveCheckpoint:
    case WorkMethod::kRestoreCheckpoint:
    case WorkMethod::kWriteParameters:
    case WorkMethod::kDeleteCheckpoint:
      return std::nullopt;
  }
  return std::nullopt;
}

// What the handles of a call know of it.
class ServedPipeline::Producer : public HandleProducer {
 public:
  Producer(std::weak_ptr<ServedPipeline> host, WorkPointer work) : host_(std::move(host)), work_(std::move(work)) {}

  CancelEffect RequestCancel() override {
    const auto host = host_.lock();
    return host == nullptr ? CancelEffect::kNotCancellable : host->CancelWork(work_);
  }
  void Abandon(const HandleId&) override {
    if (const auto host = host_.lock()) host->AbandonWork(work_);
  }

 private:
  const std::weak_ptr<ServedPipeline> host_;
  const WorkPointer work_;
};

std::shared_ptr<HostedPipeline> HostedPipeline::Start(std::unique_ptr<Pipeline> pipeline,
                                                      std::unique_ptr<CheckpointFolder> checkpoints, Options options) {
  auto served = std::make_shared<ServedPipeline>(std::move(pipeline), std::move(checkpoints), std::move(options));
  served->StartThreads();
  return served;
}

ServedPipeline::ServedPipeline(std::unique_ptr<Pipeline> pipeline, std::unique_ptr<CheckpointFolder> checkpoints,
                               Options options)
    : options_(std::move(options)),
      token_prefix_(absl::StrFormat("%08x%016x", options_.handles->epoch().value(),
                                    RandomHandleId(options_.handles->epoch()).low)),
      pipeline_(std::move(pipeline)),
      checkpoints_(std::move(checkpoints)),
      log_(
          {.entries = options_.request_log_entries, .kept_nanos = absl::ToInt64Nanoseconds(options_.request_log_time)}),
      step_(pipeline_->step()),
      train_bounds_("training", {options_.train_queue_calls, options_.train_queue_bytes}),
      infer_bounds_("inference", {options_.infer_queue_calls, options_.infer_queue_bytes}) {
  if (options_.metrics == nullptr) return;
  const double micro_batches = std::max(1, pipeline_->plan().schedule.micro_batches);
  auto& queues = options_.metrics->queues;
  queues[WorkQueue::kTrain].capacity.Set(static_cast<double>(options_.train_queue_calls) * micro_batches);
  queues[WorkQueue::kInfer].capacity.Set(static_cast<double>(options_.infer_queue_calls) * micro_batches);
  options_.metrics->step_number.Set(static_cast<double>(pipeline_->step()));
}

ServedPipeline::~ServedPipeline() {
  Stop();
  pipeline_.reset();  // waits for its callbacks to return: they still use mu_
}

void ServedPipeline::StartThreads() {
  train_thread_ = std::make_unique<Thread>("ps-train", [this] { TrainLoop(); });
  infer_thread_ = std::make_unique<Thread>("ps-infer", [this] { InferLoop(); });
}

// --- Acceptance.

absl::Status ServedPipeline::Refused(absl::Status status) const {
  if (options_.metrics != nullptr) options_.metrics->rejected[RejectReasonOf(status)].Add();
  return WithValue(std::move(status), "pipeline", options_.name);
}

absl::StatusOr<std::optional<RecordedAnswer>> ServedPipeline::Recorded(const Work& work) {
  return log_.Find(work.key(), work.context.payload_digest, options_.clock->NowNanos());
}

bool ServedPipeline::HasAccepted(const std::string& caller, const std::string& request_id) const {
  absl::MutexLock lock(&mu_);
  for (const char* method : kWorkMethodNames) {
    if (log_.Contains({.caller = caller, .method = method, .request_id = request_id})) return true;
  }
  return false;
}

TrainingState ServedPipeline::Foreseen() const {
  TrainingState state = training_;
  const int64_t now = options_.clock->NowNanos();
  const auto apply = [&state, now](const Work& work) {
    if (state.Check(*work.training, work.party(), now).ok()) state.Apply(*work.training, work.party(), now);
  };
  if (train_running_ != nullptr && train_running_->phase == Work::Phase::kRunning) apply(*train_running_);
  for (const WorkPointer& work : train_queue_) apply(*work);
  return state;
}

absl::Status ServedPipeline::Admit(const Work& work, bool handles_reserved) {
  if (state_ != State::kReady) {
    return Error(absl::StatusCode::kUnavailable, "DRAINING", "the pipeline accepts no new work");
  }
  PENSTOCK_RETURN_IF_ERROR(BoundsOf(work).Check(work.context.caller, work.inputs.inline_bytes()));
  if (!work.training.has_value()) return absl::OkStatus();

  PENSTOCK_RETURN_IF_ERROR(Foreseen().Check(*work.training, work.party(), options_.clock->NowNanos()));
  if (!work.context.expected_state.empty() && train_queue_.empty() && train_running_ == nullptr &&
      work.context.expected_state != StateToken()) {
    return Error(absl::StatusCode::kFailedPrecondition, "STATE_MISMATCH",
                 "the training state is not the expected one: another call came first")
        .With("field", "expected_state")
        .With("value", Shortened(work.context.expected_state));
  }
  if (work.method == WorkMethod::kForward) {
    const int64_t others = options_.handles->CountsOf(options_.name).open_graphs - (handles_reserved ? 1 : 0);
    if (others >= options_.open_graphs) {
      return Error(absl::StatusCode::kResourceExhausted, "GRAPH_LIMIT",
                   absl::StrCat("at most ", options_.open_graphs, " graphs may be open; run or release some"))
          .With("limit_value", std::to_string(options_.open_graphs))
          .With("retry_after_ms", "1000");
    }
  }
  return absl::OkStatus();
}

absl::Status ServedPipeline::ReserveHandles(const WorkPointer& work, const Results& results) {
  const auto producer = std::make_shared<Producer>(weak_from_this(), work);
  const auto reserve = [&](HandleKind kind, int64_t bytes, std::optional<HandleName>& name) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(name, options_.handles->Reserve({.owner = work->context.caller,
                                                               .pipeline = options_.name,
                                                               .kind = kind,
                                                               .method = work->method_name(),
                                                               .bytes = bytes,
                                                               .lease = work->context.lease,
                                                               .producer = producer}));
    return absl::OkStatus();
  };
  if (results.outcome) PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kOutcome, 0, work->accepted.outcome));
  if (results.outputs) {
    PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kValue, results.output_bytes, work->accepted.outputs));
  }
  if (results.graph) PENSTOCK_RETURN_IF_ERROR(reserve(HandleKind::kGraph, 0, work->accepted.graph));
  return absl::OkStatus();
}

absl::StatusOr<Accepted> ServedPipeline::Accept(WorkPointer work,
                                                const std::function<absl::StatusOr<Results>(Work&)>& prepare) {
  work->accepted.request_id = work->context.request_id;
  {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<std::optional<RecordedAnswer>> recorded = Recorded(*work);
    if (!recorded.ok()) return Refused(recorded.status());
    if (recorded->has_value()) return std::get<Accepted>(**recorded);
    if (absl::Status admitted = Admit(*work, /*handles_reserved=*/false); !admitted.ok()) return Refused(admitted);
  }
  absl::StatusOr<Results> results = prepare(*work);
  if (!results.ok()) return Refused(results.status());
  absl::Status status = ReserveHandles(work, *results);
  // Weak references: a call that was cancelled must not live until its inputs are there.
  work->inputs.OnReady(options_.handles, [host = weak_from_this(), waiting = std::weak_ptr<Work>(work)] {
    const auto alive = host.lock();
    const auto ready = waiting.lock();
    if (alive != nullptr && ready != nullptr) alive->OnInputsReady(ready);
  });

  std::optional<RecordedAnswer> first;  // of an equal call that was accepted meanwhile
  if (status.ok()) {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<std::optional<RecordedAnswer>> recorded = Recorded(*work);
    status = recorded.status();
    if (status.ok() && recorded->has_value()) {
      first = *std::move(recorded);
    } else if (status.ok()) {
      status = Admit(*work, /*handles_reserved=*/true);
    }
    if (status.ok() && !first.has_value()) {
      Enqueue(work);
      log_.Record(work->key(), work->context.payload_digest, work->accepted, work->accepted_nanos);
      return work->accepted;
    }
  }
  for (const HandleName& name : work->accepted.handles()) options_.handles->Withdraw(name.id);
  if (!status.ok()) return Refused(std::move(status));
  return std::get<Accepted>(*std::move(first));
}

void ServedPipeline::Enqueue(const WorkPointer& work) {
  work->phase = Work::Phase::kQueued;
  work->accepted_nanos = options_.clock->NowNanos();
  work->accepted.step = step_;
  BoundsOf(*work).Add(work->context.caller, work->inputs.inline_bytes());
  absl::Duration timeout = work->context.work_timeout;
  if (work->training.has_value()) {
    work->accepted.sequence = ++sequence_;
    train_queue_.push_back(work);
    if (timeout == absl::ZeroDuration() && work->method == WorkMethod::kForward) timeout = options_.forward_timeout;
  } else {
    infer_queue_.push_back(work);
    if (work->inputs_ready) AddReady(work);
    if (timeout == absl::ZeroDuration()) timeout = options_.infer_timeout;
  }
  if (timeout > absl::ZeroDuration() && timeout < absl::InfiniteDuration()) {
    work->timer = options_.timers->Add(work->accepted_nanos + absl::ToInt64Nanoseconds(timeout),
                                       [host = weak_from_this(), late = std::weak_ptr<Work>(work)] {
                                         const auto alive = host.lock();
                                         const auto running = late.lock();
                                         if (alive != nullptr && running != nullptr) alive->OnWorkDeadline(running);
                                       });
  }
  UpdateQueueMetrics();
}

void ServedPipeline::OnInputsReady(const WorkPointer& work) {
  absl::MutexLock lock(&mu_);
  work->inputs_ready = true;  // training waits for its turn all the same
  if (work->phase == Work::Phase::kQueued && !work->training.has_value()) AddReady(work);
}

void ServedPipeline::AddReady(const WorkPointer& work) {
  const auto later = std::find_if(infer_ready_.begin(), infer_ready_.end(),
                                  [&](const WorkPointer& other) { return other->priority < work->priority; });
  infer_ready_.insert(later, work);
}

// --- The end of a call.

void ServedPipeline::RemoveQueued(const WorkPointer& work) {
  PENSTOCK_CHECK(work->phase == Work::Phase::kQueued);
  work->phase = Work::Phase::kDone;
  BoundsOf(*work).Remove(work->context.caller, work->inputs.inline_bytes());
  if (work->training.has_value()) {
    std::erase(train_queue_, work);
  } else {
    std::erase(infer_queue_, work);
    std::erase(infer_ready_, work);
  }
  UpdateQueueMetrics();
}

std::vector<ServedPipeline::WorkPointer> ServedPipeline::RemoveAllQueued() {
  std::vector<WorkPointer> removed(train_queue_.begin(), train_queue_.end());
  removed.insert(removed.end(), infer_queue_.begin(), infer_queue_.end());
  for (const WorkPointer& work : removed) RemoveQueued(work);
  return removed;
}

void ServedPipeline::OnWorkDeadline(const WorkPointer& work) {
  absl::Status error;
  {
    absl::MutexLock lock(&mu_);
    if (work->phase == Work::Phase::kDone) return;
    work->deadline_passed = true;
    if (work->phase == Work::Phase::kQueued) {
      RemoveQueued(work);
      if (options_.metrics != nullptr) options_.metrics->rejected[RejectReason::kDeadline].Add();
      error = Error(absl::StatusCode::kDeadlineExceeded, "QUEUE_DEADLINE", "the call's time passed before it started");
    } else {
      work->cancel->Cancel();
      // What changes weights tells its outcome when it is known; the rest of the world need not wait for a forward.
      if (!work->stoppable()) return;
      error = Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE", "the call's time passed while it ran");
    }
  }
  SettleFailed(work, error);
  NotifyIfDrained();
}

CancelEffect ServedPipeline::CancelWork(const WorkPointer& work) {
  CancelEffect effect = CancelEffect::kCancelled;
  {
    absl::MutexLock lock(&mu_);
    if (work->phase == Work::Phase::kNew || work->phase == Work::Phase::kDone) return CancelEffect::kNotCancellable;
    if (work->phase == Work::Phase::kRunning) {
      if (!work->stoppable()) return CancelEffect::kNotCancellable;
      work->cancel->Cancel();
      effect = CancelEffect::kCancelling;
    } else {
      RemoveQueued(work);
    }
  }
  SettleFailed(work, CancelledCall());
  NotifyIfDrained();
  return effect;
}

void ServedPipeline::AbandonWork(const WorkPointer& work) {
  {
    absl::MutexLock lock(&mu_);
    ++work->abandoned_handles;
    if (work->phase == Work::Phase::kNew) return;  // its handles are still being named, by Accept()
    if (work->abandoned_handles < work->accepted.handles().size() || !work->stoppable()) return;
  }
  CancelWork(work);
}

void ServedPipeline::EndPlace(Work& work) {
  std::shared_ptr<void> place;
  absl::MutexLock lock(&mu_);
  // A run that was told to stop is still there until it does.
  if (work.phase == Work::Phase::kDone) place.swap(work.context.place);
}

void ServedPipeline::SettleFailed(const WorkPointer& work, const absl::Status& error) {
  EndPlace(*work);
  absl::Status told = WithValue(error, "pipeline", options_.name);
  if (work->context.observer != nullptr) {
    for (const auto& [name, id] : work->context.observer->Ids()) told = WithValue(std::move(told), name, id);
  }
  if (work->join != nullptr) AnswerState(work, told);
  for (const HandleName& name : work->accepted.handles()) {
    if (ReasonOf(told) == "WORK_CANCELLED") {
      options_.handles->Cancel(name.id);
    } else {
      options_.handles->Fail(name.id, told);
    }
  }
  // A run that goes on still reads its inputs.
  bool done = false;
  {
    absl::MutexLock lock(&mu_);
    done = work->phase == Work::Phase::kDone;
  }
  if (!done || work->started_nanos != 0) return;  // of one that ran, who ran it tells and lets go
  TellEnded(*work, 0, error);
  LetGo(*work);
}

void ServedPipeline::FailRun(const WorkPointer& work, const absl::Status& error) {
  {
    absl::MutexLock lock(&mu_);
    work->phase = Work::Phase::kDone;
  }
  SettleFailed(work, error);
  LetGo(*work);
}

void ServedPipeline::TellEnded(const Work& work, int64_t step, const absl::Status& status) {
  CallSpan span{.method = work.method_name(),
                .request_id = work.context.request_id,
                .accepted_nanos = work.accepted_nanos,
                .started_nanos = work.started_nanos,
                .ended_nanos = options_.clock->NowNanos(),
                .step = step,
                .failed = !status.ok()};
  const int64_t ended_nanos = span.ended_nanos;
  if (work.context.observer != nullptr) {
    for (const auto& [name, id] : work.context.observer->Ids()) {
      if (name == "trace_id") span.trace_id = id;
    }
  }
  {
    absl::MutexLock lock(&mu_);
    if (ended_.size() == kEndedCalls) ended_.pop_front();
    ended_.push_back(std::move(span));
  }
  if (work.context.observer == nullptr) return;
  const std::optional<BatchMode> mode = work.batch_mode();
  work.context.observer->OnEnded(
      {.pipeline = options_.name,
       .method = work.method_name(),
       .mode = mode.has_value() ? kBatchModeNames[static_cast<size_t>(*mode)] : std::string_view(),
       .accepted_nanos = work.accepted_nanos,
       .started_nanos = work.started_nanos,
       .ended_nanos = ended_nanos,
       .step = step,
       .status = status});
}

std::vector<CallSpan> ServedPipeline::EndedCalls() const {
  absl::MutexLock lock(&mu_);
  return {ended_.begin(), ended_.end()};
}

std::vector<std::pair<std::string, std::string>> ServedPipeline::LogFieldsOf(const Work& work, int64_t step) const {
  std::vector<std::pair<std::string, std::string>> fields = {{"pipeline", options_.name}};
  if (step > 0) fields.emplace_back("step", std::to_string(step));
  if (!work.context.request_id.empty()) fields.emplace_back("request_id", work.context.request_id);
  if (work.context.observer == nullptr) return fields;
  for (auto& id : work.context.observer->Ids()) fields.push_back(std::move(id));
  return fields;
}

void ServedPipeline::LetGo(Work& work) {
  options_.timers->Remove(work.timer);
  work.inputs = CallInputs();
}

bool ServedPipeline::Idle() const {
  return train_queue_.empty() && train_running_ == nullptr && infer_queue_.empty() && infer_running_.empty() &&
         snapshots_.empty() && snapshots_running_ == 0;
}

void ServedPipeline::NotifyIfDrained() {
  std::vector<std::function<void()>> callbacks;
  {
    absl::MutexLock lock(&mu_);
    if (state_ == State::kReady || !Idle()) return;
    callbacks.swap(drained_);
  }
  for (const auto& callback : callbacks) callback();
}

void ServedPipeline::UpdateQueueMetrics() {
  if (options_.metrics == nullptr) return;
  const auto update = [](QueueMetrics& metrics, const std::deque<WorkPointer>& queue) {
    int64_t depth = 0;
    for (const WorkPointer& work : queue) depth += work->queue_weight;
    metrics.depth.Set(static_cast<double>(depth));
    metrics.oldest_nanos = queue.empty() ? QueueMetrics::kEmpty : queue.front()->accepted_nanos;
  };
  update(options_.metrics->queues[WorkQueue::kTrain], train_queue_);
  update(options_.metrics->queues[WorkQueue::kInfer], infer_queue_);
}

std::string ServedPipeline::StateToken() const { return absl::StrCat(token_prefix_, "-", version_); }

HostedPipeline::Statistics ServedPipeline::statistics() const {
  absl::MutexLock lock(&mu_);
  Statistics now = statistics_;
  now.state = state_;
  now.step = step_;
  now.state_token = StateToken();
  now.accumulating = training_.accumulating();
  now.snapshot_bytes = snapshots_made_.bytes();
  now.open_graphs = options_.handles->CountsOf(options_.name).open_graphs;
  now.train_queue_calls = static_cast<int64_t>(train_queue_.size());
  now.infer_queue_calls = static_cast<int64_t>(infer_queue_.size());
  now.running = static_cast<int64_t>(infer_running_.size()) + (train_running_ != nullptr ? 1 : 0);
  return now;
}

absl::Status ServedPipeline::PurgeCheckpoints() { return checkpoints_->Purge(); }

std::vector<CheckpointInfo> ServedPipeline::ListCheckpoints() const { return checkpoints_->List(); }

}  // namespace penstock
