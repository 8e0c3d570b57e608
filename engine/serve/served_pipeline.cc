// How the calls of a ServedPipeline run and end: see served_pipeline.h.
//
//   queue ──▶ runs ──▶ done ──▶ settled, by exactly one of: its run, its deadline, a cancel, a forced drain

#include "engine/serve/served_pipeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/freed_memory.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/log_scope.h"
#include "engine/base/status_macros.h"
#include "engine/observe/metrics.h"

namespace penstock {
namespace {

std::string TokenPrefix(const HandleStore& handles) {
  return absl::StrFormat("%08x%016x", handles.epoch().value(), RandomHandleId(handles.epoch()).low);
}

}  // namespace

std::shared_ptr<ServedPipeline> ServedPipeline::Start(std::unique_ptr<Pipeline> pipeline,
                                                      std::shared_ptr<CheckpointFolder> checkpoints, Options options) {
  std::shared_ptr<ServedPipeline> served(
      new ServedPipeline(std::move(pipeline), std::move(checkpoints), std::move(options)));
  ServedPipeline* const self = served.get();
  served->train_thread_ = std::make_unique<Thread>("ps-train", [self] { self->TrainLoop(); });
  served->infer_thread_ = std::make_unique<Thread>("ps-infer", [self] { self->InferLoop(); });
  return served;
}

ServedPipeline::ServedPipeline(std::unique_ptr<Pipeline> pipeline, std::shared_ptr<CheckpointFolder> checkpoints,
                               Options options)
    : options_(std::move(options)),
      pipeline_(std::move(pipeline)),
      checkpoints_(std::move(checkpoints)),
      runner_(options_.name, options_.origin, pipeline_.get(), checkpoints_.get()),
      reader_(options_.name, pipeline_.get(), options_.memory),
      settlement_(options_.name, options_.handles, options_.clock, options_.metrics),
      log_(
          {.entries = options_.request_log_entries, .kept_nanos = absl::ToInt64Nanoseconds(options_.request_log_time)}),
      training_({options_.train_queue_calls, options_.train_queue_bytes}, TokenPrefix(*options_.handles),
                pipeline_->step()),
      inference_({options_.infer_queue_calls, options_.infer_queue_bytes}, options_.infer_in_flight) {
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
  ReturnFreedMemory();
}

// --- Training: one call after another, reads of parameters between them.

void ServedPipeline::TrainLoop() {
  const auto something = [this] {
    mu_.AssertReaderHeld();
    return stopping_ || training_.runnable() || !reads_.empty() || idle_reason_stale_;
  };
  while (true) {
    CallPointer call;
    std::deque<ReadRequest> reads;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&something));
      if (stopping_ && reads_.empty()) return;  // Stop() has emptied the queue
      reads.swap(reads_);
      reads_running_ = static_cast<int64_t>(reads.size());
      if (training_.runnable()) call = training_.Start();
      UpdateQueueMetrics();
    }
    for (const ReadRequest& request : reads) Read(request);
    if (call != nullptr) {
      const absl::Status ran = Guarded("a training call", [&] { RunTraining(call); });
      if (!ran.ok()) Guarded("a training call", [&] { FailRun(call, ran); }).IgnoreError();
    }
    Guarded("the idle reason", [this] { UpdateIdleReason(); }).IgnoreError();
    {
      absl::MutexLock lock(&mu_);
      training_.EndRun();
      reads_running_ = 0;
    }
    call.reset();
    Guarded("the end of a drain", [this] { NotifyIfDrained(); }).IgnoreError();
  }
}

void ServedPipeline::Read(const ReadRequest& request) {
  int64_t version = 0;
  {
    absl::MutexLock lock(&mu_);
    version = training_.weights_version();
  }
  auto snapshot = Guarded("a read of parameters", [&] { return reader_.Take(request, version); });
  if (!snapshot.ok()) snapshot = WithValue(snapshot.status(), "pipeline", options_.name);
  Guarded("a read of parameters", [&] { request.done(std::move(snapshot)); }).IgnoreError();
}

void ServedPipeline::RunTraining(const CallPointer& call) {
  call->started_nanos = options_.clock->NowNanos();
  // Trace records belong to the step that they will end. Saves and the like have none.
  const bool traced = call->mode.has_value() || call->training == TrainingCall::kApply;
  const int64_t step = traced ? pipeline_->step() + 1 : 0;
  const LogScope scope(settlement_.LogFieldsOf(*call, step));
  settlement_.CountStart(*call);
  absl::StatusOr<Executed> executed = Guarded("a training call", [&] { return Execute(*call); });

  std::vector<HandleId> stale_graphs;
  std::string token;
  {
    absl::MutexLock lock(&mu_);
    call->Enter(Call::Phase::kDone);
    const int64_t now = options_.clock->NowNanos();
    if (executed.ok()) {
      stale_graphs = training_.Note(*call, *executed, now);
      if (call->mode == BatchMode::kTrain) {
        statistics_.samples_trained += executed->run.rows;
        if (executed->run.loss.has_value()) statistics_.last_loss = executed->run.loss;
        statistics_.last_measured_bubble = executed->run.measured_bubble;
      }
    } else if (call->deadline_passed) {
      executed = absl::Status(
          Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE", "the call's time passed while it ran"));
    }
    training_.Reconcile(*call, pipeline_->accumulating(), now);
    WatchAccumulation(*call);
    token = training_.token();
  }
  settlement_.CountEnd(*call, executed.status(), executed.ok() ? &*executed : nullptr);
  settlement_.ReportEnd(*call, step, executed.status());
  if (executed.ok()) {
    EndPlace(*call);
    StateAnswer answer{std::move(executed->checkpoint).value_or(CheckpointInfo()), executed->run.step, token,
                       call->accepted.sequence};
    settlement_.Fulfil(*call, *std::move(executed), token, stale_graphs);
    if (call->join != nullptr) AnswerState(*call, std::move(answer));
  } else {
    SettleFailed(call, executed.status());
  }
  ReleaseInputs(*call);
}

absl::StatusOr<Executed> ServedPipeline::Execute(Call& call) {
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_RETURN_IF_ERROR(training_.CheckTurn(call, options_.clock->NowNanos()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(Executed executed, runner_.Run(call));
  if (executed.graph != nullptr) executed.graph = Watched(std::move(executed.graph));
  return executed;
}

// Sees to it that an accumulation with a lease ends, in the order of calls.
void ServedPipeline::WatchAccumulation(const Call& ended) {
  const std::optional<int64_t> expires_at = training_.state().expires_at();
  if (expires_at.has_value()) {
    const bool over = *expires_at <= options_.clock->NowNanos();  // and `ended` was in the way
    if (ended.training != TrainingCall::kContribution && !over) return;
  }
  options_.timers->Remove(std::exchange(accumulation_timer_, TimerQueue::kNoTimer));
  if (!expires_at.has_value()) return;
  accumulation_timer_ = options_.timers->Add(*expires_at, [pipeline = weak_from_this()] {
    if (const auto self = pipeline.lock()) self->ExpireAccumulation();
  });
}

void ServedPipeline::ExpireAccumulation() {
  std::optional<TrainingParty> holder;
  {
    absl::MutexLock lock(&mu_);
    if (state_ != State::kReady) return;
    holder = training_.Expired(options_.clock->NowNanos());
    if (!holder.has_value()) return;
    const auto call =
        std::make_shared<Call>(CallContext{.caller = holder->caller, .session = holder->session}, ExpireCall{});
    call->inputs_ready = true;
    Enqueue(call);
  }
  LogWarning("accumulated gradients are discarded: their lease is over",
             {{"pipeline", options_.name}, {"caller", holder->caller}, {"session", holder->session}});
}

// Lets the stages know when the last graph is gone, by whatever way: consumed, released, expired.
std::shared_ptr<Graph> ServedPipeline::Watched(std::shared_ptr<Graph> graph) {
  graphs_alive_->fetch_add(1);
  Graph* const pointer = graph.get();
  return std::shared_ptr<Graph>(pointer, [graph = std::move(graph), alive = graphs_alive_, pipeline = weak_from_this(),
                                          timers = options_.timers, clock = options_.clock](Graph*) mutable {
    graph.reset();
    if (alive->fetch_sub(1) != 1) return;
    // On the timers' thread: the last reference may be dropped under any lock.
    timers->Add(clock->NowNanos(), [pipeline] {
      if (const auto self = pipeline.lock()) {
        absl::MutexLock lock(&self->mu_);
        self->idle_reason_stale_ = true;
      }
    });
  });
}

void ServedPipeline::UpdateIdleReason() {
  bool waits_for_client = graphs_alive_->load() > 0;
  {
    absl::MutexLock lock(&mu_);
    idle_reason_stale_ = false;
    waits_for_client |= training_.state().accumulating();
  }
  pipeline_->SetIdleReason(waits_for_client ? Pipeline::IdleReason::kWaitClient : Pipeline::IdleReason::kNoWork);
}

// --- Inference: handed to the stages, some at a time, beside training.

void ServedPipeline::InferLoop() {
  const auto can_start = [this] {
    mu_.AssertReaderHeld();
    return stopping_ || inference_.runnable();
  };
  while (true) {
    CallPointer call;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&can_start));
      if (stopping_) return;  // Stop() has emptied the queue
      call = inference_.Start();
      UpdateQueueMetrics();
    }
    if (absl::Status started = Guarded("an inference", [&] { StartInference(call); }); !started.ok()) {
      OnInferred(call, started);
    }
  }
}

void ServedPipeline::StartInference(const CallPointer& call) {
  call->started_nanos = options_.clock->NowNanos();
  settlement_.CountStart(*call);
  absl::StatusOr<ForwardRequest> request = runner_.InferenceRequest(*call);
  if (!request.ok()) return OnInferred(call, request.status());
  // This outlives the run: Stop() waits until nothing is in flight.
  pipeline_->InferAsync(*std::move(request),
                        [this, call](absl::StatusOr<ForwardOutcome> outcome) { OnInferred(call, std::move(outcome)); });
}

void ServedPipeline::OnInferred(const CallPointer& call, absl::StatusOr<ForwardOutcome> outcome) {
  const absl::Status settled = Guarded("an inference", [&] { SettleInferred(call, outcome); });
  if (!settled.ok()) Guarded("an inference", [&] { FailRun(call, settled); }).IgnoreError();
  // Last: from here on, Stop() may return on its thread.
  std::vector<std::function<void()>> callbacks;
  {
    absl::MutexLock lock(&mu_);
    inference_.EndRun(call);
    if (state_ != State::kReady && Idle()) callbacks.swap(drained_);
  }
  for (const auto& callback : callbacks) Guarded("the end of a drain", callback).IgnoreError();
}

void ServedPipeline::SettleInferred(const CallPointer& call, const absl::StatusOr<ForwardOutcome>& outcome) {
  {
    absl::MutexLock lock(&mu_);
    call->Finish();
  }
  Executed executed;
  executed.run.rows = call->rows;
  settlement_.CountEnd(*call, outcome.status(), outcome.ok() ? &executed : nullptr);
  settlement_.ReportEnd(*call, outcome.ok() ? outcome->step : 0, outcome.status());
  if (outcome.ok()) {
    EndPlace(*call);
    settlement_.Fulfil(*call, *outcome);
  } else {
    SettleFailed(call, outcome.status());
  }
  ReleaseInputs(*call);
}

// --- The end of a call.

void ServedPipeline::OnInputsReady(const CallPointer& call) {
  absl::MutexLock lock(&mu_);
  call->inputs_ready = true;  // training waits for its turn all the same
  if (call->phase == Call::Phase::kQueued && !call->training.has_value()) inference_.SetReady(call);
}

void ServedPipeline::RemoveQueued(const CallPointer& call) {
  call->Enter(Call::Phase::kDone);
  if (call->training.has_value()) {
    training_.Remove(call);
    Guarded("the watch over an accumulation", [&] {
      mu_.AssertHeld();
      WatchAccumulation(*call);  // it may have kept one from its end
    }).IgnoreError();
  } else {
    inference_.Remove(call);
  }
  UpdateQueueMetrics();
}

std::vector<CallPointer> ServedPipeline::RemoveAllQueued() {
  std::vector<CallPointer> removed(training_.waiting().begin(), training_.waiting().end());
  removed.insert(removed.end(), inference_.waiting().begin(), inference_.waiting().end());
  for (const CallPointer& call : removed) RemoveQueued(call);
  return removed;
}

void ServedPipeline::OnDeadline(const CallPointer& call) {
  absl::Status error;
  {
    absl::MutexLock lock(&mu_);
    if (call->phase == Call::Phase::kDone) return;
    call->deadline_passed = true;
    if (call->phase == Call::Phase::kQueued) {
      RemoveQueued(call);
      if (options_.metrics != nullptr) options_.metrics->rejected[RejectReason::kDeadline].Add();
      error = Error(absl::StatusCode::kDeadlineExceeded, "QUEUE_DEADLINE", "the call's time passed before it started");
    } else {
      call->cancel->Cancel();
      // What changes weights tells its outcome when it is known; the rest of the world need not wait for a forward.
      if (!call->stoppable()) return;
      error = Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE", "the call's time passed while it ran");
    }
  }
  SettleFailed(call, error);
  NotifyIfDrained();
}

CancelEffect ServedPipeline::Cancel(const CallPointer& call) {
  CancelEffect effect = CancelEffect::kCancelled;
  {
    absl::MutexLock lock(&mu_);
    if (call->phase == Call::Phase::kNew || call->phase == Call::Phase::kDone) return CancelEffect::kNotCancellable;
    if (call->phase == Call::Phase::kRunning) {
      if (!call->stoppable()) return CancelEffect::kNotCancellable;
      call->cancel->Cancel();
      effect = CancelEffect::kCancelling;
    } else {
      RemoveQueued(call);
    }
  }
  SettleFailed(call, CancelledCall());
  NotifyIfDrained();
  return effect;
}

void ServedPipeline::Abandon(const CallPointer& call) {
  {
    absl::MutexLock lock(&mu_);
    ++call->abandoned_handles;
    if (call->phase == Call::Phase::kNew) return;  // its handles are still being named, by Accept()
    if (call->abandoned_handles < call->accepted.handles().size() || !call->stoppable()) return;
  }
  Cancel(call);
}

void ServedPipeline::EndPlace(Call& call) {
  std::shared_ptr<void> place;
  absl::MutexLock lock(&mu_);
  // A run that was told to stop is still there until it does.
  if (call.phase == Call::Phase::kDone) place.swap(call.context.place);
}

void ServedPipeline::SettleFailed(const CallPointer& call, const absl::Status& error) {
  EndPlace(*call);
  const absl::Status told = settlement_.Fail(*call, error);
  if (call->join != nullptr) AnswerState(*call, told);
  // A run that goes on still reads its inputs.
  bool done = false;
  {
    absl::MutexLock lock(&mu_);
    done = call->phase == Call::Phase::kDone;
  }
  if (!done || call->started_nanos != 0) return;  // of one that ran, who ran it tells and lets go
  settlement_.ReportEnd(*call, 0, error);
  ReleaseInputs(*call);
}

void ServedPipeline::FailRun(const CallPointer& call, const absl::Status& error) {
  {
    absl::MutexLock lock(&mu_);
    call->Finish();
  }
  SettleFailed(call, error);
  ReleaseInputs(*call);
}

void ServedPipeline::AnswerState(const Call& call, absl::StatusOr<StateAnswer> answer) {
  const absl::Status error = answer.status();
  std::vector<StateCallback> callbacks;
  {
    absl::MutexLock lock(&mu_);
    callbacks = Settle(log_, call.key(), *call.join, std::move(answer));
  }
  TellAll("the answer of a call", callbacks, [&](bool) -> absl::StatusOr<StateAnswer> {
    if (!error.ok()) return error;
    return *call.join->answer;
  });
}

void ServedPipeline::ReleaseInputs(Call& call) {
  options_.timers->Remove(call.timer);
  call.inputs = CallInputs();
}

// --- What can be seen from outside.

void ServedPipeline::UpdateQueueMetrics() {
  if (options_.metrics == nullptr) return;
  const auto update = [](QueueMetrics& metrics, const std::deque<CallPointer>& waiting) {
    int64_t depth = 0;
    for (const CallPointer& call : waiting) depth += call->queue_weight;
    metrics.depth.Set(static_cast<double>(depth));
    metrics.oldest_nanos = waiting.empty() ? QueueMetrics::kEmpty : waiting.front()->accepted_nanos;
  };
  update(options_.metrics->queues[WorkQueue::kTrain], training_.waiting());
  update(options_.metrics->queues[WorkQueue::kInfer], inference_.waiting());
}

ServedPipeline::Statistics ServedPipeline::statistics() const {
  absl::MutexLock lock(&mu_);
  Statistics now = statistics_;
  now.state = state_;
  now.step = training_.step();
  now.state_token = training_.token();
  now.accumulating = training_.state().accumulating();
  now.snapshot_bytes = reader_.bytes();
  now.open_graphs = options_.handles->CountsOf(options_.name).open_graphs;
  now.train_queue_calls = static_cast<int64_t>(training_.waiting().size());
  now.infer_queue_calls = static_cast<int64_t>(inference_.waiting().size());
  now.running = inference_.running() + (training_.running() ? 1 : 0);
  return now;
}

}  // namespace penstock
