#include "engine/exec/rank_group.h"

#include <ATen/ops/scalar_tensor.h>

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

// Each place has one rank that gives something for it.
void Fill(TiedGradients given, TiedGradients& places) {
  for (size_t group = 0; group < places.size(); ++group) {
    for (size_t use = 0; use < places[group].size(); ++use) {
      at::Tensor& gradient = given.at(group).at(use);
      if (gradient.defined()) places[group][use] = std::move(gradient);
    }
  }
}

}  // namespace

// --- Runs.

std::map<Rank, int> RankGroup::ValuesOf(const Run& run) const {
  std::map<Rank, int> values;
  const bool goes_back = run.spec.purpose != SchedulePurpose::kForwardOnly;
  if (run.spec.keep_outputs && !Here(last_stage())) values[RankOf(last_stage())] += run.micro_batches();
  if (run.spec.input_gradients && goes_back && !Here(0)) values[RankOf(0)] += run.micro_batches();
  return values;
}

std::shared_ptr<const void> RankGroup::Lead(const std::shared_ptr<Run>& run,
                                            const std::shared_ptr<LocalCoordinator>& leader) {
  if (alone()) return nullptr;
  const int64_t id = run->spec.id;
  OpenRun open{.run = run, .leader = leader, .ranks = {}, .values = ValuesOf(*run)};
  for (const auto& [rank, commands] : others_) open.ranks.insert(rank);
  const auto tie = [this, id](const TiedGradients& ties) { Tell([&](RankCommands& rank) { rank.PutTies(id, ties); }); };
  const auto grant = [this, id](const StepDecision& made) { Tell([&](RankCommands& rank) { rank.Grant(id, made); }); };
  leader->Lead({.ranks = static_cast<int>(others_.size()),
                .stop = [this, id] { Tell([&](RankCommands& rank) { rank.Stop(id); }); },
                .tie = tie,
                .grant = grant});
  leader->Hold();  // until Start() has told them all
  if (!open.values.empty()) leader->ExpectValues();
  std::shared_ptr<const void> forget(static_cast<const void*>(this), [this, id](const void*) { Forget(id); });
  absl::MutexLock lock(&mu_);
  open_.emplace(id, std::move(open));
  return forget;
}

void RankGroup::Start(const std::shared_ptr<Run>& run) {
  if (alone()) return own_.Start(run);
  const std::shared_ptr<LocalCoordinator> leader = LeaderOf(run->spec.id);
  const RunOrder order = OrderOf(*run);
  own_.Start(run);
  // From here on the run ends by itself, whatever fails.
  const absl::Status told = Guarded("the start of a run", [&] { StartOthers(*run, order, *leader); });
  if (!told.ok()) leader->Fail(told);
  leader->Leave(/*before_the_end=*/false);  // last: the pipeline may go
}

void RankGroup::StartOthers(const Run& run, const RunOrder& order, LocalCoordinator& leader) {
  const int64_t id = run.spec.id;
  Tell([&](RankCommands& rank) { rank.Start(order); });
  std::map<Rank, absl::Status> lost;
  {
    absl::MutexLock lock(&mu_);
    lost = lost_;
  }
  for (const auto& [rank, why] : lost) GiveUp(rank, id, why);
  SendValues(run, leader);
  if (!leader.Stopped()) return;
  // Values are missing now, and a failure may have been told to ranks that did not know the run yet.
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
    if (!Here(0) && at < run.inputs.size()) send(MessageKind::kInput, 0, m, run.inputs[at]);
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

void RankGroup::End(const Run& run) {
  own_.End(run);
  if (alone()) return;
  Tell([&](RankCommands& rank) { rank.End(run.spec.id); });
  Forget(run.spec.id);
}

void RankGroup::Forget(int64_t run) {
  OpenRun ended;  // goes without the lock
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(run);
  if (found == open_.end()) return;
  ended = std::move(found->second);
  open_.erase(found);
}

// --- Events.

// The coordinator of an open run, which does not end before one Leave() more; null where it is not open.
std::shared_ptr<LocalCoordinator> RankGroup::Hold(int64_t run) const {
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(run);
  if (found == open_.end()) return nullptr;
  found->second.leader->Hold();
  return found->second.leader;
}

// The same; null also where the rank has left it.
std::shared_ptr<LocalCoordinator> RankGroup::Held(Rank rank, int64_t run) const {
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(run);
  if (found == open_.end() || !found->second.ranks.contains(rank)) return nullptr;
  found->second.leader->Hold();
  return found->second.leader;
}

void RankGroup::OnEvent(Rank rank, int64_t run, const std::function<void(LocalCoordinator&)>& work) {
  const std::shared_ptr<LocalCoordinator> leader = Held(rank, run);
  if (leader == nullptr) return;
  const absl::Status done = Guarded("what a rank tells", [&] { work(*leader); });
  if (!done.ok()) leader->Fail(done);
  leader->Leave(/*before_the_end=*/false);
}

std::shared_ptr<LocalCoordinator> RankGroup::LeaderOf(int64_t run) const {
  absl::MutexLock lock(&mu_);
  return open_.at(run).leader;
}

void RankGroup::OnValue(const MessageKey& key) {
  const Rank rank = RankOf(key.stage);
  std::shared_ptr<LocalCoordinator> leader;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(key.run);
    if (found == open_.end() || !found->second.values.contains(rank)) return;
    leader = found->second.leader;
    leader->Hold();
  }
  const absl::Status taken = Guarded("a value of a run", [&] { TakeValue(key, *leader); });
  if (!taken.ok()) {
    leader->Fail(taken);
    GiveUpValues(key.run);
  }
  leader->Leave(/*before_the_end=*/false);
}

void RankGroup::TakeValue(const MessageKey& key, LocalCoordinator& leader) {
  std::optional<ValuesInFlight> message = own_.transport().TryReceive(key);
  if (!message.has_value()) return;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(key.run);
    if (found == open_.end()) return;
    OpenRun& open = found->second;
    std::vector<Batch>& places = key.kind == MessageKind::kOutput ? open.run->outputs : open.run->input_gradient_values;
    const auto still = open.values.find(RankOf(key.stage));
    if (still == open.values.end() || static_cast<size_t>(key.micro_batch) >= places.size()) return;
    places[static_cast<size_t>(key.micro_batch)] = std::move(message->values);
    if (--still->second > 0) return;
    open.values.erase(still);
    if (!open.values.empty()) return;
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

void RankGroup::Failed(Rank rank, int64_t run, const absl::Status& why) {
  // Also of a rank that has left: what it had sent may be refused.
  const std::shared_ptr<LocalCoordinator> leader = Hold(run);
  if (leader == nullptr) return;
  const absl::Status told =
      Guarded("what a rank tells", [&] { leader->Fail(WithValue(why, "rank", absl::StrCat(rank.value()))); });
  if (!told.ok()) leader->Fail(told);
  leader->Leave(/*before_the_end=*/false);
}

void RankGroup::HasTies(Rank rank, int64_t run, TiedGradients own) {
  OnEvent(rank, run, [&](LocalCoordinator& leader) {
    Fill(std::move(own), leader.ties());
    for (const StagePlan& stage : plan_.stages) {
      if (stage.rank == rank) leader.EndTies();
    }
  });
}

void RankGroup::HasNorms(Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) {
  OnEvent(rank, run, [&](LocalCoordinator& leader) {
    Note(run, std::move(measures));
    for (NormsOfStage& of_stage : norms) leader.PutNorms(of_stage.stage, std::move(of_stage.norms));
    for (size_t i = 0; i < norms.size(); ++i) leader.EndNorms();
  });
}

void RankGroup::Note(int64_t id, Measures measures) {
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(id);
  if (found == open_.end()) return;
  Run& run = *found->second.run;
  for (size_t m = 0; m < measures.losses.size() && m < run.made_losses.size(); ++m) {
    run.made_losses[m] = at::scalar_tensor(measures.losses[m], at::kDouble);
  }
  if (measures.metric_sums.size() == run.metric_sums.size()) run.metric_sums = std::move(measures.metric_sums);
}

void RankGroup::Left(Rank rank, int64_t run, bool before_the_end, Measures measures) {
  OnEvent(rank, run, [&](LocalCoordinator& leader) {
    const absl::Status noted = Guarded("the measures of a run", [&] { Note(run, std::move(measures)); });
    if (!noted.ok()) leader.Fail(noted);
    Leave(rank, run, before_the_end);
  });
}

// Once for each rank and run.
void RankGroup::Leave(Rank rank, int64_t run, bool before_the_end) {
  std::shared_ptr<LocalCoordinator> leader;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(run);
    if (found == open_.end() || found->second.ranks.erase(rank) == 0) return;
    leader = found->second.leader;
  }
  // What it has not sent it never will, and of a run that has stopped nothing is wanted.
  if (before_the_end || leader->Stopped()) GiveUpValues(run);
  leader->Leave(before_the_end);
}

// The rank says nothing more of the run.
void RankGroup::GiveUp(Rank rank, int64_t run, const absl::Status& why) {
  std::shared_ptr<LocalCoordinator> leader;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(run);
    if (found == open_.end()) return;
    if (!found->second.ranks.contains(rank) && !found->second.values.contains(rank)) return;
    leader = found->second.leader;
    leader->Hold();
  }
  leader->Fail(why);
  GiveUpValues(run);
  Leave(rank, run, /*before_the_end=*/true);
  leader->Leave(/*before_the_end=*/false);
}

void RankGroup::Lost(Rank rank, const absl::Status& why) {
  std::vector<int64_t> runs;
  {
    absl::MutexLock lock(&mu_);
    lost_.emplace(rank, why);
    for (const auto& [id, open] : open_) runs.push_back(id);
  }
  for (const int64_t run : runs) GiveUp(rank, run, why);
}

void RankGroup::FailRuns(const absl::Status& why) {
  std::vector<std::pair<int64_t, std::shared_ptr<LocalCoordinator>>> runs;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, open] : open_) {
      open.leader->Hold();
      runs.emplace_back(id, open.leader);
    }
  }
  for (const auto& [id, leader] : runs) {
    leader->Fail(why);
    GiveUpValues(id);
    leader->Leave(/*before_the_end=*/false);
  }
}

absl::Status RankGroup::health() const {
  absl::MutexLock lock(&mu_);
  return lost_.empty() ? absl::OkStatus() : lost_.begin()->second;
}

// --- Stages.

// A rank that has not been told what all the others know is as good as lost.
void RankGroup::Tell(const std::function<void(RankCommands&)>& command) const {
  for (const auto& [rank, commands] : others_) {
    const absl::Status told = Guarded("a command", [&, &to = *commands] { command(to); });
    if (!told.ok()) const_cast<RankGroup*>(this)->Lost(rank, told);
  }
}

absl::Status RankGroup::Ask(
    const std::function<void(RankCommands&, std::function<void(absl::Status)>)>& command) const {
  absl::Status first;
  for (const auto& [rank, commands] : others_) {
    absl::Status result;
    absl::Notification told;
    const absl::Status asked = Guarded("a command", [&, &to = *commands] {
      command(to, [&](absl::Status status) {
        result = std::move(status);
        told.Notify();
      });
    });
    if (asked.ok()) devices_->Wait(told);
    if (first.ok()) first = asked.ok() ? std::move(result) : asked;
  }
  return first;
}

template <typename Result>
absl::Status RankGroup::Ask(
    const std::function<void(RankCommands&, std::function<void(absl::StatusOr<Result>)>)>& question,
    const std::function<void(Result)>& take) const {
  return Ask([&](RankCommands& rank, const std::function<void(absl::Status)>& done) {
    question(rank, [&take, done](absl::StatusOr<Result> answer) {
      done(answer.ok() ? Guarded("a rank's answer", [&] { take(*std::move(answer)); }) : answer.status());
    });
  });
}

absl::Status RankGroup::Join(Others others) {
  others_ = std::move(others);
  {
    absl::MutexLock lock(&graphs_->mu);
    graphs_->others = &others_;
  }
  return Ask<FactsOfRank>([](RankCommands& rank, auto done) { rank.ReadFacts(std::move(done)); },
                          [this](FactsOfRank facts) {
                            for (StateOfStage& shapes : facts.shapes) elsewhere_.shapes.push_back(std::move(shapes));
                            elsewhere_.parameters.merge(facts.parameters);
                            elsewhere_.parameter_count += facts.parameter_count;
                          });
}

void RankGroup::Part() {
  {
    absl::MutexLock lock(&graphs_->mu);
    graphs_->others = nullptr;
  }
  others_.clear();
}

std::shared_ptr<const void> RankGroup::KeepGraph(int64_t run) const {
  if (alone()) return nullptr;
  const auto forget = [run, graphs = graphs_](const void*) {
    absl::MutexLock lock(&graphs->mu);
    if (graphs->others == nullptr) return;
    for (const auto& [rank, commands] : *graphs->others) {
      Guarded("the end of a graph", [&, &to = *commands] { to.ForgetGraph(run); }).IgnoreError();
    }
  };
  return {static_cast<const void*>(this), forget};
}

void RankGroup::EndContribution(bool keep, MicroBatchIndex first) {
  own_.EndContribution(keep, first);
  Tell([&](RankCommands& rank) { rank.EndContribution(keep, first); });
}

void RankGroup::DiscardGradients() {
  own_.DiscardGradients();
  Tell([](RankCommands& rank) { rank.DiscardGradients(); });
}

void RankGroup::RestoreTiedGradients(const TiedGradients& ties) {
  own_.RestoreTiedGradients(ties);
  Tell([](RankCommands& rank) { rank.RestoreTiedGradients(); });
}

void RankGroup::SetIdle(StageState state) const {
  own_.SetIdle(state);
  Tell([state](RankCommands& rank) { rank.SetIdle(state); });
}

absl::Status RankGroup::Undo() {
  const absl::Status undone = own_.Undo();
  const absl::Status others = Ask([](RankCommands& rank, auto done) { rank.Undo(std::move(done)); });
  return undone.ok() ? others : undone;
}

absl::StatusOr<NamedTensors> RankGroup::State(bool with_optimizer) const {
  StatesOfStages states = own_.States(with_optimizer);
  PENSTOCK_RETURN_IF_ERROR(Ask<StatesOfStages>(
      [&](RankCommands& rank, auto done) { rank.ReadState(with_optimizer, std::move(done)); },
      [&](StatesOfStages read) { std::move(read.begin(), read.end(), std::back_inserter(states)); }));
  return InModelOrder(std::move(states));
}

absl::StatusOr<NamedTensors> RankGroup::Gradients(TiedGradients places) const {
  own_.ShareTiedGradients(places);
  PENSTOCK_RETURN_IF_ERROR(Ask<TiedGradients>([](RankCommands& rank, auto done) { rank.ReadTies(std::move(done)); },
                                              [&](TiedGradients given) { Fill(std::move(given), places); }));
  StatesOfStages gradients = own_.GradientsOfStages(places);
  PENSTOCK_RETURN_IF_ERROR(Ask<StatesOfStages>(
      [&](RankCommands& rank, auto done) { rank.ReadGradients(places, std::move(done)); },
      [&](StatesOfStages read) { std::move(read.begin(), read.end(), std::back_inserter(gradients)); }));
  return InModelOrder(std::move(gradients));
}

absl::StatusOr<NamedTensors> RankGroup::Accumulated() const {
  PENSTOCK_ASSIGN_OR_RETURN(NamedTensors accumulated, own_.Accumulated());
  PENSTOCK_RETURN_IF_ERROR(Ask<NamedTensors>(
      [](RankCommands& rank, auto done) { rank.ReadAccumulated(std::move(done)); },
      [&](NamedTensors read) { std::move(read.begin(), read.end(), std::back_inserter(accumulated)); }));
  return accumulated;
}

absl::Status RankGroup::SetAccumulated(const NamedTensors& accumulated) {
  PENSTOCK_ASSIGN_OR_RETURN(int64_t taken, own_.TakeAccumulated(accumulated));
  PENSTOCK_RETURN_IF_ERROR(
      Ask<int64_t>([&](RankCommands& rank, auto done) { rank.WriteAccumulated(accumulated, std::move(done)); },
                   [&](int64_t more) { taken += more; }));
  if (taken == static_cast<int64_t>(accumulated.size())) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
               absl::StrCat("what was accumulated must be tensors of this pipeline, got ", accumulated.size(),
                            " of which ", taken, " are"));
}

absl::Status RankGroup::UpdateOptimizer(const OptimizerSpec& spec) {
  PENSTOCK_RETURN_IF_ERROR(own_.UpdateOptimizer(spec));
  return Ask([&](RankCommands& rank, auto done) { rank.UpdateOptimizer(spec, std::move(done)); });
}

absl::Status RankGroup::WriteElsewhere(const NamedTensors& state) {
  return Ask([&](RankCommands& rank, auto done) { rank.WriteState(state, std::move(done)); });
}

NamedTensors RankGroup::Shapes() const {
  StatesOfStages shapes = own_.Facts().shapes;
  shapes.insert(shapes.end(), elsewhere_.shapes.begin(), elsewhere_.shapes.end());
  return InModelOrder(std::move(shapes));
}

std::vector<std::string> RankGroup::ParameterNames() const {
  std::map<int, std::vector<std::string>> by_stage = own_.Facts().parameters;
  by_stage.insert(elsewhere_.parameters.begin(), elsewhere_.parameters.end());
  std::vector<std::string> names;
  for (const auto& [stage, of_stage] : by_stage) names.insert(names.end(), of_stage.begin(), of_stage.end());
  return names;
}

}  // namespace penstock
