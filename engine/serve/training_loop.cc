#include "engine/serve/training_loop.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log_scope.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/serve/engine_update.h"
#include "engine/serve/pipeline_errors.h"

namespace penstock {
namespace {

bool LooksAtCheckpoints(const Call& call) {
  return call.As<SaveCall>() != nullptr || call.As<CopyCall>() != nullptr || call.As<RestoreCall>() != nullptr ||
         call.As<DeleteCall>() != nullptr || call.As<CompactCall>() != nullptr || call.As<UpdateCall>() != nullptr;
}

bool MayDeleteCheckpoints(const Call& call) {
  const auto* save = call.As<SaveCall>();
  return call.As<DeleteCall>() != nullptr || (save != nullptr && (save->replace || save->keep > 0));
}

absl::Status PassedDeadline() {
  return Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE", "the call's time passed while it ran");
}

}  // namespace

void TrainingLoop::Start() {
  writer_ = std::make_unique<JobThread>("ps-save");
  {
    absl::MutexLock lock(&calls_->mu);
    watch_->Watch(*calls_);  // what was made again, or comes from a checkpoint, may have a lease
  }
  thread_ = std::make_unique<Thread>("ps-train", [this] { Loop(); });
}

void TrainingLoop::Loop() {
  const auto something = [this] {
    calls_->mu.AssertReaderHeld();
    return calls_->stopping || calls_->training.runnable() || idle_reason_stale_;
  };
  while (true) {
    CallPointer call;
    {
      absl::MutexLock lock(&calls_->mu);
      calls_->mu.Await(absl::Condition(&something));
      if (calls_->stopping) return;  // nothing waits any more
      if (calls_->training.runnable()) call = calls_->training.Start();
      calls_->UpdateQueueMetrics();
    }
    if (call != nullptr) {
      const absl::Status ran = Guarded("a training call", [&] { Run(call); });
      if (!ran.ok()) Guarded("a training call", [&] { FailRun(call, ran); }).IgnoreError();
      if (automatic_ != nullptr) Guarded("an automatic checkpoint", [&] { SaveAfter(*call); }).IgnoreError();
    }
    Guarded("the idle reason", [this] { UpdateIdleReason(); }).IgnoreError();
    {
      absl::MutexLock lock(&calls_->mu);
      calls_->training.EndRun();
    }
    call.reset();
    Guarded("the end of a drain", [this] { calls_->NotifyIfDrained(); }).IgnoreError();
  }
}

void TrainingLoop::Run(const CallPointer& call) {
  call->started_nanos = clock_->NowNanos();
  // Trace records belong to the step that they will end. Saves and the like have none.
  const bool traced = call->mode.has_value() || call->training == TrainingCall::kApply;
  const int64_t step = traced ? pipeline_->step() + 1 : 0;
  const LogScope scope(settlement_->LogFieldsOf(*call, step));
  settlement_->CountStart(*call);
  // Whatever throws before it is noted what the run has done, the run has an end, and the state is the engine's.
  absl::Cleanup broken_off = [&] {
    Guarded("the end of a training call", [&] {
      absl::MutexLock lock(&calls_->mu);
      calls_->training.Reconcile(*call, pipeline_->accumulating(), clock_->NowNanos());
      watch_->Look(*calls_, *call);
    }).IgnoreError();
    settlement_->RecordEnd(*call, step, absl::Status(absl::StatusCode::kInternal, ""), nullptr);
  };
  absl::StatusOr<Executed> executed = LookForLoss(Guarded("a training call", [&] { return Execute(*call); }));
  const bool writes = executed.ok() && executed->write != nullptr;

  std::vector<HandleId> stale_graphs;
  std::string token;
  {
    absl::MutexLock lock(&calls_->mu);
    Call::Guarded& guarded = calls_->Of(call);
    if (!writes) guarded.Enter(Call::Phase::kDone);
    const int64_t now = clock_->NowNanos();
    if (executed.ok()) {
      stale_graphs = calls_->training.Note(*call, *executed, now);
      if (call->mode == BatchMode::kTrain) {
        calls_->totals.samples_trained += executed->run.rows;
        if (executed->run.loss.has_value()) calls_->totals.last_loss = executed->run.loss;
        calls_->totals.last_measured_bubble = executed->run.measured_bubble;
      }
    } else if (guarded.deadline_passed && !IsRankLost(executed.status())) {
      executed = PassedDeadline();
    }
    calls_->training.Reconcile(*call, pipeline_->accumulating(), now);
    watch_->Look(*calls_, *call);
    token = calls_->training.token();
    if (writes) calls_->writing = true;
  }
  std::move(broken_off).Cancel();
  if (writes) return WriteBeside(call, std::move(executed), token);
  settlement_->RecordEnd(*call, step, executed.status(), executed.ok() ? &*executed : nullptr);
  if (executed.ok()) settlement_->Invalidate(*call, stale_graphs);
  if (journal_ != nullptr && !stale_graphs.empty()) journal_->ForgetKept();
  Settle(call, std::move(executed), token);
}

void TrainingLoop::WriteBeside(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token) {
  const absl::Status posted = Guarded("a save", [&] {
    const auto copied = std::make_shared<Executed>(*std::move(executed));
    writer_->Post([this, call, copied, token] { Write(call, std::move(*copied), token); });
  });
  if (!posted.ok()) Write(call, posted, token);
}

void TrainingLoop::Write(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token) {
  const absl::Status ended = Guarded("a save", [&] {
    const LogScope scope(settlement_->LogFieldsOf(*call, /*step=*/0));
    executed = Guarded("a save", [&] { return Finish(std::move(executed)); });
    {
      absl::MutexLock lock(&calls_->mu);
      Call::Guarded& guarded = calls_->Of(call);
      guarded.Enter(Call::Phase::kDone);
      if (executed.ok()) {
        calls_->training.NoteSaved(call->read_version, executed->checkpoint->id);
      } else if (guarded.deadline_passed) {
        executed = PassedDeadline();
      }
    }
    settlement_->RecordEnd(*call, /*step=*/0, executed.status(), executed.ok() ? &*executed : nullptr);
    Settle(call, std::move(executed), token);
  });
  if (!ended.ok()) Guarded("a save", [&] { FailRun(call, ended); }).IgnoreError();
  EndWriting();
}

void TrainingLoop::SaveAfter(const Call& call) {
  {
    absl::MutexLock lock(&calls_->mu);
    if (!calls_->lost.ok()) return;
  }
  AutomaticCheckpoints::Write write = automatic_->After(call);
  if (write == nullptr) return;
  JobThread::Prepared job = JobThread::Prepare([this, write = std::move(write)]() mutable {
    Guarded("an automatic checkpoint", write).IgnoreError();
    write = nullptr;  // the copy goes before a drain ends
    EndWriting();
  });
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->writing = true;
  }
  writer_->Post(std::move(job));
}

void TrainingLoop::EndWriting() {
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->writing = false;
  }
  Guarded("the end of a drain", [this] { calls_->NotifyIfDrained(); }).IgnoreError();
}

absl::StatusOr<Executed> TrainingLoop::Finish(absl::StatusOr<Executed> executed) {
  if (!executed.ok() || executed->write == nullptr) return executed;
  const auto write = std::exchange(executed->write, nullptr);  // goes here, and the copy with it
  PENSTOCK_ASSIGN_OR_RETURN(executed->checkpoint, write());
  return executed;
}

void TrainingLoop::AwaitWritten() const {
  const auto written = [this] {
    calls_->mu.AssertReaderHeld();
    return !calls_->writing;
  };
  absl::MutexLock lock(&calls_->mu);
  calls_->mu.Await(absl::Condition(&written));
}

void TrainingLoop::FailRun(const CallPointer& call, const absl::Status& error) {
  {
    absl::MutexLock lock(&calls_->mu);
    calls_->Of(call).Finish();
  }
  Settle(call, error, "");
}

void TrainingLoop::Settle(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token) {
  // One that a lost rank has ended stays open in the journal: the pipeline that is made again makes it.
  const bool left = !executed.ok() && IsRankLost(executed.status());
  if (left || journal_ == nullptr || !CallJournal::Keeps(*call)) return SettleNow(call, std::move(executed), token);
  CallAnswer answer =
      executed.ok() ? settlement_->AnswerOf(*call, *executed, token) : settlement_->AnswerOf(*call, executed.status());
  const auto result = std::make_shared<absl::StatusOr<Executed>>(std::move(executed));
  journal_->RecordEnd(call, answer, [this, call, result, token](const absl::Status& recorded) {
    if (!recorded.ok()) *result = recorded;
    SettleNow(call, std::move(*result), token);
  });
}

void TrainingLoop::SettleNow(const CallPointer& call, absl::StatusOr<Executed> executed, const std::string& token) {
  if (executed.ok()) {
    settlement_->Fulfil(*call, *std::move(executed), token);
  } else {
    settlement_->Fail(call, executed.status());
  }
  settlement_->ReleaseInputs(*call);
}

absl::StatusOr<Executed> TrainingLoop::Repeat(const CallPointer& call) {
  call->started_nanos = clock_->NowNanos();
  absl::StatusOr<Executed> executed = LookForLoss(Guarded("a repeated call", [&] { return Finish(Execute(*call)); }));
  std::vector<HandleId> stale_graphs;
  {
    absl::MutexLock lock(&calls_->mu);
    const int64_t now = clock_->NowNanos();
    if (executed.ok()) stale_graphs = calls_->training.Note(*call, *executed, now);
    if (executed.ok() && call->As<SaveCall>() != nullptr) {
      calls_->training.NoteSaved(call->read_version, executed->checkpoint->id);
    }
    calls_->training.Reconcile(*call, pipeline_->accumulating(), now);
  }
  if (executed.ok() && call->As<RestoreCall>() != nullptr) automatic_->NoteRestored();
  if (executed.ok()) settlement_->Invalidate(*call, stale_graphs);
  if (!stale_graphs.empty()) journal_->ForgetKept();
  return executed;
}

absl::Status TrainingLoop::PrepareJournal(const Call& call) {
  if (journal_ == nullptr) return absl::OkStatus();
  // A checkpoint that has a call's effect must not come before that call's outcome.
  if (call.As<SaveCall>() != nullptr) journal_->AwaitSettled();
  if (automatic_ == nullptr) return absl::OkStatus();
  if (MayDeleteCheckpoints(call)) PENSTOCK_RETURN_IF_ERROR(automatic_->BeforeDeletion(call));
  return CallJournal::Keeps(call) ? automatic_->BeforeFirst(call) : absl::OkStatus();
}

absl::StatusOr<Executed> TrainingLoop::LookForLoss(absl::StatusOr<Executed> executed) const {
  if (executed.ok()) return executed;
  absl::Status lost = pipeline_->health();
  if (!IsRankLost(lost)) lost = executed.status();
  if (!IsRankLost(lost)) return executed;
  return calls_->Lose(lost);
}

absl::StatusOr<Executed> TrainingLoop::Execute(Call& call) {
  {
    absl::MutexLock lock(&calls_->mu);
    PENSTOCK_RETURN_IF_ERROR(calls_->lost);
  }
  if (LooksAtCheckpoints(call)) AwaitWritten();
  PENSTOCK_RETURN_IF_ERROR(PrepareJournal(call));
  // A replay makes a call without an outcome: no checkpoint that has its effect may be one to go on from.
  const bool outcomes_known = journal_ == nullptr || journal_->health().ok();
  {
    absl::MutexLock lock(&calls_->mu);
    PENSTOCK_RETURN_IF_ERROR(calls_->training.CheckTurn(call, clock_->NowNanos()));
    call.read_version =
        call.training == TrainingCall::kReadGradients ? calls_->training.version() : calls_->training.weights_version();
    call.state_version = calls_->training.version();
    call.ended_before = calls_->training.ended_sequence();
    call.at_boundary = calls_->training.at_boundary() && outcomes_known;
  }
  pipeline_->SetNextState(call.accepted.sequence);
  const auto* update = call.As<UpdateCall>();
  if (update != nullptr && graphs_alive_->load() > 0) return GraphOpen();  // they are of the engine that stands
  PENSTOCK_ASSIGN_OR_RETURN(Executed executed, update != nullptr ? update_->Run(*update, call) : runner_->Run(call));
  if (const auto* compact = call.As<CompactCall>(); compact != nullptr && automatic_ != nullptr) {
    if (compact->first) PENSTOCK_RETURN_IF_ERROR(automatic_->SaveIfFirst(call.cancel.get()));
    PENSTOCK_ASSIGN_OR_RETURN(AutomaticCheckpoints::Compacted compacted, automatic_->Compact(call.cancel.get()));
    executed.compacted = compacted.gone;
    executed.checkpoint = std::move(compacted.checkpoint);
  }
  if (executed.graph != nullptr) executed.graph = Watched(std::move(executed.graph));
  return executed;
}

std::shared_ptr<Graph> TrainingLoop::Watched(std::shared_ptr<Graph> graph) {
  graphs_alive_->fetch_add(1);
  Graph* const pointer = graph.get();
  auto look = calls_->WhileItLives([this] {
    absl::MutexLock lock(&calls_->mu);
    idle_reason_stale_ = true;
  });
  return std::shared_ptr<Graph>(pointer, [graph = std::move(graph), alive = graphs_alive_, timers = timers_,
                                          clock = clock_, look = std::move(look)](Graph*) mutable {
    graph.reset();
    if (alive->fetch_sub(1) != 1) return;
    // On the timers' thread: the last reference may be dropped under any lock.
    Guarded("a look at the last graph", [&] { timers->Add(clock->NowNanos(), look); }).IgnoreError();
  });
}

void TrainingLoop::UpdateIdleReason() {
  bool waits_for_client = graphs_alive_->load() > 0;
  {
    absl::MutexLock lock(&calls_->mu);
    idle_reason_stale_ = false;
    waits_for_client |= calls_->training.state().accumulating();
  }
  pipeline_->SetIdleReason(waits_for_client ? Pipeline::IdleReason::kWaitClient : Pipeline::IdleReason::kNoWork);
}

}  // namespace penstock
