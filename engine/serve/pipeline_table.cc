// Creation, retry and drain of pipelines; deletion stands in pipeline_deletion, updates in pipeline_update, publications in pipeline_publishing, unloads and loads in pipeline_unloading, what outlives the process in
// pipeline_recovery, how a pipeline is made in pipeline_builder. Under the one lock each sees what the others have begun.

#include "engine/serve/pipeline_table.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/caller_share.h"
#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/resource_id.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/metrics_registry.h"
#include "engine/plan/planning.h"
#include "engine/serve/pipeline_errors.h"

namespace penstock {
namespace {

std::string NewLife() {
  const HandleId id = RandomHandleId(Epoch(0));
  return absl::StrFormat("%016x", id.low);
}

}  // namespace

PipelineEntry PipelineTable::Present(PipelineEntry entry) {
  if (entry.pipeline != nullptr) entry.spec.optimizer = entry.pipeline->pipeline().optimizer();
  if (entry.state != PipelineEntry::State::kReady) return entry;
  entry.error = entry.pipeline->pipeline().health();
  if (!entry.error.ok()) {
    entry.state = IsRankLost(entry.error) ? PipelineEntry::State::kReforming : PipelineEntry::State::kFailed;
  }
  return entry;
}

PipelineTable::PipelineTable(Options options)
    : max_pipelines_(options.max_pipelines),
      journal_(options.journal),
      fingerprint_(std::move(options.fingerprint)),
      builder_(std::move(options.builder)),
      log_({}, TakeMemoryAnyway(builder_.options().memory, {.kind = MemoryClass::kAnswers}, 0)),
      creations_("ps-creations", builder_.options().timers, builder_.options().clock),
      plans_(builder_.options().timers, builder_.options().clock) {}

PipelineTable::~PipelineTable() { Close(); }

absl::Duration PipelineTable::TurnOf(const PipelineSpec& spec) {
  return absl::Seconds(spec.limits.planning_seconds) + kPatience;
}

bool PipelineTable::SpansRanks(const penstock::Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const StagePlan& stage) { return stage.rank != Rank(0); });
}

// --- Retries.

PipelineTable::JoinPointer PipelineTable::Begin(const RequestKey& key, const CallContext& context, EntryCallback done,
                                                const Start& start, const std::string& creates) {
  JoinedCall<PipelineEntry> call;
  std::optional<Standing> standing;
  {
    absl::MutexLock lock(&mu_);
    call = JoinOrAnswer<PipelineEntry>(log_, key, context.payload_digest, builder_.options().clock->NowNanos(), done,
                                       [&] { return start(&standing); });
    if (call.first != nullptr && !creates.empty()) creating_[creates] = call.first;
    const auto remember = [this, key, digest = context.payload_digest](const PipelineEntry& entry)
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                const auto kept = std::make_shared<Joined<PipelineEntry>>();
                                kept->answer = entry;
                                kept->answer->pipeline = nullptr;  // an unload or a deletion waits until nobody has it
                                log_.Record(key, digest, kept, builder_.options().clock->NowNanos());
                              };
    if (standing.has_value() && standing->creation != nullptr && standing->remember) {
      standing->creation->callbacks.push_back([this, remember, done = std::move(done)](auto answer) {
        if (answer.ok()) {
          absl::MutexLock lock(&mu_);
          remember(*answer);
        }
        done(std::move(answer));
      });
      call.now.reset();
    } else if (standing.has_value() && standing->creation != nullptr) {
      standing->creation->callbacks.push_back(std::move(done));
      call.now.reset();
    } else if (standing.has_value()) {
      if (standing->remember) remember(standing->entry);
      call.now = std::move(standing->entry);
    }
    // A retry finds the pipeline of that name as it is now, as after a restart.
    if (!standing.has_value() && call.now.has_value() && call.now->ok() && !(*call.now)->name.empty()) {
      const auto found = entries_.find((*call.now)->name);
      if (found != entries_.end()) {
        call.now = Present(found->second);
      } else {
        call.now = PipelineNotFound((*call.now)->name);
      }
    }
  }
  if (call.now.has_value()) done(*std::move(call.now));
  return call.first;
}

void PipelineTable::Answer(const RequestKey& key, const JoinPointer& join, absl::StatusOr<PipelineEntry> answer) {
  std::shared_ptr<ServedPipeline> pipeline;
  if (answer.ok()) pipeline = std::move(answer->pipeline);
  const absl::Status error = answer.status();
  std::vector<EntryCallback> callbacks;
  {
    absl::MutexLock lock(&mu_);
    callbacks = Settle(log_, key, *join, std::move(answer));
  }
  // The last one takes the pipeline: this thread keeps nothing that a deletion would wait for.
  TellAll("the answer of a pipeline", callbacks, [&](bool last) -> absl::StatusOr<PipelineEntry> {
    if (!error.ok()) return error;
    PipelineEntry entry = *join->answer;
    entry.pipeline = last ? std::move(pipeline) : pipeline;
    return entry;
  });
}

// --- Creation.

bool PipelineTable::IsDraining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

void PipelineTable::SetState(PipelineEntry& entry, PipelineEntry::State state) {
  entry.state = state;
  entry.version = ++versions_;
}

absl::StatusOr<PipelineTable::Standing> PipelineTable::Existing(const PipelineEntry& entry,
                                                                const AcceptExisting& accept) const {
  const std::string& name = entry.name;
  if (accept == nullptr) {
    return PipelineError(absl::StatusCode::kAlreadyExists, "PIPELINE_EXISTS",
                         absl::StrCat("pipeline ", name, " exists"), name);
  }
  if (entry.state == PipelineEntry::State::kDeleting) {
    return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                         absl::StrCat("pipeline ", name, " is being deleted"), name);
  }
  if (entry.state == PipelineEntry::State::kUnloading) return PipelineUnloading(name);
  if (entry.state == PipelineEntry::State::kUnloaded) return PipelineUnloaded(name);
  const PipelineEntry present = Present(entry);
  if (const absl::Status accepted = accept(present); !accepted.ok()) return WithValue(accepted, "pipeline", name);
  const auto creation = creating_.find(name);
  return Standing{creation == creating_.end() ? nullptr : creation->second, present};
}

absl::Status PipelineTable::CheckRoom(const std::string& caller, const std::string& name) const {
  const auto all = static_cast<int64_t>(entries_.size());
  const int64_t own =
      std::count_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.second.caller == caller; });
  const int64_t share = CallerShare(max_pipelines_, /*others=*/true);
  if (all < max_pipelines_ && (own == all || own < share)) return absl::OkStatus();
  const int64_t limit = all < max_pipelines_ ? share : max_pipelines_;
  const char* const whose = all < max_pipelines_ ? " of one caller may exist while another has some" : " may exist";
  return WithValue(PipelineError(absl::StatusCode::kResourceExhausted, "CALLER_QUOTA",
                                 absl::StrCat("at most ", limit, " pipelines", whose, "; delete one"), name),
                   "limit_value", std::to_string(limit));
}

void PipelineTable::Create(CallContext context, std::string name, PipelineRecipe recipe, AcceptExisting accept,
                           CreateCallback done) {
  const RequestKey key{context.caller, "CreatePipeline", context.request_id};
  recipe.caller = context.caller;
  const auto planning = std::make_shared<Planning>(builder_.options().clock, recipe.spec.limits.planning_seconds,
                                                   [this] { return IsDraining(); });
  const Start start = [&](std::optional<Standing>* standing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    if (!IsResourceId(name)) {
      return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
                   "a pipeline's identifier has 1 to 63 of a-z, 0-9, _ and -, begins with a letter and ends with none "
                   "of _ and -")
          .With("field", "pipeline_id")
          .With("value", Shortened(name));
    }
    if (draining_) return TableDraining();
    if (const auto found = entries_.find(name); found != entries_.end()) {
      PENSTOCK_ASSIGN_OR_RETURN(*standing, Existing(found->second, accept));
      return absl::AlreadyExistsError("it stands");
    }
    PENSTOCK_RETURN_IF_ERROR(CheckRoom(recipe.caller, name));
    PipelineEntry entry{.name = name, .spec = recipe.spec, .caller = recipe.caller};
    entry.spec.sample = nullptr;  // it is only measured with
    entry.create_time = builder_.options().clock->WallNow();
    entry.planning = planning;
    SetState(entry, PipelineEntry::State::kCreating);
    creating_.emplace(name, nullptr);  // Begin() sets it
    absl::Cleanup undo = [&] {
      mu_.AssertHeld();
      creating_.erase(name);
    };
    entries_.emplace(name, std::move(entry));
    std::move(undo).Cancel();
    return absl::OkStatus();
  };
  const absl::StatusOr<bool> met = MetBefore(key, context.payload_digest);
  if (!met.ok()) return done(met.status());
  if (*met) return done(Get(name));
  const JoinPointer join = Begin(key, context, std::move(done), start, name);
  if (join == nullptr) return;
  const absl::Status posted = Guarded("the creation of a pipeline", [&] {
    creations_.Post([this, key, join, name, planning, digest = context.payload_digest, recipe = std::move(recipe)] {
      creations_.HoldTurn(TurnOf(recipe.spec));
      auto made =
          Guarded("the creation of a pipeline", [&] { return CreateNow(name, key, digest, recipe, planning.get()); });
      creations_.HoldTurn(absl::InfiniteDuration());
      Answer(key, join, std::move(made));
    });
  });
  if (posted.ok()) return;
  {
    absl::MutexLock lock(&mu_);
    creating_.erase(name);
    entries_.erase(name);
    makings_.erase(name);
  }
  Answer(key, join, posted);
}

absl::StatusOr<PipelineEntry> PipelineTable::CreateNow(const std::string& name, const RequestKey& key,
                                                       const std::string& payload_digest, PipelineRecipe recipe,
                                                       Planning* planning) {
  const std::string life = journal_ == nullptr ? "" : NewLife();
  // All that can fail, copies too, before the entry changes.
  absl::StatusOr<PipelineEntry> made = Guarded("the creation of a pipeline", [&]() -> absl::StatusOr<PipelineEntry> {
    if (IsDraining()) return TableDraining();
    PENSTOCK_ASSIGN_OR_RETURN(PipelineEntry ready, Get(name));
    ready.planning = nullptr;
    ready.life = life;
    const auto asked = std::make_shared<const PipelineRecipe>(recipe);
    PENSTOCK_ASSIGN_OR_RETURN(ready.pipeline, builder_.Build(name, NewLifeOf(name, ready.life, /*again=*/false),
                                                             &recipe, may_rehearse_, planning));
    if (life.empty() && SpansRanks(ready.pipeline->pipeline().plan())) {
      absl::MutexLock lock(&mu_);
      makings_[name].recipe = asked;
    }
    absl::Cleanup unlist = [&] { RemoveMetrics(*ready.pipeline); };
    ready.spec.model.program_digest = recipe.spec.model.program_digest;
    PENSTOCK_RETURN_IF_ERROR(RecordCreation(key, payload_digest, ready.life, recipe, ready));
    std::move(unlist).Cancel();
    return ready;
  });
  {
    absl::MutexLock lock(&mu_);
    creating_.erase(name);
    PipelineEntry& entry = entries_.at(name);
    if (made.ok()) {
      entry.planning = nullptr;
      entry.pipeline = made->pipeline;
      entry.life = made->life;
      entry.spec.model.program_digest = std::move(recipe.spec.model.program_digest);
      SetState(entry, PipelineEntry::State::kReady);
      made->state = entry.state;
      made->version = entry.version;
      if (draining_) made->pipeline->StopAccepting();  // it was made while the server began to stop
    } else {
      if (draining_) made = TableDraining();  // its planning was cut short
      entries_.erase(name);
      makings_.erase(name);
    }
  }
  if (!made.ok()) {
    if (!life.empty()) {
      RealFileSystem()->RemoveAll(builder_.JournalFolder(life)).IgnoreError();  // else the next start does
      const std::shared_ptr<CheckpointFolder> folder = builder_.options().checkpoints->FindFolder(name);
      if (folder != nullptr) AutomaticCheckpoints::RemoveAll(*folder, life);
    }
    LogWarning(
        "pipeline not created",
        {{"pipeline", name}, {"reason", ReasonOf(made.status())}, {"error", std::string(made.status().message())}});
    const absl::Status error = WithValue(made.status(), "pipeline", name);
    return AwaitsGroup(error) ? WithValue(error, "retry_after_ms", "1000") : error;
  }
  LookForLoss(name);
  Guarded("the log of a new pipeline",
          [&] {  // it is made, whatever becomes of the line
            const Pipeline& engine = made->pipeline->pipeline();
            LogInfo("pipeline created", {{"pipeline", name},
                                         {"stages", std::to_string(engine.plan().stages.size())},
                                         {"parameters", std::to_string(engine.parameter_count())}});
          })
      .IgnoreError();
  return made;
}

void PipelineTable::Plan(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel,
                         PlanCallback done) {
  LookForPlans<penstock::Plan>(caller, std::move(spec), std::move(cancel), std::move(done), &PipelineBuilder::FindPlan);
}

void PipelineTable::Search(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel,
                           SearchCallback done) {
  LookForPlans<PlanSearch>(caller, std::move(spec), std::move(cancel), std::move(done), &PipelineBuilder::SearchPlans);
}

template <typename Found>
void PipelineTable::LookForPlans(const std::string& caller, PipelineSpec spec, std::shared_ptr<CancelToken> cancel,
                                 std::function<void(absl::StatusOr<Found>)> done, PlanLook<Found> look) {
  auto search = [this, caller, cancel, look, spec = std::move(spec)]() mutable -> absl::StatusOr<Found> {
    Planning planning(builder_.options().clock, spec.limits.planning_seconds,
                      [this, cancel] { return cancel->cancelled() || IsDraining(); });
    PENSTOCK_RETURN_IF_ERROR(planning.CheckWanted());  // it has waited
    plans_.HoldTurn(TurnOf(spec));
    return (builder_.*look)(caller, std::move(spec), may_rehearse_, &planning);
  };
  // Under no lock: searches that were given up end here.
  const absl::Status refused =
      IsDraining() ? TableDraining() : plans_.Post(caller, cancel, [this, search, done]() mutable {
        absl::StatusOr<Found> found = Guarded("a search for plans", search);
        if (!found.ok() && IsDraining()) found = TableDraining();  // it was cut short
        done(std::move(found));
      });
  if (!refused.ok()) done(refused);
}

// --- Looking up.

absl::StatusOr<PipelineEntry> PipelineTable::Get(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  auto found = entries_.find(name);
  if (found == entries_.end()) return PipelineNotFound(name);
  return Present(found->second);
}

absl::StatusOr<std::shared_ptr<ServedPipeline>> PipelineTable::Find(const std::string& name) const {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineEntry entry, Get(name));
  if (entry.pipeline == nullptr && entry.state == PipelineEntry::State::kFailed) return entry.error;
  if (entry.state == PipelineEntry::State::kReforming) return PipelineReforming(name);
  if (entry.state == PipelineEntry::State::kUnloaded) return PipelineUnloaded(name);
  if (entry.state == PipelineEntry::State::kUnloading) return PipelineUnloading(name);
  if (entry.pipeline == nullptr && !entry.life.empty() && entry.state == PipelineEntry::State::kCreating) {
    return PipelineError(absl::StatusCode::kUnavailable, "STARTING",
                         absl::StrCat("pipeline ", name, " is being made again, after a restart or an unload"), name);
  }
  if (entry.pipeline == nullptr || entry.state == PipelineEntry::State::kDeleting) {
    return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                         entry.pipeline == nullptr ? absl::StrCat("pipeline ", name, " is being created")
                                                   : absl::StrCat("pipeline ", name, " is being deleted"),
                         name);
  }
  return std::move(entry.pipeline);
}

std::vector<PipelineEntry> PipelineTable::List(const std::string& after, int limit) const {
  absl::MutexLock lock(&mu_);
  std::vector<PipelineEntry> list;
  for (auto it = entries_.upper_bound(after); it != entries_.end() && static_cast<int>(list.size()) < limit; ++it) {
    list.push_back(Present(it->second));
  }
  return list;
}

std::vector<std::shared_ptr<ServedPipeline>> PipelineTable::Live(bool deleting_too) const {
  absl::MutexLock lock(&mu_);
  std::vector<std::shared_ptr<ServedPipeline>> live;
  for (const auto& [name, entry] : entries_) {
    // One that is being unloaded saves itself.
    const bool deleting =
        entry.state == PipelineEntry::State::kDeleting || entry.state == PipelineEntry::State::kUnloading;
    if (entry.pipeline != nullptr && (deleting_too || !deleting)) live.push_back(entry.pipeline);
  }
  return live;
}

// --- The end.

void PipelineTable::RemoveMetrics(const ServedPipeline& pipeline) const {
  if (builder_.options().metrics == nullptr || pipeline.metrics() == nullptr) return;
  builder_.options().metrics->RemovePipeline(*pipeline.metrics());
}

void PipelineTable::Drain(std::function<void()> done) {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
    for (auto& [name, entry] : entries_) {
      if (entry.state == PipelineEntry::State::kReady) SetState(entry, PipelineEntry::State::kDraining);
    }
  }
  const std::vector<std::shared_ptr<ServedPipeline>> live = Live();
  const auto left = std::make_shared<std::atomic<size_t>>(live.size() + 1);
  const auto one = [left, done = std::move(done)] {
    if (left->fetch_sub(1) == 1) done();
  };
  for (const std::shared_ptr<ServedPipeline>& pipeline : live) pipeline->Drain(/*force=*/false, one);
  one();
}

void PipelineTable::SaveLast(ServedPipeline::LastSave save, std::shared_ptr<CancelToken> cancel,
                             std::function<void(LastSaves)> done) {
  SaveAllLast(Live(/*deleting_too=*/false), save, std::move(cancel),
              std::move(done));  // nobody wants what is being deleted
}

absl::Status PipelineTable::CheckEmptyJournals() const {
  for (const PipelineEntry& entry : List("", std::numeric_limits<int>::max())) {
    if (journal_ == nullptr || entry.state == PipelineEntry::State::kDeleting) continue;
    absl::Status kept = entry.error;
    if (kept.ok() && entry.pipeline != nullptr) kept = entry.pipeline->CheckEmptyJournal();
    if (kept.ok()) continue;
    return PipelineError(absl::StatusCode::kFailedPrecondition, ReasonOf(kept),
                         absl::StrCat("the journal of pipeline ", entry.name, " can't be emptied: ", kept.message()),
                         entry.name);
  }
  return absl::OkStatus();
}

void PipelineTable::Resume() {
  std::vector<std::string> names;
  {
    absl::MutexLock lock(&mu_);
    draining_ = false;
    for (auto& [name, entry] : entries_) {
      if (entry.state == PipelineEntry::State::kDraining) SetState(entry, PipelineEntry::State::kReady);
      if (entry.pipeline != nullptr) entry.pipeline->Resume();
      names.push_back(name);
    }
  }
  for (const std::string& name : names) ReformIfDue(name);  // what came meanwhile
}

void PipelineTable::Close() {
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    draining_ = true;
  }
  // First what runs: a deletion under way waits for its pipeline, and then needs its thread once more.
  for (const std::shared_ptr<ServedPipeline>& pipeline : Live()) pipeline->Stop();
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  creations_.Close();
  losses_->Close();
  deletions_.Close();
  plans_.Close();
  for (const std::shared_ptr<ServedPipeline>& pipeline : Live()) {  // one that was being made meanwhile, too
    pipeline->Stop();
    builder_.options().handles->ReleasePipeline(pipeline->name());
    RemoveMetrics(*pipeline);
  }
  std::map<std::string, PipelineEntry> gone;  // destroyed outside of the lock
  absl::MutexLock lock(&mu_);
  gone.swap(entries_);
}

}  // namespace penstock
