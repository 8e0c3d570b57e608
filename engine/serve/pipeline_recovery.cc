// The pipelines that outlive the process: what is recorded of them, and how they are made again.

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_table.h"

namespace penstock {
absl::StatusOr<bool> PipelineTable::MetBefore(const RequestKey& key, const std::string& payload_digest) {
  if (journal_ == nullptr || key.request_id.empty()) return false;
  {
    absl::MutexLock lock(&mu_);
    if (log_.Contains(key)) return false;
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<PipelineRequest> found,
                            journal_->FindRequest(key.caller, key.method, key.request_id));
  if (!found.has_value()) return false;
  if (found->payload_digest != payload_digest) return RequestIdReused(key.request_id);
  return true;
}

std::optional<PipelineRequest> PipelineTable::RequestOf(const RequestKey& key, const std::string& pipeline,
                                                        const std::string& payload_digest) {
  if (key.request_id.empty()) return std::nullopt;
  return PipelineRequest{.identity = key.caller,
                         .method = key.method,
                         .request_id = key.request_id,
                         .pipeline = pipeline,
                         .payload_digest = payload_digest,
                         .status = CallStatus::kDone};
}

absl::Status PipelineTable::RecordCreation(const RequestKey& key, const std::string& payload_digest,
                                           const std::string& life, const PipelineRecipe& recipe,
                                           const PipelineEntry& entry) const {
  if (journal_ == nullptr) return absl::OkStatus();
  const Pipeline& made = entry.pipeline->pipeline();
  DaemonJournal::Change change;
  change.put = JournalledPipeline{
      .name = entry.name,
      .life = life,
      .owner = key.caller,
      .specification = recipe.describe ? recipe.describe(made.plan(), recipe.spec.model, made.optimizer()) : "",
      .fingerprint = fingerprint_,
      .create_unix_nanos = absl::ToUnixNanos(entry.create_time)};
  change.request = RequestOf(key, entry.name, payload_digest);
  return journal_->Write(change);
}

absl::Status PipelineTable::RecordDeletion(const RequestKey& key, const std::string& payload_digest,
                                           const std::string& name) {
  if (journal_ == nullptr) return absl::OkStatus();
  std::string life;
  {
    absl::MutexLock lock(&mu_);
    life = entries_.at(name).life;
  }
  DaemonJournal::Change change;
  change.remove = name;
  change.request = RequestOf(key, name, payload_digest);
  PENSTOCK_RETURN_IF_ERROR(journal_->Write(change));
  const std::shared_ptr<CheckpointFolder> checkpoints = builder_.options().checkpoints->FindFolder(name);
  if (checkpoints != nullptr) AutomaticCheckpoints::RemoveAll(*checkpoints, life);
  const std::string folder = builder_.JournalFolder(life);
  if (folder.empty()) return absl::OkStatus();
  if (const absl::Status removed = RealFileSystem()->RemoveAll(folder); !removed.ok()) {
    LogWarning("can't remove the journal of a deleted pipeline",  // the next start does
               {{"pipeline", name}, {"error", std::string(removed.message())}});
  }
  return absl::OkStatus();
}

absl::Status PipelineTable::Recover(std::function<void()> done) {
  if (journal_ == nullptr) {
    done();
    return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<JournalledPipeline> rows, journal_->Pipelines());
  // What a deletion or a failed creation has left.
  std::set<std::string> lives;
  for (const JournalledPipeline& row : rows) lives.insert(row.life);
  const std::string& above = builder_.options().journal->folder;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> folders, RealFileSystem()->List(above));
  for (const std::string& folder : folders) {
    const bool is_life = folder.size() == 16 && folder.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (is_life && !lives.contains(folder)) {
      PENSTOCK_RETURN_IF_ERROR(RealFileSystem()->RemoveAll(absl::StrCat(above, "/", folder)));
    }
  }
  const CheckpointStore& checkpoints = *builder_.options().checkpoints;
  for (const CheckpointInfo& info : checkpoints.List("", "", std::numeric_limits<size_t>::max())) {
    if (!info.place.automatic || lives.contains(info.place.life)) continue;
    AutomaticCheckpoints::RemoveAll(*checkpoints.FindFolder(info.pipeline), info.place.life);
  }
  PENSTOCK_ASSIGN_OR_RETURN(auto published, PublicationsByLife());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<JournalledUnload> unloads, journal_->Unloads());
  std::set<std::string> unloaded;  // lives
  for (const JournalledUnload& row : unloads) unloaded.insert(row.life);
  for (const JournalledPipeline& row : rows) {
    if (unloaded.contains(row.life)) {
      PipelineEntry entry{.name = row.name, .life = row.life, .caller = row.owner};
      entry.create_time = absl::FromUnixNanos(row.create_unix_nanos);
      // Only lists show it; where it can't be read, Load() says so.
      if (auto recipe = RecipeOf(row); recipe.ok()) entry.spec = *std::move(recipe->asked);
      entry.rest = RestOf(row, published[row.life]);
      // Its checkpoints count as its owner's, whether they can be read or not.
      builder_.options().checkpoints->FolderOf(row.name, row.owner).status().IgnoreError();
      absl::MutexLock lock(&mu_);
      SetState(entry, PipelineEntry::State::kUnloaded);
      entries_.emplace(row.name, std::move(entry));
      continue;
    }
    auto planning =
        std::make_shared<Planning>(builder_.options().clock, kAgainSeconds, [this] { return IsDraining(); });
    {
      absl::MutexLock lock(&mu_);
      makings_[row.name].building = true;
      PipelineEntry entry{.name = row.name, .life = row.life, .caller = row.owner};
      entry.create_time = absl::FromUnixNanos(row.create_unix_nanos);
      entry.planning = planning;
      SetState(entry, PipelineEntry::State::kCreating);
      entries_.emplace(row.name, std::move(entry));
    }
    creations_.Post([this, row, planning, publication = published[row.life]] {
      creations_.HoldTurn(absl::InfiniteDuration());
      RecoverNow(row, publication, planning);
    });
  }
  creations_.Post(std::move(done));
  return absl::OkStatus();
}

// By its checkpoints: the newest of its life is the one that it was unloaded with.
PipelineEntry::Rest PipelineTable::RestOf(const JournalledPipeline& row, Publication published) const {
  PipelineEntry::Rest rest{.published = std::move(published)};
  const std::shared_ptr<CheckpointFolder> folder = builder_.options().checkpoints->FindFolder(row.name);
  if (folder == nullptr) return rest;
  int64_t newest = -1;
  for (const CheckpointInfo& info : folder->List()) {
    if (info.place.life != row.life || !info.place.automatic || info.place.sequence <= newest) continue;
    newest = info.place.sequence;
    rest.step = info.step;
    rest.state_token = TrainingQueue::TokenOf(row.life, info.place.version);
  }
  return rest;
}

absl::StatusOr<PipelineRecipe> PipelineTable::RecipeOf(const JournalledPipeline& row) const {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineRecipe recipe, builder_.options().journal->recipe(row.specification));
  recipe.caller = row.owner;
  if (!recipe.asked.has_value()) recipe.asked = recipe.spec;
  return recipe;
}

absl::StatusOr<std::map<std::string, Publication>> PipelineTable::PublicationsByLife() const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<JournalledPublication> rows, journal_->Publications());
  std::map<std::string, Publication> published;
  for (const JournalledPublication& row : rows) {
    published[row.life] = {.checkpoint = row.checkpoint,
                           .version = row.version,
                           .step = row.step,
                           .time = absl::FromUnixNanos(row.unix_nanos)};
  }
  return published;
}

absl::StatusOr<std::shared_ptr<ServedPipeline>> PipelineTable::MakeAgain(const JournalledPipeline& row,
                                                                         const Publication& published,
                                                                         PipelineRecipe* recipe, Planning* planning) {
  PENSTOCK_ASSIGN_OR_RETURN(*recipe, RecipeOf(row));
  if (row.fingerprint != fingerprint_) {
    LogWarning("a pipeline of another build or machine is made again: its calls may go otherwise by a rounding",
               {{"pipeline", row.name}, {"before", row.fingerprint}, {"now", fingerprint_}});
  }
  PipelineLife life = NewLifeOf(row.name, row.life, /*again=*/true);
  life.wanted = [this] { return !IsDraining(); };
  life.published = published;
  return builder_.Build(row.name, life, recipe, may_rehearse_, planning);
}

void PipelineTable::RecoverNow(const JournalledPipeline& row, const Publication& published,
                               const std::shared_ptr<Planning>& planning) {
  PipelineRecipe recipe;
  auto made =
      Guarded("a pipeline that is made again", [&] { return MakeAgain(row, published, &recipe, planning.get()); });
  EndBuild(row.name, std::move(made), std::move(recipe));
}

}  // namespace penstock
