#include "engine/exec/rank_group.h"

#include <ATen/ops/scalar_tensor.h>

#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

// Which rank an error says is lost. May throw.
std::optional<Rank> LostRank(const absl::Status& why) {
  if (ReasonOf(why) != "RANK_LOST") return std::nullopt;
  return RankNamedIn(why);
}

}  // namespace

// --- Runs.

// Keeps an open run from its end. Empty: it has ended, or was not open.
class RankGroup::Hold {
 public:
  Hold() = default;
  explicit Hold(const std::shared_ptr<LocalCoordinator>& leader) : leader_(leader->Hold() ? leader : nullptr) {}
  Hold(Hold&&) = default;
  Hold& operator=(Hold&&) = delete;
  ~Hold() {
    if (leader_ != nullptr) leader_->Leave(/*before_the_end=*/false);  // the pipeline may go
  }

  explicit operator bool() const { return leader_ != nullptr; }
  LocalCoordinator& operator*() const { return *leader_; }
  LocalCoordinator* operator->() const { return leader_.get(); }

 private:
  std::shared_ptr<LocalCoordinator> leader_;
};

RankGroup::Hold RankGroup::HoldOf(int64_t run) const {
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(run);
  return found == open_.end() ? Hold() : Hold(found->second.leader);
}

int64_t RankGroup::NextOpen(int64_t run) const {
  absl::MutexLock lock(&mu_);
  const auto next = open_.upper_bound(run);
  return next == open_.end() ? 0 : next->first;
}

std::set<RankGroup::ValueName> RankGroup::ValuesOf(const Run& run) const {
  std::set<ValueName> values;
  const bool goes_back = run.spec.purpose != SchedulePurpose::kForwardOnly;
  for (int m = 0; m < run.micro_batches(); ++m) {
    if (run.spec.keep_outputs && !Here(last_stage())) values.emplace(MessageKind::kOutput, m);
    if (run.spec.input_gradients && goes_back && !Here(0)) values.emplace(MessageKind::kInputGradient, m);
  }
  return values;
}

std::shared_ptr<const void> RankGroup::Lead(const std::shared_ptr<Run>& run,
                                            const std::shared_ptr<LocalCoordinator>& leader) {
  if (alone()) return nullptr;
  const int64_t id = run->spec.id;
  OpenRun open{.run = run, .leader = leader, .ranks = {}, .values = ValuesOf(*run)};
  for (const auto& [rank, commands] : others_) open.ranks.try_emplace(rank);
  const auto tie = [this, id](const TiedGradients& ties) { Tell([&](RankCommands& rank) { rank.PutTies(id, ties); }); };
  const auto grant = [this, id](const StepDecision& made) { Tell([&](RankCommands& rank) { rank.Grant(id, made); }); };
  leader->Lead({.ranks = static_cast<int>(others_.size()),
                .stop = [this, id] { Tell([id](RankCommands& rank) { rank.Stop(id); }); },
                .tie = tie,
                .grant = grant,
                .due = [this, id] { Tell([id](RankCommands& rank) { rank.BeDue(id); }); }});
  if (!open.values.empty()) leader->ExpectValues();
  std::shared_ptr<const void> forget(static_cast<const void*>(this), [this, id](const void*) { Forget(id); });
  absl::MutexLock lock(&mu_);
  open_.emplace(id, std::move(open));
  lanes_elsewhere_.Open(run->spec.inference);
  return forget;
}

void RankGroup::Start(const std::shared_ptr<Run>& run) {
  if (alone()) return own_.Start(run);
  const RunOrder order = OrderOf(*run);
  const Hold leader = HoldOf(run->spec.id);
  own_.Start(run);
  // From here on the run ends by itself, whatever fails.
  {
    absl::MutexLock lock(&mu_);
    if (const auto found = open_.find(run->spec.id); found != open_.end()) found->second.started = true;
  }
  const absl::Status told = Guarded("the start of a run", [&] { StartOthers(*run, order, *leader); });
  if (!told.ok()) leader->Fail(told);
}

void RankGroup::StartOthers(const Run& run, const RunOrder& order, LocalCoordinator& leader) {
  const int64_t id = run.spec.id;
  Tell([&](RankCommands& rank) { rank.Start(order); });
  for (const auto& [rank, commands] : others_) {
    if (const absl::Status lost = StatusOf(rank); !lost.ok()) GiveUp(rank, id, lost);
  }
  SendValues(run, leader);
  // What was told to ranks that did not know the run yet.
  if (run.ticket != nullptr && run.ticket->due) Tell([id](RankCommands& rank) { rank.BeDue(id); });
  if (!leader.Stopped()) return;
  Tell([id](RankCommands& rank) { rank.Stop(id); });
  own_.WakeAll();
}

RunOrder RankGroup::OrderOf(const Run& run) const {
  RunOrder order{.spec = run.spec, .loss = run.own_loss, .metrics = run.metric_names};
  for (const LossContext& loss : run.losses) order.shares.push_back(loss.share);
  if (!run.losses.empty()) {
    order.output = run.losses.front().output;
    order.targets = run.losses.front().target.defined();
  }
  if (run.ticket != nullptr) order.order = run.ticket->order;
  return order;
}

void RankGroup::SendValues(const Run& run, LocalCoordinator& leader) {
  const auto send = [&](MessageKind kind, int stage, int micro_batch, const Batch& values) {
    const MessageKey key{.run = run.spec.id, .kind = kind, .stage = stage, .micro_batch = micro_batch};
    absl::Status sent = Guarded("the inputs of a run", [&] { return own_.transport().Send(key, values); });
    if (!sent.ok()) leader.Fail(std::move(sent));
  };
  for (int m = 0; m < run.micro_batches() && !leader.Stopped(); ++m) {
    const auto at = static_cast<size_t>(m);
    if (!Here(0) && at < run.inputs.front().size()) send(MessageKind::kInput, 0, m, run.inputs.front()[at]);
    if (Here(last_stage())) continue;
    if (at < run.losses.size() && run.losses[at].target.defined()) {
      const LossContext& loss = run.losses[at];
      ValueList values = {Value(loss.target)};
      if (loss.weights.defined()) values.push_back(Value(loss.weights));
      send(MessageKind::kTarget, last_stage(), m, Batch::Tuple(std::move(values)));
    }
    if (at < run.output_gradients.size()) {
      send(MessageKind::kOutputGradient, last_stage(), m, run.output_gradients[at]);
    }
  }
}

void RankGroup::ClaimTurns(int64_t now) {
  for (int64_t run = NextOpen(0); run != 0; run = NextOpen(run)) {
    if (const Hold leader = HoldOf(run)) leader->BeDue(now);
  }
}

void RankGroup::End(const Run& run) {
  const absl::Cleanup everywhere = [this, id = run.spec.id] {
    if (alone()) return;
    Tell([id](RankCommands& rank) { rank.End(id); });
    Forget(id);
  };
  own_.End(run);
}

void RankGroup::Forget(int64_t run) {
  OpenRun ended;  // goes without the lock
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(run);
  if (found == open_.end()) return;
  ended = std::move(found->second);
  open_.erase(found);
  for (const auto& [rank, told] : ended.ranks) {
    if (!told.left) lanes_elsewhere_.Leave(rank);
  }
  lanes_elsewhere_.End(ended.run->spec.inference);
}

// --- Values.

void RankGroup::OnValue(const MessageKey& key) {
  const Hold leader = HoldOf(key.run);
  if (!leader) return;
  const absl::Status taken = Guarded("a value of a run", [&] { TakeValue(key, *leader); });
  if (taken.ok()) return;
  leader->Fail(taken);
  GiveUpValues(key.run);
}

// Only those that were asked for count, each once.
void RankGroup::TakeValue(const MessageKey& key, LocalCoordinator& leader) {
  std::optional<ValuesInFlight> message = own_.transport().TryReceive(key);
  if (!message.has_value() || key.stage != (key.kind == MessageKind::kOutput ? last_stage() : 0)) return;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(key.run);
    if (found == open_.end() || found->second.values.erase({key.kind, key.micro_batch}) == 0) return;
    Run& run = *found->second.run;
    std::vector<Batch>& places =
        key.kind == MessageKind::kOutput ? run.outputs.back() : run.input_gradient_values.front();
    places[key.micro_batch] = std::move(message->values);
    if (!found->second.values.empty()) return;
  }
  leader.EndValues();
}

// The run has failed, and they may never come.
void RankGroup::GiveUpValues(int64_t run) {
  std::shared_ptr<LocalCoordinator> leader;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(run);
    if (found == open_.end() || found->second.values.empty()) return;
    found->second.values.clear();
    leader = found->second.leader;
  }
  leader->Leave(/*before_the_end=*/true);
}

// --- Events.

void RankGroup::Failed(Rank rank, int64_t run, const absl::Status& why) {
  const Hold leader = HoldOf(run);  // also where the rank has left: what it had sent may be refused
  if (!leader) return;
  const absl::Status told = Guarded("what a rank tells", [&] { leader->Fail(ToldBy(rank, why)); });
  if (!told.ok()) leader->Fail(told);
}

void RankGroup::HasTies(Rank rank, int64_t run, TiedGradients own) {
  const Hold leader = HoldOf(run);
  if (!leader) return;
  const absl::Status done = Guarded("what a rank tells", [&]() -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Run> of, Hear(rank, run, &Told::ties));
    PENSTOCK_RETURN_IF_ERROR(CheckTies(rank, *of, own));
    PutTiedGradients(std::move(own), leader->ties());
    for (const StagePlan& stage : plan_.stages) {
      if (stage.rank == rank) leader->EndTies();
    }
    return absl::OkStatus();
  });
  if (!done.ok()) Failed(rank, run, done);
}

void RankGroup::HasNorms(Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) {
  const Hold leader = HoldOf(run);
  if (!leader) return;
  const absl::Status done = Guarded("what a rank tells", [&]() -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<Run> of, Hear(rank, run, &Told::norms));
    PENSTOCK_RETURN_IF_ERROR(CheckStages(rank, *of, norms));
    PENSTOCK_RETURN_IF_ERROR(CheckMeasures(rank, *of, measures, /*with_norms=*/true));
    Note(*of, std::move(measures));
    for (NormsOfStage& of_stage : norms) leader->PutNorms(of_stage.stage, std::move(of_stage.norms));
    for (size_t i = 0; i < norms.size(); ++i) leader->EndNorms();
    return absl::OkStatus();
  });
  if (!done.ok()) Failed(rank, run, done);
}

void RankGroup::Note(Run& run, Measures measures) {
  for (size_t m = 0; m < measures.losses.size(); ++m) {
    run.made_losses[m] = at::scalar_tensor(measures.losses[m], at::kDouble);
  }
  if (!measures.metric_sums.empty()) run.metric_sums = std::move(measures.metric_sums);
}

void RankGroup::Left(Rank rank, int64_t run, bool before_the_end, Measures measures) {
  const Hold leader = HoldOf(run);
  if (!leader) return;
  const absl::StatusOr<std::shared_ptr<Run>> of =
      Guarded("what a rank tells", [&] { return Hear(rank, run, nullptr); });
  if (!of.ok()) return Failed(rank, run, of.status());
  const absl::Status noted = Guarded("the measures of a run", [&]() -> absl::Status {
    {
      absl::MutexLock lock(&mu_);
      lanes_elsewhere_.Take(rank, measures.lanes);
    }
    if (!before_the_end) {
      if ((*of)->spec.Steps() && Hear(rank, run, &Told::norms).ok()) {  // others would wait for them
        return BadRankMessage("left.before_the_end", "must be set where norms were not told", "false");
      }
      PENSTOCK_RETURN_IF_ERROR(CheckMeasures(rank, **of, measures, /*with_norms=*/false));
      Note(**of, std::move(measures));
    } else if (!leader->Stopped()) {
      return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
                   absl::StrCat("rank ", rank.value(), " had no memory to say why it has left a run"));
    }
    return absl::OkStatus();
  });
  if (!noted.ok()) Failed(rank, run, noted);
  Leave(rank, run, before_the_end);
}

// Once for each rank and run.
void RankGroup::Leave(Rank rank, int64_t run, bool before_the_end) {
  std::shared_ptr<LocalCoordinator> leader;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(run);
    if (found == open_.end()) return;
    const auto of_rank = found->second.ranks.find(rank);
    if (of_rank == found->second.ranks.end() || std::exchange(of_rank->second.left, true)) return;
    leader = found->second.leader;
    lanes_elsewhere_.Leave(rank);
  }
  // What it has not sent it never will, and of a run that has stopped nothing is wanted.
  if (before_the_end || leader->Stopped()) GiveUpValues(run);
  leader->Leave(before_the_end);
}

// The rank says nothing more of the run, and what it has sent may not come.
void RankGroup::GiveUp(Rank rank, int64_t run, const absl::Status& why) {
  const Hold leader = HoldOf(run);
  if (!leader) return;
  leader->Fail(why);
  GiveUpValues(run);
  Leave(rank, run, /*before_the_end=*/true);
}

void RankGroup::Lost(Rank rank, const absl::Status& cause) {
  absl::Status why = cause;
  if (!absl::IsUnavailable(cause)) {
    why = lost_untold_;
    Guarded("what is told of a lost rank", [&] {
      why = Error(absl::StatusCode::kUnavailable, "RANK_LOST",
                  absl::StrCat("rank ", rank.value(), " is lost: ", cause.message()))
                .With("rank", absl::StrCat(rank.value()));
    }).IgnoreError();
  }
  {
    absl::MutexLock lock(&mu_);
    absl::Status& known = lost_[rank];  // takes no memory: all ranks are there
    if (!known.ok()) return;
    known = why;
  }
  for (int64_t run = NextOpen(0); run != 0; run = NextOpen(run)) GiveUp(rank, run, why);
  if (on_rank_lost_) Guarded("what is told of a lost rank", [&] { on_rank_lost_(rank, why); }).IgnoreError();
}

void RankGroup::FailRuns(const absl::Status& why) {
  std::optional<Rank> lost;
  Guarded("a failure between ranks", [&] { lost = LostRank(why); }).IgnoreError();
  if (lost.has_value()) return Lost(*lost, why);
  for (int64_t run = NextOpen(0); run != 0; run = NextOpen(run)) {
    const Hold leader = HoldOf(run);
    if (!leader) continue;
    leader->Fail(why);
    GiveUpValues(run);
  }
}

absl::Status RankGroup::StatusOf(Rank rank) const {
  absl::MutexLock lock(&mu_);
  const auto found = lost_.find(rank);
  return found == lost_.end() ? absl::OkStatus() : found->second;
}

absl::Status RankGroup::health() const {
  absl::MutexLock lock(&mu_);
  for (const auto& [rank, status] : lost_) PENSTOCK_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

// A rank that has not been told what all the others know is as good as lost.
void RankGroup::Tell(absl::FunctionRef<void(RankCommands&)> command) const {
  for (const auto& [rank, commands] : others_) {
    const absl::Status told = Guarded("a command", [&, &to = *commands] { command(to); });
    if (!told.ok()) const_cast<RankGroup*>(this)->Lost(rank, told);
  }
}

}  // namespace penstock
