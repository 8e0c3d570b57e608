// Pipelines that get another engine while they serve.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/observe/metrics_registry.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_errors.h"
#include "engine/serve/pipeline_table.h"

namespace penstock {

// One update, from its acceptance on.
struct PipelineTable::UpdateJob {
  std::string name;
  RequestKey key;
  std::string session;
  std::string payload_digest;
  PipelineRecipe recipe;
  JoinPointer join = {};
  std::string life = {};
  std::weak_ptr<ServedPipeline> pipeline = {};  // who deletes it waits for nobody
  std::string specification = {};               // what is recorded of it
};

namespace {

absl::Status NotReady(const std::string& name, const std::string& why) {
  return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                       absl::StrCat("pipeline ", name, why), name);
}

const char* WhyNot(PipelineEntry::State state) {
  switch (state) {
    case PipelineEntry::State::kCreating:
      return " is being created, or made again";
    case PipelineEntry::State::kUnloading:
    case PipelineEntry::State::kUnloaded:
      return " is unloaded, or being unloaded: load it first";
    case PipelineEntry::State::kReforming:
      return " has lost a rank, and is made again when its group is complete";
    case PipelineEntry::State::kFailed:
      return " can't be used any more";
    case PipelineEntry::State::kReady:
    case PipelineEntry::State::kDraining:
    case PipelineEntry::State::kDeleting:
      break;
  }
  return " is being drained or deleted";
}

absl::Status OverRanks(const std::string& name) {
  return PipelineError(
      absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
      absl::StrCat(
          "pipeline ", name,
          " can't be updated or unloaded, nor a checkpoint of it published: it has, or would have, stages on several "
          "ranks"),
      name);
}

}  // namespace

void PipelineTable::Update(CallContext context, std::string name, PipelineRecipe recipe, const AcceptUpdate& accept,
                           UpdateCallback done) {
  const auto update =
      std::make_shared<UpdateJob>(UpdateJob{.name = name,
                                            .key = {context.caller, "UpdatePipeline", context.request_id},
                                            .session = context.session,
                                            .payload_digest = context.payload_digest,
                                            .recipe = std::move(recipe)});
  const Start start = [&](std::optional<Standing>*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(PipelineEntry entry, BeginChange(name, accept));
    update->pipeline = entry.pipeline;
    update->life = std::move(entry.life);
    update->recipe.caller = std::move(entry.caller);
    return absl::OkStatus();
  };
  const absl::StatusOr<bool> met = MetBefore(update->key, context.payload_digest);
  if (!met.ok()) return done(met.status());
  if (*met) return done(Get(name));
  update->join = Begin(update->key, context, std::move(done), start);
  if (update->join == nullptr) return;
  const absl::Status posted = Guarded("the update of a pipeline", [&] {
    const auto planning =
        std::make_shared<Planning>(builder_.options().clock, update->recipe.spec.limits.planning_seconds,
                                   [this, update] { return IsDraining() || !Serves(update->name, update->pipeline); });
    creations_.Post([this, update, planning] {
      creations_.HoldTurn(TurnOf(update->recipe.spec));
      const absl::Status made = Guarded("the update of a pipeline", [&] { MakeNext(update, planning.get()); });
      creations_.HoldTurn(absl::InfiniteDuration());
      if (!made.ok()) EndUpdate(update, made);
    });
  });
  if (!posted.ok()) EndUpdate(update, posted);
}

absl::StatusOr<PipelineEntry> PipelineTable::BeginChange(const std::string& name, const AcceptUpdate& accept) {
  if (draining_) return TableDraining();
  const auto found = entries_.find(name);
  if (found == entries_.end()) return PipelineNotFound(name);
  const PipelineEntry& entry = found->second;
  if (entry.state != PipelineEntry::State::kReady || entry.pipeline == nullptr) {
    return NotReady(name, WhyNot(entry.state));
  }
  PENSTOCK_RETURN_IF_ERROR(entry.pipeline->pipeline().health());
  Making& making = makings_[name];
  if (making.updating) return NotReady(name, " is being updated by another call");
  if (accept) PENSTOCK_RETURN_IF_ERROR(accept(entry));
  if (SpansRanks(entry.pipeline->pipeline().plan())) return OverRanks(name);
  PipelineEntry changed = entry;
  making.updating = true;
  return changed;
}

// The pipeline that is changed is there, and is not being deleted.
bool PipelineTable::Serves(const std::string& name, const std::weak_ptr<ServedPipeline>& changed) const {
  const std::shared_ptr<ServedPipeline> pipeline = changed.lock();  // goes without the lock
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(name);
  return pipeline != nullptr && found != entries_.end() && found->second.pipeline == pipeline &&
         found->second.state != PipelineEntry::State::kDeleting;
}

void PipelineTable::MakeNext(const UpdatePointer& update, Planning* planning) {
  absl::StatusOr<MadeEngine> next = NotReady(update->name, " is being deleted");
  if (Serves(update->name, update->pipeline))
    next = builder_.BuildNext(update->name, update->life, &update->recipe, may_rehearse_, planning);
  if (next.ok() && SpansRanks(next->pipeline->plan())) next = OverRanks(update->name);
  const std::shared_ptr<ServedPipeline> pipeline = update->pipeline.lock();
  if (next.ok() && pipeline == nullptr) next = NotReady(update->name, " is being deleted");
  if (!next.ok()) return EndUpdate(update, IsDraining() ? TableDraining() : next.status());
  if (next->describe) update->specification = next->describe(*next->pipeline);
  const auto engine = std::make_shared<MadeEngine>(*std::move(next));
  // By then the registry shows who serves; the old counts end with that.
  auto swapped = [registry = builder_.options().metrics, metrics = engine->metrics] {
    if (registry != nullptr && metrics != nullptr) registry->AddPipeline(metrics);
  };
  // Without a request_id: retries are this table's, where the engine is made once.
  pipeline->Update(
      {.caller = update->key.caller, .session = update->session}, {.engine = engine, .done = std::move(swapped)},
      [this, update, engine](const absl::StatusOr<StateAnswer>& answer) {
        if (!answer.ok()) {  // what nobody needs is gone before the caller hears
          engine->pipeline = nullptr;
          engine->held = nullptr;
          return EndUpdate(update, answer.status());
        }
        // On the thread that trains, which waits for no disk. Before a deletion of the pipeline goes on there.
        const absl::Status posted = Guarded(
            "the end of an update", [&] { deletions_.Post([this, update] { EndUpdate(update, absl::OkStatus()); }); });
        if (!posted.ok()) EndUpdate(update, absl::OkStatus());
      });
}

absl::Status PipelineTable::RecordUpdate(const UpdateJob& update) const {
  if (journal_ == nullptr) return absl::OkStatus();
  DaemonJournal::Change change;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(update.name);
    if (found == entries_.end() || found->second.life != update.life) return absl::OkStatus();  // it is gone
    const PipelineEntry& entry = found->second;
    change.put = JournalledPipeline{.name = entry.name,
                                    .life = entry.life,
                                    .owner = entry.caller,
                                    .specification = update.specification,
                                    .fingerprint = fingerprint_,
                                    .create_unix_nanos = absl::ToUnixNanos(entry.create_time)};
  }
  change.request = RequestOf(update.key, update.name, update.payload_digest);
  return journal_->Write(change);
}

absl::StatusOr<PipelineEntry> PipelineTable::EndChange(const std::string& name,
                                                       const std::weak_ptr<ServedPipeline>& changed,
                                                       const absl::Status& status,
                                                       const std::function<void(PipelineEntry&)>& change) {
  const std::shared_ptr<ServedPipeline> pipeline = changed.lock();  // goes without the lock
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(name);
  const bool stands = pipeline != nullptr && found != entries_.end() && found->second.pipeline == pipeline;
  if (stands) makings_[name].updating = false;
  if (!status.ok()) return status;
  if (!stands) return NotReady(name, " was deleted meanwhile");
  PipelineEntry& entry = found->second;
  change(entry);
  SetState(entry, entry.state);  // another version
  return entry;
}

void PipelineTable::EndUpdate(const UpdatePointer& update, const absl::Status& status) {
  const std::string& name = update->name;
  absl::StatusOr<PipelineEntry> answer = EndChange(name, update->pipeline, status, [&](PipelineEntry& entry) {
    entry.spec = update->recipe.asked.value_or(update->recipe.spec);
    entry.spec.model.program_digest = update->recipe.spec.model.program_digest;
    entry.spec.sample = nullptr;
  });
  if (answer.ok()) {
    // The update stands without it, as its checkpoint says; a retry after a restart would make it once more.
    if (const absl::Status recorded = RecordUpdate(*update); !recorded.ok()) {
      LogWarning("an update is not recorded with its pipeline",
                 {{"pipeline", name}, {"reason", ReasonOf(recorded)}, {"error", std::string(recorded.message())}});
    }
    Guarded("the log of an update", [&] {
      LogInfo("pipeline updated", {{"pipeline", name},
                                   {"stages", absl::StrCat(answer->pipeline->pipeline().plan().stages.size())},
                                   {"schedule", answer->pipeline->pipeline().plan().schedule.kind}});
    }).IgnoreError();
  } else {
    LogWarning(
        "pipeline not updated",
        {{"pipeline", name}, {"reason", ReasonOf(answer.status())}, {"error", std::string(answer.status().message())}});
    answer = WithValue(answer.status(), "pipeline", name);
  }
  Answer(update->key, update->join, std::move(answer));
}

}  // namespace penstock
