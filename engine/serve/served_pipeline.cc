#include "engine/serve/served_pipeline.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/freed_memory.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/observe/metrics.h"
#include "engine/serve/call_replay.h"

namespace penstock {
namespace {

// What calls `gone`, if there is one, as the last owner lets go.
std::shared_ptr<const void> AtTheEnd(std::function<void()> gone) {
  if (gone == nullptr) return nullptr;
  return {nullptr, [gone = std::move(gone)](const void*) { gone(); }};
}

std::string TokenPrefix(const HandleStore& handles) {
  return absl::StrFormat("%08x%016x", handles.epoch().value(), RandomHandleId(handles.epoch()).low);
}

MemoryHolder AnswersOf(const std::string& pipeline) { return {.kind = MemoryClass::kAnswers, .pipeline = pipeline}; }

// With a journal, a token tells the same before and after a restart.
TrainingQueue::Origin OriginOf(const ServedPipeline::Options& options, const ServedPipeline::Durable& durable,
                               const Pipeline& pipeline) {
  if (durable.journal == nullptr) return {.token_prefix = TokenPrefix(*options.handles), .step = pipeline.step()};
  const OpenTraining training = durable.training.value_or(OpenTraining());
  return {.token_prefix = options.origin.life,
          .step = pipeline.step(),
          .sequence = durable.from.sequence,
          .version = durable.from.version,
          .state = TrainingState::Load(training.state, options.clock->NowNanos()),
          .at_boundary = training.accumulation.none()};
}

}  // namespace

std::shared_ptr<ServedPipeline> ServedPipeline::Start(std::unique_ptr<Pipeline> pipeline,
                                                      std::shared_ptr<CheckpointFolder> checkpoints, Options options) {
  return *Start(std::move(pipeline), std::move(checkpoints), std::move(options), Durable());
}

absl::StatusOr<std::shared_ptr<ServedPipeline>> ServedPipeline::Start(std::unique_ptr<Pipeline> pipeline,
                                                                      std::shared_ptr<CheckpointFolder> checkpoints,
                                                                      Options options, Durable durable) {
  const int64_t from = durable.from.sequence;
  std::function<bool()> wanted = std::move(durable.wanted);
  // They go with the engine, which an update replaces.
  std::shared_ptr<const void> held = std::exchange(options.held, nullptr);
  std::shared_ptr<PipelineMetrics> metrics = std::exchange(options.metrics, nullptr);
  std::shared_ptr<ServedPipeline> served(new ServedPipeline(std::move(pipeline), std::move(checkpoints),
                                                            std::move(options), std::move(durable), std::move(held),
                                                            std::move(metrics)));
  served->calls_.owner = served;
  served->calls_.on_lost = served->options_.on_lost;
  if (Publication published = served->options_.published; published.version != kLiveVersion) {
    CheckpointPins::Hold pin;
    if (published.any()) {  // before calls are made again
      PENSTOCK_ASSIGN_OR_RETURN(pin, served->PinCheckpoint(published.checkpoint));
      published.error = Error(absl::StatusCode::kUnavailable, "STARTING", "the published weights are not loaded yet");
    }
    served->Publish(PublishedWeights::Prepare(std::move(published), {}, std::move(pin)));
  }
  if (served->journal_ != nullptr) PENSTOCK_RETURN_IF_ERROR(served->Replay(from, std::move(wanted)));
  served->training_.Start();
  served->inference_.Start();
  return served;
}

absl::Status ServedPipeline::Replay(int64_t from, std::function<bool()> wanted) {
  CallReplay replay({.pipeline = options_.name,
                     .handles = options_.handles,
                     .preparation = &preparation_,
                     .calls = &calls_,
                     .settlement = &settlement_,
                     .training = &training_,
                     .journal = journal_.get(),
                     .kept_forwards = static_cast<size_t>(options_.open_graphs),
                     .wanted = std::move(wanted)});
  PENSTOCK_ASSIGN_OR_RETURN(const ReplayReport report, replay.Run(from));
  // Who asks for a Forward again must do so within its lease, which begins anew.
  for (auto [sequence, lease] : journal_->KeptLeases()) {
    if (lease == absl::ZeroDuration()) lease = options_.handles->options().default_lease;
    options_.timers->Add(options_.clock->NowNanos() + absl::ToInt64Nanoseconds(lease),
                         calls_.WhileItLives([this, sequence = sequence] { journal_->TakeKept(sequence); }));
  }
  if (const auto metrics = calls_.metrics(); metrics != nullptr) {
    metrics->step_number.Set(static_cast<double>(pipeline_->step()));
  }
  if (report.repeated == 0 && report.finished == 0) return absl::OkStatus();
  LogInfo("calls of the journal made again", {{"pipeline", options_.name},
                                              {"repeated", std::to_string(report.repeated)},
                                              {"finished", std::to_string(report.finished)},
                                              {"differing", std::to_string(report.differing)},
                                              {"step", std::to_string(pipeline_->step())}});
  return absl::OkStatus();
}

void ServedPipeline::OnRefused(const CallPointer& call, const absl::Status& error) {
  Guarded("the end of a call", [&] { settlement_.Fail(call, error); }).IgnoreError();
}

ServedPipeline::ServedPipeline(std::unique_ptr<Pipeline> pipeline, std::shared_ptr<CheckpointFolder> checkpoints,
                               Options options, Durable durable, std::shared_ptr<const void> held,
                               std::shared_ptr<PipelineMetrics> metrics)
    : gone_(AtTheEnd(std::exchange(options.on_gone, nullptr))),
      options_(std::move(options)),
      pipeline_(std::make_unique<CurrentPipeline>(std::move(pipeline))),
      checkpoints_(std::move(checkpoints)),
      published_(options_.on_unused_weights),
      calls_(RequestLog<RecordedAnswer>({.entries = options_.request_log_entries,
                                         .kept_nanos = absl::ToInt64Nanoseconds(options_.request_log_time)},
                                        TakeMemoryAnyway(options_.memory, AnswersOf(options_.name), 0)),
             TrainingQueue({options_.train_queue_calls, options_.train_queue_bytes},
                           OriginOf(options_, durable, *pipeline_)),
             InferenceQueue({options_.infer_queue_calls, options_.infer_queue_bytes}, options_.infer_in_flight,
                            BatchLimitsOf(options_.batching, pipeline_->plan())),
             metrics),
      runner_(options_.name, options_.origin, pipeline_.get(), checkpoints_.get(), &pins_, options_.memory),
      settlement_(options_.name, &calls_, options_.handles, checkpoints_.get(), options_.timers, options_.clock),
      journal_(durable.journal == nullptr
                   ? nullptr
                   : std::make_unique<CallJournal>(
                         std::move(durable.journal), durable.records, &calls_, options_.clock,
                         TakeMemoryAnyway(options_.memory, AnswersOf(options_.name), 0),
                         [this](const CallPointer& call, const absl::Status& error) { OnRefused(call, error); })),
      automatic_(journal_ == nullptr ? nullptr
                                     : std::make_unique<AutomaticCheckpoints>(
                                           options_.name, options_.origin.life, options_.journal_limits, journal_.get(),
                                           &runner_, checkpoints_.get(), &calls_, options_.clock)),
      watch_(options_.timers, options_.clock, [this] { acceptor_.AcceptExpiry(); }),
      cancellation_(&calls_, &settlement_, &watch_, journal_.get()),
      preparation_(options_.name, options_.handles, pipeline_.get(), &runner_),
      acceptor_({.name = options_.name,
                 .handles = options_.handles,
                 .timers = options_.timers,
                 .clock = options_.clock,
                 .open_graphs = options_.open_graphs,
                 .infer_timeout = options_.infer_timeout,
                 .forward_timeout = options_.forward_timeout},
                &calls_, &preparation_, &settlement_, &cancellation_, journal_.get()),
      inference_(&calls_, &runner_, &settlement_, options_.timers, options_.clock,
                 MicroBatchRowsOf(options_.batching, pipeline_->plan())),
      update_(&calls_, &runner_, pipeline_.get(), automatic_.get(), &inference_, std::move(held)),
      training_(&calls_, &runner_, pipeline_.get(), &settlement_, &watch_, journal_.get(), automatic_.get(), &update_,
                options_.timers, options_.clock) {
  if (metrics != nullptr) BeginCounts(*metrics, *pipeline_);
}

void ServedPipeline::BeginCounts(PipelineMetrics& metrics, const Pipeline& pipeline) const {
  const double micro_batches = std::max(1, pipeline.plan().schedule.micro_batches);
  auto& queues = metrics.queues;
  queues[WorkQueue::kTrain].capacity.Set(static_cast<double>(options_.train_queue_calls) * micro_batches);
  queues[WorkQueue::kInfer].capacity.Set(static_cast<double>(options_.infer_queue_calls) * micro_batches);
  metrics.step_number.Set(static_cast<double>(pipeline.step()));
}

ServedPipeline::~ServedPipeline() {
  Stop();
  published_.Close();  // waits for callbacks to return: they still use the parts
  pipeline_.reset();   // the same
  ReturnFreedMemory();
}

ServedPipeline::Statistics ServedPipeline::statistics() const {
  PipelineJournal::ReplaySize replay;
  absl::Status health;
  if (journal_ != nullptr) {
    replay = journal_->journal().replay_size();
    health = journal_->health();
  }
  absl::MutexLock lock(&calls_.mu);
  const ServedCalls::Totals& totals = calls_.totals;
  const TrainingQueue& training = calls_.training;
  return {.state = calls_.state,
          .step = training.step(),
          .state_token = training.token(),
          .accumulating = training.state().accumulating(),
          .open_graphs = options_.handles->CountsOf(options_.name).open_graphs,
          .snapshot_bytes = runner_.snapshot_bytes(),
          .train_queue_calls = static_cast<int64_t>(training.waiting().size()),
          .infer_queue_calls = static_cast<int64_t>(calls_.inference.waiting().size()),
          .running = calls_.inference.running() + (training.running() ? 1 : 0) + (calls_.writing ? 1 : 0),
          .paused = calls_.inference.paused(),
          .samples_trained = totals.samples_trained,
          .last_loss = totals.last_loss,
          .last_measured_bubble = totals.last_measured_bubble,
          .durable = journal_ != nullptr,
          .journal_health = std::move(health),
          .journal_calls = replay.rows,
          .journal_bytes = replay.bytes,
          .journal_seconds = static_cast<double>(replay.run_nanos) * 1e-9};
}

absl::StatusOr<Accepted> ServedPipeline::Infer(CallContext context, InferCall call) {
  absl::StatusOr<WeightsPointer> weights = published_.Select(call.version);
  if (!weights.ok()) return WithValue(weights.status(), "pipeline", options_.name);
  const int64_t version = *weights == nullptr ? kLiveVersion : (*weights)->version;
  context.weights = *std::move(weights);
  PENSTOCK_ASSIGN_OR_RETURN(Accepted accepted, acceptor_.Accept(std::move(context), std::move(call)));
  accepted.version = version;
  return accepted;
}

void ServedPipeline::Publish(PublishedWeights::Prepared next) {
  published_.Publish(std::move(next));
  published_.DestroyUnused();
}

void ServedPipeline::Update(CallContext context, UpdateCall update, StateCallback done) {
  if (const auto& metrics = update.engine->metrics; metrics != nullptr) {
    BeginCounts(*metrics, *update.engine->pipeline);
  }
  acceptor_.AcceptState(std::move(context), std::move(update), std::move(done));
}

void ServedPipeline::CompactJournal(CallContext context, StateCallback done) {
  if (journal_ == nullptr) return done(JournalOff());
  acceptor_.AcceptState(std::move(context), CompactCall(), std::move(done));
}

void ServedPipeline::HoldJournal() const {
  if (automatic_ != nullptr) automatic_->Hold();
}

void ServedPipeline::ReleaseJournal() const {
  if (automatic_ != nullptr) automatic_->Release();
}

// --- The end.

void ServedPipeline::StopAccepting() {
  absl::MutexLock lock(&calls_.mu);
  if (calls_.state == State::kReady) calls_.state = State::kDraining;
  calls_.inference.SetHurry(true);
}

void ServedPipeline::Drain(bool force, std::function<void()> done) {
  DrainAs(State::kDraining, force, std::move(done));
}

void ServedPipeline::DrainToDelete(bool force, std::function<void()> done) {
  DrainAs(State::kDeleting, force, std::move(done));
}

void ServedPipeline::DrainAs(State state, bool force, std::function<void()> done) {
  std::vector<CallPointer> cancelled;
  {
    absl::MutexLock lock(&calls_.mu);
    if (force) cancelled = calls_.Waiting();    // what may fail comes first
    calls_.drained.push_back(std::move(done));  // the same
    // A drain may be given up, and must not take this end with it.
    const bool overtaken = calls_.state == State::kDraining && state == State::kUnloading;
    if (calls_.state == State::kReady || overtaken) calls_.state = state;
    calls_.inference.SetHurry(true);
    cancellation_.RemoveQueued(calls_, cancelled);
  }
  cancellation_.SettleCancelled(cancelled, /*for_good=*/state == State::kDeleting);
  calls_.NotifyIfDrained();
}

void ServedPipeline::ResumeFrom(State state) {
  absl::MutexLock lock(&calls_.mu);
  if (calls_.state != state) return;
  calls_.state = State::kReady;
  calls_.inference.SetHurry(false);
  watch_.Watch(calls_);  // a lease that was over meanwhile
}

void ServedPipeline::SaveLast(LastSave save, std::shared_ptr<CancelToken> cancel, LastSaveCallback done) {
  Drain(save.force, [this, save, cancel = std::move(cancel), done = std::move(done)] {
    const absl::StatusOr<bool> enqueued = Guarded("a last save", [&] { return EnqueueLastSave(save, cancel, done); });
    if (!enqueued.ok()) return done(enqueued.status());
    if (!*enqueued) done(std::nullopt);
  });
}

void ServedPipeline::SaveToUnload(std::function<void(const absl::Status&)> done) {
  DrainAs(State::kUnloading, /*force=*/false, [this, done = std::move(done)] {
    const LastSave save{.force = false, .empty_journal = true, .first = true};
    const absl::StatusOr<bool> enqueued = Guarded("a last save", [&] {
      return EnqueueLastSave(save, std::make_shared<CancelToken>(),
                             [done](const auto& saved) { done(saved.status()); });
    });
    if (!enqueued.ok()) done(enqueued.status());
  });
}

void ServedPipeline::StopUnloaded() {
  Stop();
  StaleGraphs(
      Error(absl::StatusCode::kFailedPrecondition, "GRAPH_STALE", "the pipeline was unloaded, and this graph with it")
          .With("pipeline", options_.name));
}

absl::StatusOr<bool> ServedPipeline::EnqueueLastSave(const LastSave& save, const std::shared_ptr<CancelToken>& cancel,
                                                     const LastSaveCallback& done) {
  const bool empties = save.empty_journal && journal_ != nullptr;
  if (journal_ == nullptr && statistics().accumulating) {
    LogWarning("accumulated gradients are lost: they are in no checkpoint", {{"pipeline", options_.name}});
  }
  absl::MutexLock lock(&calls_.mu);
  if (calls_.stopping) return CancelledCall();
  if (!empties && calls_.training.saved()) return false;
  const auto call = empties ? std::make_shared<Call>(CallContext(), CompactCall{.first = save.first})
                            : std::make_shared<Call>(CallContext(), SaveCall{.last = true});
  call->cancel = cancel;
  call->join = std::make_shared<StateJoin>();
  call->join->callbacks.push_back([done, empties, name = options_.name](const absl::StatusOr<StateAnswer>& answer) {
    if (!answer.ok()) return done(answer.status());
    if (empties) {
      Guarded("the log of a last save", [&] {
        LogInfo("the journal is empty: the next start makes no call again",
                {{"pipeline", name}, {"calls", std::to_string(answer->compacted.calls)}});
      }).IgnoreError();
    }
    done(answer->checkpoint.id.empty() ? std::nullopt : std::make_optional(answer->checkpoint));
  });
  calls_.Of(call).inputs_ready = true;
  acceptor_.Enqueue(calls_, call);
  return true;
}

void ServedPipeline::StopLost(const absl::Status& why) {
  const absl::Status lost = calls_.Lose(why);
  std::vector<CallPointer> left;
  {
    absl::MutexLock lock(&calls_.mu);
    left = calls_.Waiting();
    cancellation_.RemoveQueued(calls_, left);
  }
  cancellation_.SettleLost(left, lost);
  Stop();
  StaleGraphs(
      Error(absl::StatusCode::kFailedPrecondition, "GRAPH_STALE",
            "the pipeline has lost a rank, and this graph with it: ask for the Forward again, by its request_id")
          .With("pipeline", options_.name));
}

void ServedPipeline::StaleGraphs(const absl::Status& why) {
  std::vector<HandleId> graphs;
  {
    absl::MutexLock lock(&calls_.mu);
    graphs = calls_.training.TakeGraphs();
  }
  for (const HandleId& id : graphs) options_.handles->Invalidate(id, why);
}

std::string ServedPipeline::last_checkpoint() const {
  absl::MutexLock lock(&calls_.mu);
  return calls_.training.last_checkpoint();
}

void ServedPipeline::Stop() {
  absl::MutexLock stop_lock(&stop_mu_);
  if (std::exchange(stopped_, true)) return;
  const auto drained = std::make_shared<absl::Notification>();
  Drain(/*force=*/true, [drained] { drained->Notify(); });
  drained->WaitForNotification();
  std::vector<CallPointer> late;  // a last save that came in between
  {
    absl::MutexLock lock(&calls_.mu);
    const bool says_why = calls_.state == State::kDeleting || calls_.state == State::kUnloading;
    if (!says_why) calls_.state = State::kStopped;
    calls_.stopping = true;
    late = calls_.Waiting();
    cancellation_.RemoveQueued(calls_, late);
  }
  cancellation_.SettleCancelled(late, /*for_good=*/false);
  training_.Join();
  inference_.Join();
  if (journal_ != nullptr) journal_->Close();
}

}  // namespace penstock
