#pragma once

// A group whose conversations between leader and ranks a test can hear, change and break.

#include <functional>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/exec/rank_commands.h"
#include "tests/unit/exec/over_ranks.h"

namespace penstock::testing {

// What a test does before something is said. From any thread; may throw.
struct RankHooks {
  std::function<void(std::string_view event, Rank from)> on_event = [](std::string_view, Rank) {};
  // An error keeps the rank from hearing it, and answers a question.
  std::function<absl::Status(std::string_view command, Rank to)> on_command = [](std::string_view, Rank) {
    return absl::OkStatus();
  };
  // What a rank tells its leader; may lie. By default what it has.
  std::function<void(RankEvents& leader, Rank, int64_t run, TiedGradients)> has_ties =
      [](RankEvents& leader, Rank rank, int64_t run, TiedGradients own) { leader.HasTies(rank, run, std::move(own)); };
  std::function<void(RankEvents& leader, Rank, int64_t run, std::vector<NormsOfStage>, Measures)> has_norms =
      [](RankEvents& leader, Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) {
        leader.HasNorms(rank, run, std::move(norms), std::move(measures));
      };
  std::function<void(RankEvents& leader, Rank, int64_t run, bool before_the_end, Measures)> left =
      [](RankEvents& leader, Rank rank, int64_t run, bool before_the_end, Measures measures) {
        leader.Left(rank, run, before_the_end, std::move(measures));
      };
  std::function<void(StatesOfStages&)> on_state = [](StatesOfStages&) {};
};

class WatchedEvents final : public RankEvents {
 public:
  WatchedEvents(const RankHooks* hooks, RankEvents* leader) : hooks_(*hooks), leader_(leader) {}
  void Failed(Rank rank, int64_t run, const absl::Status& why) override {
    hooks_.on_event("Failed", rank);
    leader_->Failed(rank, run, why);
  }
  void HasTies(Rank rank, int64_t run, TiedGradients own) override {
    hooks_.on_event("HasTies", rank);
    hooks_.has_ties(*leader_, rank, run, std::move(own));
  }
  void HasNorms(Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) override {
    hooks_.on_event("HasNorms", rank);
    hooks_.has_norms(*leader_, rank, run, std::move(norms), std::move(measures));
  }
  void Left(Rank rank, int64_t run, bool before_the_end, Measures measures) override {
    hooks_.on_event("Left", rank);
    hooks_.left(*leader_, rank, run, before_the_end, std::move(measures));
  }
  void Lost(Rank rank, const absl::Status& why) override { leader_->Lost(rank, why); }

 private:
  const RankHooks& hooks_;
  RankEvents* const leader_;
};

class WatchedCommands final : public RankCommands {
 public:
  WatchedCommands(const RankHooks* hooks, Rank rank, std::unique_ptr<RankCommands> to)
      : hooks_(*hooks), rank_(rank), to_(std::move(to)) {}

  void Start(RunOrder order) override {
    if (Heard("Start")) to_->Start(std::move(order));
  }
  void Stop(int64_t run) override {
    if (Heard("Stop")) to_->Stop(run);
  }
  void PutTies(int64_t run, TiedGradients ties) override {
    if (Heard("PutTies")) to_->PutTies(run, std::move(ties));
  }
  void Grant(int64_t run, StepDecision decision) override {
    if (Heard("Grant")) to_->Grant(run, decision);
  }
  void BeDue(int64_t run) override {
    if (Heard("BeDue")) to_->BeDue(run);
  }
  void End(int64_t run) override {
    if (Heard("End")) to_->End(run);
  }
  void ForgetGraph(int64_t run) override {
    if (Heard("ForgetGraph")) to_->ForgetGraph(run);
  }
  void EndContribution(bool keep, MicroBatchIndex first) override {
    if (Heard("EndContribution")) to_->EndContribution(keep, first);
  }
  void DiscardGradients() override {
    if (Heard("DiscardGradients")) to_->DiscardGradients();
  }
  void RestoreTiedGradients() override {
    if (Heard("RestoreTiedGradients")) to_->RestoreTiedGradients();
  }
  void SetIdle(StageState state) override {
    if (Heard("SetIdle")) to_->SetIdle(state);
  }
  void Undo(Done<absl::Status> done) override {
    if (Asked("Undo", done)) to_->Undo(std::move(done));
  }
  void ReadFacts(Done<absl::StatusOr<FactsOfRank>> done) override {
    if (Asked("ReadFacts", done)) to_->ReadFacts(std::move(done));
  }
  void ReadState(bool with_optimizer, Done<absl::StatusOr<StatesOfStages>> done) override {
    if (!Asked("ReadState", done)) return;
    to_->ReadState(with_optimizer, [&hooks = hooks_, done = std::move(done)](absl::StatusOr<StatesOfStages> read) {
      if (read.ok()) hooks.on_state(*read);
      done(std::move(read));
    });
  }
  void WriteState(NamedTensors state, Done<absl::Status> done) override {
    written[rank_] = state;
    if (Asked("WriteState", done)) to_->WriteState(std::move(state), std::move(done));
  }
  void ReadTies(Done<absl::StatusOr<TiedGradients>> done) override {
    if (Asked("ReadTies", done)) to_->ReadTies(std::move(done));
  }
  void ReadGradients(TiedGradients ties, Done<absl::StatusOr<StatesOfStages>> done) override {
    if (Asked("ReadGradients", done)) to_->ReadGradients(std::move(ties), std::move(done));
  }
  void ReadAccumulated(Done<absl::StatusOr<NamedTensors>> done) override {
    if (Asked("ReadAccumulated", done)) to_->ReadAccumulated(std::move(done));
  }
  void WriteAccumulated(NamedTensors accumulated, Done<absl::StatusOr<int64_t>> done) override {
    if (Asked("WriteAccumulated", done)) to_->WriteAccumulated(std::move(accumulated), std::move(done));
  }
  void UpdateOptimizer(OptimizerSpec spec, Done<absl::Status> done) override {
    if (Asked("UpdateOptimizer", done)) to_->UpdateOptimizer(std::move(spec), std::move(done));
  }

  static inline std::map<Rank, NamedTensors> written;  // by the last import, of any group

 private:
  bool Heard(std::string_view command) { return hooks_.on_command(command, rank_).ok(); }
  template <typename Result>
  bool Asked(std::string_view question, const Done<Result>& done) {
    const absl::Status heard = hooks_.on_command(question, rank_);
    if (!heard.ok()) done(heard);
    return heard.ok();
  }

  const RankHooks& hooks_;
  const Rank rank_;
  const std::unique_ptr<RankCommands> to_;
};

class WatchedGroup : public GroupInProcess {
 public:
  explicit WatchedGroup(int ranks, MakeCarrier make_carrier = {})
      : GroupInProcess(ranks, ThreeCpus(), std::move(make_carrier)) {}

  static absl::Status LostStatus(int rank) {
    return Error(absl::StatusCode::kUnavailable, "RANK_LOST", "it is lost").With("rank", absl::StrCat(rank));
  }
  void Lose(int rank) { LoseWith(rank, LostStatus(rank)); }
  void LoseWith(int rank, const absl::Status& why) { leader_->Lost(Rank(rank), why); }

  RankHooks hooks;  // change them while nothing runs

 private:
  absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec, const Plan& plan,
                                                                      RankEvents* leader) override {
    leader_ = leader;
    events_ = std::make_unique<WatchedEvents>(&hooks, leader);
    auto made = GroupInProcess::Build(spec, plan, events_.get());
    if (!made.ok()) return made.status();
    for (auto& [rank, commands] : *made) {
      commands = std::make_unique<WatchedCommands>(&hooks, rank, std::move(commands));
    }
    return made;
  }

  RankEvents* leader_ = nullptr;
  std::unique_ptr<WatchedEvents> events_;
};

}  // namespace penstock::testing
