// What the leader asks all ranks of their stages, between runs. rank_group.cc has the runs.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/exec/rank_group.h"
#include "engine/exec/tied_parameters.h"

namespace penstock {

absl::Status RankGroup::Ask(
    const std::function<void(Rank, RankCommands&, std::function<void(absl::Status)>)>& command) const {
  absl::Status first;
  for (const auto& [rank, commands] : others_) {
    absl::Status result;
    absl::Notification told;
    const absl::Status asked = Guarded("a command", [&, rank = rank, &to = *commands] {
      command(rank, to, [&](absl::Status status) {
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
    const std::function<void(Rank, RankCommands&, std::function<void(absl::StatusOr<Result>)>)>& question,
    const std::function<void(Rank, Result)>& take) const {
  return Ask([&](Rank rank, RankCommands& to, const std::function<void(absl::Status)>& done) {
    question(rank, to, [&take, rank, done](absl::StatusOr<Result> answer) {
      done(answer.ok() ? Guarded("a rank's answer", [&] { take(rank, *std::move(answer)); }) : answer.status());
    });
  });
}

absl::Status RankGroup::Join(Others others) {
  others_ = std::move(others);
  {
    absl::MutexLock lock(&graphs_->mu);
    graphs_->others = &others_;
  }
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [rank, commands] : others_) lost_.try_emplace(rank);
    for (const auto& [rank, commands] : others_) lanes_elsewhere_.Join(rank);
  }
  PENSTOCK_RETURN_IF_ERROR(Ask<FactsOfRank>([](Rank, RankCommands& to, auto done) { to.ReadFacts(std::move(done)); },
                                            [this](Rank rank, FactsOfRank facts) {
                                              for (const NamedTensor& entry : InModelOrder(facts.shapes))
                                                state_of_rank_[rank].insert(entry.name);
                                              for (StateOfStage& shapes : facts.shapes)
                                                elsewhere_.shapes.push_back(std::move(shapes));
                                              elsewhere_.parameters.merge(facts.parameters);
                                              elsewhere_.parameter_count += facts.parameter_count;
                                              absl::MutexLock lock(&mu_);
                                              lanes_elsewhere_.Take(rank, facts.lanes);
                                            }));
  const NamedTensors shapes = Shapes();
  for (const TiedPlace& tied : tied_) {
    const auto shape =
        std::find_if(shapes.begin(), shapes.end(), [&](const auto& one) { return one.name == tied.name; });
    if (shape == shapes.end()) return BadRankMessage("facts.shapes", absl::StrCat("must have ", tied.name), "others");
    tied_shapes_.push_back(shape->tensor);
  }
  return absl::OkStatus();
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
  {
    absl::MutexLock lock(&mu_);
    lanes_elsewhere_.SetIdle(state);
  }
  Tell([state](RankCommands& rank) { rank.SetIdle(state); });
}

absl::Status RankGroup::Undo() {
  const absl::Status undone = own_.Undo();
  const absl::Status others = Ask([](Rank, RankCommands& to, auto done) { to.Undo(std::move(done)); });
  return undone.ok() ? others : undone;
}

absl::StatusOr<NamedTensors> RankGroup::State(bool with_optimizer) const {
  StatesOfStages states = own_.States(with_optimizer);
  PENSTOCK_RETURN_IF_ERROR(Ask<StatesOfStages>(
      [&](Rank, RankCommands& to, auto done) { to.ReadState(with_optimizer, std::move(done)); },
      [&](Rank, StatesOfStages read) { std::move(read.begin(), read.end(), std::back_inserter(states)); }));
  PENSTOCK_RETURN_IF_ERROR(CheckWhole(states));
  return InModelOrder(std::move(states));
}

// What is saved may be all that is left of the calls before it. Slots of optimizers come and go with its settings.
absl::Status RankGroup::CheckWhole(const StatesOfStages& states) const {
  const auto same = [](const NamedTensor& one, const NamedTensor& other) {
    return one.name == other.name && one.tensor.sizes() == other.tensor.sizes() &&
           one.tensor.scalar_type() == other.tensor.scalar_type();
  };
  for (int stage = 0; stage <= last_stage(); ++stage) {
    const Rank rank = plan_.stages[stage].rank;
    if (!others_.contains(rank)) continue;
    const auto of_stage = [stage](const StateOfStage& state) { return state.stage == stage; };
    const auto read = std::find_if(states.begin(), states.end(), of_stage);
    const auto shapes = std::find_if(elsewhere_.shapes.begin(), elsewhere_.shapes.end(), of_stage);
    const bool whole =
        read != states.end() && shapes != elsewhere_.shapes.end() &&
        std::equal(read->saved.begin(), read->saved.end(), shapes->saved.begin(), shapes->saved.end(), same);
    if (whole) continue;
    return ToldBy(rank, BadRankMessage("states", absl::StrCat("must have what stage ", stage, " has"), "others"));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> RankGroup::Gradients(TiedGradients places) const {
  own_.ShareTiedGradients(places);
  PENSTOCK_RETURN_IF_ERROR(
      Ask<TiedGradients>([](Rank, RankCommands& to, auto done) { to.ReadTies(std::move(done)); },
                         [&](Rank, TiedGradients given) { PutTiedGradients(std::move(given), places); }));
  StatesOfStages gradients = own_.GradientsOfStages(places);
  PENSTOCK_RETURN_IF_ERROR(Ask<StatesOfStages>(
      [&](Rank, RankCommands& to, auto done) { to.ReadGradients(places, std::move(done)); },
      [&](Rank, StatesOfStages read) { std::move(read.begin(), read.end(), std::back_inserter(gradients)); }));
  return InModelOrder(std::move(gradients));
}

absl::StatusOr<NamedTensors> RankGroup::Accumulated() const {
  PENSTOCK_ASSIGN_OR_RETURN(NamedTensors accumulated, own_.Accumulated());
  PENSTOCK_RETURN_IF_ERROR(Ask<NamedTensors>(
      [](Rank, RankCommands& to, auto done) { to.ReadAccumulated(std::move(done)); },
      [&](Rank, NamedTensors read) { std::move(read.begin(), read.end(), std::back_inserter(accumulated)); }));
  return accumulated;
}

absl::Status RankGroup::SetAccumulated(const NamedTensors& accumulated) {
  PENSTOCK_ASSIGN_OR_RETURN(int64_t taken, own_.TakeAccumulated(accumulated));
  PENSTOCK_RETURN_IF_ERROR(
      Ask<int64_t>([&](Rank, RankCommands& to, auto done) { to.WriteAccumulated(accumulated, std::move(done)); },
                   [&](Rank, int64_t more) { taken += more; }));
  if (taken == static_cast<int64_t>(accumulated.size())) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
               absl::StrCat("what was accumulated must be tensors of this pipeline, got ", accumulated.size(),
                            " of which ", taken, " are"));
}

absl::Status RankGroup::UpdateOptimizer(const OptimizerSpec& spec) {
  PENSTOCK_RETURN_IF_ERROR(own_.UpdateOptimizer(spec));
  return Ask([&](Rank, RankCommands& to, auto done) { to.UpdateOptimizer(spec, std::move(done)); });
}

absl::Status RankGroup::WriteElsewhere(const NamedTensors& state) {
  return Ask([&](Rank rank, RankCommands& to, auto done) {
    NamedTensors its;
    for (const NamedTensor& entry : state) {
      if (Has(rank, entry.name)) its.push_back(entry);
    }
    to.WriteState(std::move(its), std::move(done));
  });
}

// A copy of a tied parameter is saved under the name of its first use, which another rank may have.
bool RankGroup::Has(Rank rank, const std::string& name) const {
  if (const auto saved = state_of_rank_.find(rank); saved != state_of_rank_.end() && saved->second.contains(name)) {
    return true;
  }
  return std::any_of(tied_.begin(), tied_.end(), [&](const TiedPlace& tied) {
    return std::count(tied.ranks.begin(), tied.ranks.end(), rank) != 0 &&
           (name == tied.name || absl::StartsWith(name, "optimizer/" + tied.name + "/"));
  });
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
