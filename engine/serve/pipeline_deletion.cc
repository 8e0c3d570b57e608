// The deletion of pipelines, and of the checkpoints that they have left.

#include <memory>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/pipeline_errors.h"
#include "engine/serve/pipeline_table.h"

namespace penstock {

void PipelineTable::Delete(CallContext context, std::string name, bool force, bool purge, DeleteCallback done) {
  const RequestKey key{context.caller, "DeletePipeline", context.request_id};
  std::shared_ptr<ServedPipeline> pipeline;
  PipelineEntry::State before = PipelineEntry::State::kReady;
  const Start start = [&](std::optional<Standing>*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    if (draining_) return TableDraining();  // what there is will be saved
    auto found = entries_.find(name);
    if (found == entries_.end()) return PipelineNotFound(name);
    PipelineEntry& entry = found->second;
    const bool unmade = entry.pipeline == nullptr && (entry.state == PipelineEntry::State::kFailed ||
                                                      entry.state == PipelineEntry::State::kReforming ||
                                                      entry.state == PipelineEntry::State::kUnloaded);
    before = entry.state;
    if (unmade) {
      SetState(entry, PipelineEntry::State::kDeleting);
      return absl::OkStatus();
    }
    if (entry.state == PipelineEntry::State::kUnloading) return PipelineUnloading(name);
    if (entry.pipeline == nullptr || entry.state == PipelineEntry::State::kDeleting) {
      return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                           absl::StrCat("pipeline ", name, " is being created or deleted"), name);
    }
    const ServedPipeline::Statistics now = entry.pipeline->statistics();
    if (!force && (now.accumulating || now.open_graphs > 0)) {
      return PipelineError(
          absl::StatusCode::kFailedPrecondition, "PIPELINE_IN_USE",
          absl::StrCat("pipeline ", name, " holds ", now.accumulating ? "accumulated gradients" : "",
                       now.accumulating && now.open_graphs > 0 ? " and " : "", now.open_graphs > 0 ? "open graphs" : "",
                       ", which deletion with force would lose"),
          name);
    }
    pipeline = entry.pipeline;
    SetState(entry, PipelineEntry::State::kDeleting);
    return absl::OkStatus();
  };
  const absl::StatusOr<bool> met = MetBefore(key, context.payload_digest);
  if (!met.ok() || *met) return done(met.status());
  const JoinPointer join = Begin(
      key, context, [done = std::move(done)](const absl::StatusOr<PipelineEntry>& entry) { done(entry.status()); },
      start);
  if (join == nullptr) return;
  if (pipeline == nullptr) return DeleteUnmade(key, context.payload_digest, name, purge, join, before);
  const absl::Status begun = Guarded("the deletion of a pipeline", [&] {
    // Drain() may call back before it returns; the deletion waits until this thread has let go of the pipeline, so that
    // its memory is free when the deletion is done.
    std::shared_ptr<ServedPipeline> kept = pipeline;
    const auto let_go = std::make_shared<absl::Notification>();
    const absl::Cleanup leave = [&] {
      kept = nullptr;
      let_go->Notify();
    };
    PipelineEntry nothing;
    const auto job = std::make_shared<JobThread::Prepared>(
        JobThread::Prepare([this, key, join, name, purge, let_go, digest = context.payload_digest,
                            pipeline = std::move(pipeline), nothing = std::move(nothing)]() mutable {
          let_go->WaitForNotification();
          const absl::Status purged = DeleteNow(key, digest, name, std::move(pipeline), purge);
          Answer(key, join, purged.ok() ? absl::StatusOr<PipelineEntry>(std::move(nothing)) : purged);
        }));
    kept->DrainToDelete(force, [this, job] { deletions_.Post(std::move(*job)); });
  });
  if (begun.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    SetState(entries_.at(name), draining_ ? PipelineEntry::State::kDraining : PipelineEntry::State::kReady);
  }
  Answer(key, join, begun);
}

// Nothing of it stands but its journal and its checkpoints.
void PipelineTable::DeleteUnmade(const RequestKey& key, const std::string& payload_digest, const std::string& name,
                                 bool purge, const JoinPointer& join, PipelineEntry::State before) {
  {
    absl::MutexLock lock(&mu_);
    Making& making = makings_[name];
    if (making.building) {  // it ends soon, for nobody wants it any more
      making.deletion = [=, this] { DeleteUnmade(key, payload_digest, name, purge, join, before); };
      return;
    }
  }
  const absl::Status posted = Guarded("the deletion of a pipeline", [&] {
    deletions_.Post([this, key, payload_digest, name, purge, join] {
      absl::Status gone =
          Guarded("the deletion of a pipeline", [&] { return RecordDeletion(key, payload_digest, name); });
      const std::shared_ptr<CheckpointFolder> folder = builder_.options().checkpoints->FindFolder(name);
      if (gone.ok() && purge && folder != nullptr) gone = folder->Purge();
      builder_.options().handles->ReleasePipeline(name);  // what one that has lost a rank has left
      {
        absl::MutexLock lock(&mu_);
        entries_.erase(name);
        makings_.erase(name);
      }
      Answer(key, join, gone.ok() ? absl::StatusOr<PipelineEntry>(PipelineEntry()) : gone);
    });
  });
  if (posted.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    const bool unloaded = before == PipelineEntry::State::kUnloaded;
    SetState(entries_.at(name), unloaded ? before : PipelineEntry::State::kFailed);
  }
  Answer(key, join, posted);
}

absl::Status PipelineTable::DeleteNow(const RequestKey& key, const std::string& payload_digest, const std::string& name,
                                      std::shared_ptr<ServedPipeline> pipeline, bool purge) {
  // What fails leaves something behind, and the name comes free all the same.
  const auto attempt = [&name](const char* failure, auto&& part) {
    absl::Status done = Guarded("the deletion of a pipeline", part);
    if (done.ok()) return done;
    Guarded("the deletion of a pipeline", [&] {
      LogError(failure, {{"pipeline", name}, {"error", std::string(done.message())}});
    }).IgnoreError();
    return done;
  };
  attempt("can't stop a deleted pipeline", [&] { pipeline->Stop(); }).IgnoreError();
  const absl::Status recorded = attempt("can't make the deletion of a pipeline durable",
                                        [&] { return RecordDeletion(key, payload_digest, name); });
  attempt("can't release the handles of a deleted pipeline", [&] {
    builder_.options().handles->ReleasePipeline(name);
  }).IgnoreError();
  absl::Status purged;
  if (purge && recorded.ok()) {  // else the next start makes it again, from its checkpoints
    purged = attempt("can't remove the checkpoints of a deleted pipeline", [&] {
      const absl::Status left = Guarded("a purge", [&] { return pipeline->PurgeCheckpoints(); });
      return WithPrefix(WithValue(left, "pipeline", name), "the pipeline is deleted, but not all of its checkpoints: ");
    });
  }
  attempt("can't remove the metrics of a deleted pipeline", [&] { RemoveMetrics(*pipeline); }).IgnoreError();
  // Its memory first: who takes the name next finds room.
  std::shared_ptr<ServedPipeline> listed;
  {
    absl::MutexLock lock(&mu_);
    listed = std::move(entries_.at(name).pipeline);
  }
  listed = nullptr;
  pipeline = nullptr;
  {
    absl::MutexLock lock(&mu_);
    entries_.erase(name);
    makings_.erase(name);
  }
  attempt("can't tell of a deleted pipeline", [&] {
    LogInfo("pipeline deleted", {{"pipeline", name}, {"purged", purge && purged.ok() ? "true" : "false"}});
  }).IgnoreError();
  return recorded.ok() ? purged : recorded;
}

void PipelineTable::DeleteCheckpoint(CallContext context, CheckpointSource checkpoint, DeleteCallback done) {
  const RequestKey key{context.caller, "DeleteCheckpoint", context.request_id};
  const Start start = [&](std::optional<Standing>*) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    const auto found = entries_.find(checkpoint.pipeline);
    if (found != entries_.end() && found->second.state == PipelineEntry::State::kUnloaded) {
      return PipelineUnloaded(checkpoint.pipeline);  // it may be made again from this one
    }
    if (found != entries_.end()) {
      return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                           absl::StrCat("pipeline ", checkpoint.pipeline, " is being created or deleted"),
                           checkpoint.pipeline);
    }
    PENSTOCK_RETURN_IF_ERROR(builder_.options().checkpoints->Find(checkpoint.pipeline, checkpoint.id).status());
    return absl::OkStatus();
  };
  const JoinPointer join = Begin(
      key, context, [done = std::move(done)](const absl::StatusOr<PipelineEntry>& entry) { done(entry.status()); },
      start);
  if (join == nullptr) return;
  const absl::Status posted = Guarded("the deletion of a checkpoint", [&] {
    deletions_.Post([this, key, join, checkpoint] {
      const absl::Status removed = Guarded("the deletion of a checkpoint", [&] {
        return builder_.options().checkpoints->FindFolder(checkpoint.pipeline)->Remove(checkpoint.id);
      });
      if (removed.ok()) {
        LogInfo("checkpoint deleted", {{"pipeline", checkpoint.pipeline}, {"checkpoint", checkpoint.id}});
        return Answer(key, join, PipelineEntry());
      }
      Answer(key, join, WithValue(removed, "pipeline", checkpoint.pipeline));
    });
  });
  if (!posted.ok()) Answer(key, join, WithValue(posted, "pipeline", checkpoint.pipeline));
}

}  // namespace penstock
