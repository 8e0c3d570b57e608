// Pipelines that stand on disk alone, until they are made again.
//
//   READY ──▶ UNLOADING ──▶ UNLOADED ──▶ CREATING ──▶ READY
//
// A row of the daemon's journal is what decides: while it is there, no start makes the pipeline. It is written when the state
// is on disk and before anything is given back, and removed when all stands again and before any call is accepted.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_errors.h"
#include "engine/serve/pipeline_table.h"

namespace penstock {

struct PipelineTable::UnloadJob {
  std::string name;
  RequestKey key;
  std::string payload_digest;
  JoinPointer join = {};
  std::string life = {};
  std::shared_ptr<ServedPipeline> pipeline = {};
  absl::Status saved = absl::OkStatus();
};

struct PipelineTable::LoadJob {
  std::string name;
  RequestKey key;
  std::string payload_digest;
  JoinPointer join = {};
};

namespace {

absl::Status NeedsJournal(const std::string& name) {
  return PipelineError(
      absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
      absl::StrCat("pipeline ", name, " can't be unloaded: without a journal (--journal=off) nothing keeps its state"),
      name);
}

// What would be lost: graphs are in no checkpoint.
absl::Status CheckKept(const ServedPipeline& pipeline) {
  if (pipeline.statistics().open_graphs > 0) return GraphOpen();
  return pipeline.CheckEmptyJournal();
}

}  // namespace

// --- Unloading.

void PipelineTable::Unload(CallContext context, std::string name, UpdateCallback done) {
  const auto job = std::make_shared<UnloadJob>(UnloadJob{.name = name,
                                                         .key = {context.caller, "UnloadPipeline", context.request_id},
                                                         .payload_digest = context.payload_digest});
  const Start start = [&](std::optional<Standing>* standing)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status { return BeginUnload(*job, standing); };
  const absl::StatusOr<bool> met = MetBefore(job->key, context.payload_digest);
  if (!met.ok()) return done(met.status());
  if (*met) return done(Get(name));
  job->join = Begin(job->key, context, std::move(done), start, name);
  if (job->join == nullptr) return;
  const absl::Status begun = Guarded("an unload", [&] {
    // The pipeline goes on the thread of deletions, never on one of its own.
    const auto end = std::make_shared<JobThread::Prepared>(JobThread::Prepare([this, job] { UnloadNow(*job); }));
    const std::weak_ptr<UnloadJob> told = job;
    job->pipeline->SaveToUnload([this, end, told](const absl::Status& saved) {
      if (const auto unload = told.lock()) unload->saved = saved;
      deletions_.Post(std::move(*end));
    });
  });
  if (!begun.ok()) KeepLoaded(*job, begun);
}

absl::Status PipelineTable::BeginUnload(UnloadJob& job, std::optional<Standing>* standing) {
  const std::string& name = job.name;
  if (draining_) return TableDraining();
  const auto found = entries_.find(name);
  if (found == entries_.end()) return PipelineNotFound(name);
  PipelineEntry& entry = found->second;
  if (entry.state == PipelineEntry::State::kUnloaded || entry.state == PipelineEntry::State::kUnloading) {
    const auto making = creating_.find(name);
    *standing = Standing{making == creating_.end() ? nullptr : making->second, entry, /*remember=*/true};
    return absl::AlreadyExistsError("it is unloaded");
  }
  if (entry.state == PipelineEntry::State::kReady && entry.life.empty()) return NeedsJournal(name);
  PENSTOCK_ASSIGN_OR_RETURN(PipelineEntry now, BeginChange(name));
  makings_[name].updating = false;  // its state keeps others away
  if (const absl::Status kept = CheckKept(*now.pipeline); !kept.ok()) return WithValue(kept, "pipeline", name);
  job.life = now.life;
  job.pipeline = std::move(now.pipeline);
  creating_.emplace(name, nullptr);  // Begin() sets it
  SetState(entry, PipelineEntry::State::kUnloading);
  return absl::OkStatus();
}

void PipelineTable::UnloadNow(UnloadJob& job) {
  const std::string& name = job.name;
  absl::Status status = job.saved;
  if (status.ok()) status = job.pipeline->pipeline().health();  // the last call may have broken it
  OptimizerSpec optimizer;
  PipelineEntry::Rest rest;
  if (status.ok()) {  // all that takes memory comes before the record
    status = Guarded("the record of an unload", [&]() -> absl::Status {
      PENSTOCK_RETURN_IF_ERROR(CheckKept(*job.pipeline));
      optimizer = job.pipeline->pipeline().optimizer();
      ServedPipeline::Statistics last = job.pipeline->statistics();
      rest = {last.step, std::move(last.state_token), job.pipeline->publication()};
      return RecordUnload(job);
    });
  }
  if (!status.ok()) return KeepLoaded(job, status);
  Guarded("the end of an unloaded pipeline", [&] { job.pipeline->StopUnloaded(); }).IgnoreError();
  Guarded("the metrics of an unloaded pipeline", [&] { RemoveMetrics(*job.pipeline); }).IgnoreError();
  // Its memory first: who hears of it finds room.
  std::shared_ptr<ServedPipeline> listed;
  {
    absl::MutexLock lock(&mu_);
    PipelineEntry& entry = entries_.at(name);
    entry.spec.optimizer = std::move(optimizer);
    entry.rest = std::move(rest);
    listed = std::exchange(entry.pipeline, nullptr);
  }
  const int64_t step = listed->pipeline().step();
  listed = nullptr;
  job.pipeline = nullptr;
  absl::StatusOr<PipelineEntry> answer;
  {
    absl::MutexLock lock(&mu_);
    PipelineEntry& entry = entries_.at(name);
    SetState(entry, PipelineEntry::State::kUnloaded);
    creating_.erase(name);
    answer = Guarded("the answer of an unload", [&]() -> absl::StatusOr<PipelineEntry> { return entry; });
  }
  Guarded("the log of an unload", [&] {
    LogInfo("pipeline unloaded", {{"pipeline", name}, {"step", absl::StrCat(step)}});
  }).IgnoreError();
  Answer(job.key, job.join, std::move(answer));
}

absl::Status PipelineTable::RecordUnload(const UnloadJob& job) const {
  DaemonJournal::Change change;
  change.unload = JournalledUnload{
      .pipeline = job.name, .life = job.life, .unix_nanos = absl::ToUnixNanos(builder_.options().clock->WallNow())};
  change.request = RequestOf(job.key, job.name, job.payload_digest);
  return journal_->Write(change);
}

void PipelineTable::KeepLoaded(const UnloadJob& job, const absl::Status& why) {
  job.pipeline->ResumeLoaded();
  {
    absl::MutexLock lock(&mu_);
    SetState(entries_.at(job.name), draining_ ? PipelineEntry::State::kDraining : PipelineEntry::State::kReady);
    if (draining_) job.pipeline->StopAccepting();
    creating_.erase(job.name);
  }
  Guarded("the log of an unload", [&] {
    LogWarning("pipeline not unloaded",
               {{"pipeline", job.name}, {"reason", ReasonOf(why)}, {"error", std::string(why.message())}});
  }).IgnoreError();
  Answer(job.key, job.join, WithValue(why, "pipeline", job.name));
}

// --- Loading.

void PipelineTable::Load(CallContext context, std::string name, UpdateCallback done) {
  const auto job = std::make_shared<LoadJob>(LoadJob{.name = name,
                                                     .key = {context.caller, "LoadPipeline", context.request_id},
                                                     .payload_digest = context.payload_digest});
  const auto planning =
      std::make_shared<Planning>(builder_.options().clock, kAgainSeconds, [this] { return IsDraining(); });
  const Start start = [&](std::optional<Standing>* standing)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return BeginLoad(name, planning, standing); };
  const absl::StatusOr<bool> met = MetBefore(job->key, context.payload_digest);
  if (!met.ok()) return done(met.status());
  if (*met) return done(Get(name));
  job->join = Begin(job->key, context, std::move(done), start, name);
  if (job->join == nullptr) return;
  const absl::Status posted = Guarded("a load", [&] {
    creations_.Post([this, job, planning] {
      creations_.HoldTurn(absl::Seconds(kAgainSeconds));
      LoadNow(*job, planning.get());
    });
  });
  if (posted.ok()) return;
  AnswerLoad(*job, posted, EndBuild(name, posted, {}));
}

absl::Status PipelineTable::BeginLoad(const std::string& name, const std::shared_ptr<Planning>& planning,
                                      std::optional<Standing>* standing) {
  if (draining_) return TableDraining();
  const auto found = entries_.find(name);
  if (found == entries_.end()) return PipelineNotFound(name);
  PipelineEntry& entry = found->second;
  const auto making = creating_.find(name);
  switch (entry.state) {
    case PipelineEntry::State::kUnloaded:
      break;
    case PipelineEntry::State::kReady:
      PENSTOCK_RETURN_IF_ERROR(entry.pipeline->pipeline().health());
      *standing = Standing{nullptr, Present(entry), /*remember=*/true};
      return absl::AlreadyExistsError("it is loaded");
    case PipelineEntry::State::kCreating:
      if (making == creating_.end()) {
        return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                             absl::StrCat("pipeline ", name, " is being made again, after a restart"), name);
      }
      *standing = Standing{making->second, entry, /*remember=*/true};
      return absl::AlreadyExistsError("it is being made");
    case PipelineEntry::State::kUnloading:
      return PipelineUnloading(name);
    case PipelineEntry::State::kReforming:
      return PipelineReforming(name);
    case PipelineEntry::State::kFailed:
      return entry.error;
    case PipelineEntry::State::kDraining:
    case PipelineEntry::State::kDeleting:
      return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                           absl::StrCat("pipeline ", name, " is being deleted"), name);
  }
  creating_.emplace(name, nullptr);  // Begin() sets it
  entry.planning = planning;
  makings_[name].building = true;
  makings_[name].loading = true;
  SetState(entry, PipelineEntry::State::kCreating);
  return absl::OkStatus();
}

void PipelineTable::LoadNow(const LoadJob& job, Planning* planning) {
  PipelineRecipe recipe;
  absl::StatusOr<std::shared_ptr<ServedPipeline>> made =
      Guarded("a load", [&]() -> absl::StatusOr<std::shared_ptr<ServedPipeline>> {
        PENSTOCK_RETURN_IF_ERROR(planning->CheckWanted());
        PENSTOCK_ASSIGN_OR_RETURN(const std::vector<JournalledPipeline> rows, journal_->Pipelines());
        PENSTOCK_ASSIGN_OR_RETURN(auto published, PublicationsByLife());
        for (const JournalledPipeline& row : rows) {
          if (row.name == job.name) return MakeAgain(row, published[row.life], &recipe, planning);
        }
        return PipelineNotFound(job.name);
      });
  // Before any call is accepted.
  absl::Status status = made.status();
  if (status.ok()) status = Guarded("the record of a load", [&] { return RecordLoad(job); });
  if (made.ok() && !status.ok()) {
    Guarded("the end of a load that is not recorded", [&] {
      (*made)->Stop();
      RemoveMetrics(**made);
    }).IgnoreError();
    made = status;
  }
  if (!status.ok() && IsDraining()) status = TableDraining();  // it was cut short
  AnswerLoad(job, status, EndBuild(job.name, std::move(made), std::move(recipe)));
}

absl::Status PipelineTable::RecordLoad(const LoadJob& job) const {
  DaemonJournal::Change change;
  change.load = job.name;
  change.request = RequestOf(job.key, job.name, job.payload_digest);
  return journal_->Write(change);
}

void PipelineTable::AnswerLoad(const LoadJob& job, const absl::Status& status, PipelineEntry entry) {
  if (status.ok()) {
    Guarded("the log of a load", [&] { LogInfo("pipeline loaded", {{"pipeline", job.name}}); }).IgnoreError();
    return Answer(job.key, job.join, std::move(entry));
  }
  Guarded("the log of a load", [&] {
    LogWarning("pipeline not loaded",
               {{"pipeline", job.name}, {"reason", ReasonOf(status)}, {"error", std::string(status.message())}});
  }).IgnoreError();
  Answer(job.key, job.join, WithValue(status, "pipeline", job.name));
}

}  // namespace penstock
