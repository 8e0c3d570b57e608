// Checkpoints whose weights inference of a pipeline sees, while training goes on.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_errors.h"
#include "engine/serve/pipeline_table.h"

namespace penstock {

// One publication, from its acceptance on.
struct PipelineTable::PublishJob {
  std::string name;
  RequestKey key;
  std::string payload_digest;
  std::string checkpoint = {};  // empty: the live weights
  PipelineRecipe recipe = {};
  JoinPointer join = {};
  std::string life = {};
  std::weak_ptr<ServedPipeline> pipeline = {};  // who deletes it waits for nobody
};

namespace {

absl::Status BeingDeleted(const std::string& name) {
  return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                       absl::StrCat("pipeline ", name, " is being deleted"), name);
}

}  // namespace

void PipelineTable::Publish(CallContext context, std::string name, std::string checkpoint, PipelineRecipe recipe,
                            UpdateCallback done) {
  const auto job =
      std::make_shared<PublishJob>(PublishJob{.name = name,
                                              .key = {context.caller, "PublishCheckpoint", context.request_id},
                                              .payload_digest = context.payload_digest,
                                              .checkpoint = std::move(checkpoint),
                                              .recipe = std::move(recipe)});
  const Start start = [&](std::optional<Standing>*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(PipelineEntry entry, BeginChange(name));
    job->pipeline = entry.pipeline;
    job->life = std::move(entry.life);
    job->recipe.caller = std::move(entry.caller);
    return absl::OkStatus();
  };
  const absl::StatusOr<bool> met = MetBefore(job->key, context.payload_digest);
  if (!met.ok()) return done(met.status());
  if (*met) return done(Get(name));
  job->join = Begin(job->key, context, std::move(done), start);
  if (job->join == nullptr) return;
  const absl::Status posted = Guarded("a publication", [&] {
    const auto planning = std::make_shared<Planning>(builder_.options().clock, kAgainSeconds, [this, job] {
      return IsDraining() || !Serves(job->name, job->pipeline);
    });
    creations_.Post([this, job, planning] {
      creations_.HoldTurn(TurnOf(job->recipe.spec));
      const absl::Status published = Guarded("a publication", [&] { return PublishNow(*job, planning.get()); });
      creations_.HoldTurn(absl::InfiniteDuration());
      EndPublication(*job, published);
    });
  });
  if (!posted.ok()) EndPublication(*job, posted);
}

absl::Status PipelineTable::PublishNow(const PublishJob& job, Planning* planning) {
  Publication next;
  CheckpointPins::Hold pin;
  {
    const std::shared_ptr<ServedPipeline> pipeline = job.pipeline.lock();
    if (!Serves(job.name, job.pipeline)) return BeingDeleted(job.name);
    next.version = pipeline->publication().version;
    if (!job.checkpoint.empty()) {
      PENSTOCK_ASSIGN_OR_RETURN(pin, pipeline->PinCheckpoint(job.checkpoint));
    }
  }
  MadeEngine engine;
  if (!job.checkpoint.empty()) {
    // Before anything is built.
    PENSTOCK_RETURN_IF_ERROR(builder_.options().checkpoints->Find(job.name, job.checkpoint).status());
    PENSTOCK_ASSIGN_OR_RETURN(engine,
                              builder_.BuildPublished(job.name, job.life, job.recipe, job.checkpoint, planning));
    next.checkpoint = job.checkpoint;
    next.step = engine.pipeline->step();
    ++next.version;
  }
  next.time = builder_.options().clock->WallNow();
  // What may fail comes before it is durable.
  PublishedWeights::Prepared prepared = PublishedWeights::Prepare(next, std::move(engine), std::move(pin));
  const std::shared_ptr<ServedPipeline> pipeline = job.pipeline.lock();
  if (IsDraining()) return TableDraining();
  if (pipeline == nullptr) return BeingDeleted(job.name);
  PENSTOCK_RETURN_IF_ERROR(RecordPublication(job, next));
  pipeline->Publish(std::move(prepared));
  return absl::OkStatus();
}

absl::Status PipelineTable::RecordPublication(const PublishJob& job, const Publication& publication) const {
  if (journal_ == nullptr) return absl::OkStatus();
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(job.name);
    if (found == entries_.end() || found->second.life != job.life) return BeingDeleted(job.name);
  }
  DaemonJournal::Change change;
  change.publication = JournalledPublication{.pipeline = job.name,
                                             .life = job.life,
                                             .checkpoint = publication.checkpoint,
                                             .version = publication.version,
                                             .step = publication.step,
                                             .unix_nanos = absl::ToUnixNanos(publication.time)};
  change.request = RequestOf(job.key, job.name, job.payload_digest);
  return journal_->Write(change);
}

void PipelineTable::EndPublication(const PublishJob& job, const absl::Status& status) {
  const absl::StatusOr<PipelineEntry> answer = EndChange(job.name, job.pipeline, status, [](PipelineEntry&) {});
  Guarded("the log of a publication", [&] {
    if (!answer.ok()) {
      LogWarning("checkpoint not published", {{"pipeline", job.name},
                                              {"checkpoint", job.checkpoint},
                                              {"reason", ReasonOf(answer.status())},
                                              {"error", std::string(answer.status().message())}});
    } else if (job.checkpoint.empty()) {
      LogInfo("inference sees the live weights", {{"pipeline", job.name}});
    } else {
      const Publication now = answer->pipeline->publication();
      LogInfo("checkpoint published", {{"pipeline", job.name},
                                       {"checkpoint", job.checkpoint},
                                       {"step", std::to_string(now.step)},
                                       {"version", std::to_string(now.version)}});
    }
  }).IgnoreError();
  Answer(job.key, job.join, answer.ok() ? answer : WithValue(answer.status(), "pipeline", job.name));
}

void PipelineTable::DestroyUnusedWeights(const std::string& name, uint64_t number) {
  std::shared_ptr<ServedPipeline> pipeline;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(name);
    if (found == entries_.end() || makings_[name].number != number) return;
    pipeline = found->second.pipeline;
  }
  if (pipeline != nullptr) pipeline->DestroyUnusedWeights();
}

}  // namespace penstock
