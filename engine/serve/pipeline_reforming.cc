// Pipelines that have lost a rank: how they end, and how they are made again when the group is complete.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/exec/pipeline_group.h"
#include "engine/handles/handle_store.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_errors.h"
#include "engine/serve/pipeline_table.h"

namespace penstock {

// --- What comes from elsewhere: it only posts.

void PipelineTable::Losses::Post(const std::function<void(PipelineTable&)>& job) {
  absl::MutexLock lock(&mu_);
  if (table_ != nullptr) table_->deletions_.Post([table = table_, job] { job(*table); });
}

void PipelineTable::Losses::Close() {
  absl::MutexLock lock(&mu_);
  table_ = nullptr;
}

PipelineLife PipelineTable::NewLifeOf(const std::string& name, const std::string& id, bool again) {
  PipelineLife life{.id = id, .again = again};
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mu_);
    Making& making = makings_[name];
    number = making.number = ++builds_;
    making.completions = losses_->completions();
    making.standing = false;
  }
  life.lost = [losses = losses_, name, number](const absl::Status& why) {
    losses->Post([name, number, why, seen = losses->completions()](PipelineTable& table) {
      table.LoseNow(name, number, why, seen);
    });
  };
  life.unused_weights = [losses = losses_, name, number] {
    losses->Post([name, number](PipelineTable& table) { table.DestroyUnusedWeights(name, number); });
  };
  // From a destructor. Without memory for the job, a pipeline that has lost a rank waits for the daemon's next start.
  life.gone = [losses = losses_, name, number] {
    Guarded("the end of a pipeline", [&] {
      losses->Post([name, number](PipelineTable& table) { table.OnGone(name, number); });
    }).IgnoreError();
  };
  return life;
}

void PipelineTable::OnGroupComplete() {
  losses_->CountCompletion();
  std::vector<std::string> names;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, entry] : entries_) {
      Making& making = makings_[name];
      // One that is being made again may find that a rank was missing.
      if (entry.state != PipelineEntry::State::kReforming && !making.building) continue;
      making.due = true;
      names.push_back(name);
    }
  }
  for (const std::string& name : names) ReformIfDue(name);
}

// --- The end of one that has lost a rank, on the thread of deletions.

void PipelineTable::LoseNow(const std::string& name, uint64_t number, const absl::Status& why, int64_t seen) {
  std::shared_ptr<ServedPipeline> pipeline;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(name);
    if (found == entries_.end() || makings_[name].number != number) return;
    PipelineEntry& entry = found->second;
    // One that is being made is looked at when it is made; one that is being deleted goes anyway.
    if (entry.pipeline == nullptr || entry.state == PipelineEntry::State::kDeleting) return;
    entry.spec.optimizer = entry.pipeline->pipeline().optimizer();
    entry.error = WithValue(why, "pipeline", name);
    ServedPipeline::Statistics last = entry.pipeline->statistics();
    entry.rest = {last.step, std::move(last.state_token), entry.pipeline->publication()};
    pipeline = std::move(entry.pipeline);
    entry.pipeline = nullptr;
    Making& making = makings_[name];
    making.standing = true;
    // A rank that could not be told something is lost for this pipeline alone: its group stands.
    const PipelineGroup* const group = builder_.options().group;
    making.due = losses_->completions() != seen || (group != nullptr && group->complete());
    SetState(entry, PipelineEntry::State::kReforming);
  }
  LogWarning(
      "a pipeline has lost a rank: it is made again when the group is complete",
      {{"pipeline", name}, {"step", absl::StrCat(pipeline->statistics().step)}, {"error", std::string(why.message())}});
  pipeline->StopLost(why);
  {
    absl::MutexLock lock(&mu_);
    if (std::string last = pipeline->last_checkpoint(); !last.empty()) makings_[name].last_checkpoint = std::move(last);
  }
  RemoveMetrics(*pipeline);
  // OnGone() follows when the last call that holds it lets go.
}

void PipelineTable::OnGone(const std::string& name, uint64_t number) {
  {
    absl::MutexLock lock(&mu_);
    const auto found = makings_.find(name);
    if (found == makings_.end() || found->second.number != number) return;
    found->second.standing = false;
  }
  ReformIfDue(name);
}

// --- How it is made again, on the thread of creations.

void PipelineTable::ReformIfDue(const std::string& name) {
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(name);
    if (found == entries_.end() || found->second.state != PipelineEntry::State::kReforming) return;
    Making& making = makings_[name];
    if (!making.due || making.standing || making.building || draining_) return;
    making.due = false;
    making.building = true;
  }
  const absl::Status posted = Guarded("a pipeline that is made again", [&] {
    creations_.Post([this, name] {
      creations_.HoldTurn(absl::InfiniteDuration());
      ReformNow(name);
    });
  });
  if (!posted.ok()) EndBuild(name, posted, {});
}

void PipelineTable::ReformNow(const std::string& name) {
  PipelineRecipe recipe;
  const auto wanted = [this, name] { return !IsDraining() && !IsDeleting(name); };
  Planning planning(builder_.options().clock, kAgainSeconds, [wanted] { return !wanted(); });
  absl::StatusOr<std::shared_ptr<ServedPipeline>> made =
      Guarded("a pipeline that is made again", [&]() -> absl::StatusOr<std::shared_ptr<ServedPipeline>> {
        PENSTOCK_RETURN_IF_ERROR(planning.CheckWanted());
        PENSTOCK_ASSIGN_OR_RETURN(const PipelineEntry entry, Get(name));
        PENSTOCK_ASSIGN_OR_RETURN(recipe, RecipeAgain(entry));
        PipelineLife life = NewLifeOf(name, entry.life, /*again=*/true);
        life.wanted = wanted;
        return builder_.Build(name, life, &recipe, may_rehearse_, &planning);
      });
  if (made.ok()) {
    const std::string step = absl::StrCat((*made)->pipeline().step());
    if ((*made)->journal() != nullptr) {
      LogInfo("a pipeline that had lost a rank is made again, with all of its calls",
              {{"pipeline", name}, {"step", step}});
    } else {
      LogWarning("a pipeline that had lost a rank is made again from its last checkpoint: what came later is lost",
                 {{"pipeline", name}, {"step", step}, {"checkpoint", recipe.from.has_value() ? recipe.from->id : ""}});
    }
  }
  EndBuild(name, std::move(made), std::move(recipe));
}

// With a journal, as after a restart; without one, with the settings of its optimizer as they were at last.
absl::StatusOr<PipelineRecipe> PipelineTable::RecipeAgain(const PipelineEntry& entry) {
  if (!entry.life.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<JournalledPipeline> rows, journal_->Pipelines());
    for (const JournalledPipeline& row : rows) {
      if (row.name == entry.name) return RecipeOf(row);
    }
    return PipelineNotFound(entry.name);
  }
  absl::MutexLock lock(&mu_);
  const Making& making = makings_[entry.name];
  if (making.recipe == nullptr) return entry.error;  // it had no stages elsewhere
  PipelineRecipe recipe = *making.recipe;
  recipe.spec.optimizer = entry.spec.optimizer;
  if (builder_.options().checkpoints->Find(entry.name, making.last_checkpoint).ok()) {
    recipe.from = CheckpointSource{entry.name, making.last_checkpoint};
  }
  return recipe;
}

PipelineEntry PipelineTable::EndBuild(const std::string& name, absl::StatusOr<std::shared_ptr<ServedPipeline>> made,
                                      PipelineRecipe recipe) {
  PipelineEntry ended;
  std::shared_ptr<ServedPipeline> unwanted;
  std::function<void()> deletion;
  bool loading;
  {
    absl::MutexLock lock(&mu_);
    PipelineEntry& entry = entries_.at(name);
    Making& making = makings_[name];
    making.building = false;
    loading = std::exchange(making.loading, false);
    deletion = std::exchange(making.deletion, nullptr);
    entry.planning = nullptr;
    if (recipe.asked.has_value()) entry.spec = *std::move(recipe.asked);
    if (made.ok()) entry.spec.model.program_digest = recipe.spec.model.program_digest;
    if (entry.state == PipelineEntry::State::kDeleting) {
      if (made.ok()) unwanted = *std::move(made);
    } else if (made.ok()) {
      entry.pipeline = *std::move(made);
      entry.rest = {};
      entry.error = absl::OkStatus();
      SetState(entry, draining_ ? PipelineEntry::State::kDraining : PipelineEntry::State::kReady);
      if (draining_) entry.pipeline->StopAccepting();
    } else if (loading) {
      SetState(entry, PipelineEntry::State::kUnloaded);
    } else {
      const bool reforming = entry.state == PipelineEntry::State::kReforming;
      if (reforming && draining_) making.due = true;  // if the drain ends
      entry.error = WithValue(made.status(), "pipeline", name);
      const bool waits = AwaitsGroup(made.status()) || (reforming && draining_);
      SetState(entry, waits ? PipelineEntry::State::kReforming : PipelineEntry::State::kFailed);
    }
    if (loading) {
      creating_.erase(name);
      ended = entry;
    }
  }
  if (!made.ok() && !loading && !IsDraining()) {  // of a load its caller hears
    const bool waits = AwaitsGroup(made.status());
    Log(waits ? LogLevel::kWarning : LogLevel::kError,
        waits ? "a pipeline waits for its group, to be made again" : "a pipeline can't be made again",
        {{"pipeline", name}, {"reason", ReasonOf(made.status())}, {"error", std::string(made.status().message())}});
  }
  if (unwanted != nullptr) {
    deletions_.Post([this, unwanted = std::move(unwanted)]() mutable {
      unwanted->Stop();
      RemoveMetrics(*unwanted);
      unwanted = nullptr;
    });
  }
  if (deletion) deletion();
  LookForLoss(name);
  ReformIfDue(name);
  return ended;
}

// A rank may have been lost while it was made, when there was nothing to stop yet.
void PipelineTable::LookForLoss(const std::string& name) {
  std::shared_ptr<ServedPipeline> pipeline;
  uint64_t number = 0;
  int64_t seen = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return;
    pipeline = found->second.pipeline;
    number = makings_[name].number;
    seen = makings_[name].completions;
  }
  if (pipeline == nullptr) return;
  const absl::Status health = pipeline->pipeline().health();
  // The group may have become complete since the build began: then it is tried at once, and may find that it has not.
  if (!IsRankLost(health)) return;
  losses_->Post([name, number, health, seen](PipelineTable& table) { table.LoseNow(name, number, health, seen); });
}

bool PipelineTable::IsDeleting(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(name);
  return found != entries_.end() && found->second.state == PipelineEntry::State::kDeleting;
}

}  // namespace penstock
