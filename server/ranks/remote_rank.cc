#include "server/ranks/remote_rank.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {

RemoteRank::RemoteRank(std::shared_ptr<RankConversation> rank) : rank_(std::move(rank)) {
  OutgoingCommand command;
  command.message().mutable_drop();
  drop_ = rank_->Prepare(std::move(command));
}

RemoteRank::~RemoteRank() { rank_->Close(std::move(drop_)); }

// A rank that can't be told is as good as lost.
void RemoteRank::SayOr(const absl::Status& made, OutgoingCommand command) {
  if (made.ok()) return rank_->Say(std::move(command));
  rank_->OnLost(WithValue(made, "rank", absl::StrCat(rank_->rank().value())));
}

template <typename Result, typename Read>
void RemoteRank::AskFor(OutgoingCommand command, Done<absl::StatusOr<Result>> done, Read read) {
  rank_->Ask(std::move(command), [done = std::move(done), read](absl::StatusOr<RankConversation::Arrived*> arrived) {
    if (!arrived.ok()) return done(arrived.status());
    done(Guarded("a rank's answer",
                 [&]() -> absl::StatusOr<Result> { return read((*arrived)->report, (*arrived)->tensors); }));
  });
}

void RemoteRank::AskForSuccess(OutgoingCommand command, Done<absl::Status> done) {
  rank_->Ask(std::move(command), [done = std::move(done)](const absl::StatusOr<RankConversation::Arrived*>& arrived) {
    done(arrived.status());
  });
}

void RemoteRank::Build(const peer::v1::BuildStages& stages, const std::string* program, Done<absl::Status> done) {
  OutgoingCommand command;
  *command.message().mutable_build() = stages;
  if (program != nullptr) {
    if (const absl::Status made = command.AddAll(ToTensors(*program)); !made.ok()) return done(made);
  }
  AskForSuccess(std::move(command), std::move(done));
}

// --- Runs.

void RemoteRank::Start(RunOrder order) {
  OutgoingCommand command;
  *command.message().mutable_start() = ToProto(order);
  rank_->Say(std::move(command));
}

void RemoteRank::Stop(int64_t run) {
  OutgoingCommand command;
  command.message().set_stop(run);
  rank_->Say(std::move(command));
}

void RemoteRank::BeDue(int64_t run) {
  OutgoingCommand command;
  command.message().set_be_due(run);
  rank_->Say(std::move(command));
}

void RemoteRank::PutTies(int64_t run, TiedGradients ties) {
  OutgoingCommand command;
  peer::v1::TiesOfRun& message = *command.message().mutable_put_ties();
  message.set_run(run);
  const absl::Status made = AddTies(ties, message.mutable_ties(), &command);
  SayOr(made, std::move(command));
}

void RemoteRank::Grant(int64_t run, StepDecision decision) {
  OutgoingCommand command;
  *command.message().mutable_grant() = ToProto(run, decision);
  rank_->Say(std::move(command));
}

void RemoteRank::End(int64_t run) {
  OutgoingCommand command;
  command.message().set_end(run);
  rank_->Say(std::move(command));
}

void RemoteRank::ForgetGraph(int64_t run) {
  OutgoingCommand command;
  command.message().set_forget_graph(run);
  rank_->Say(std::move(command));
}

// --- Stages.

void RemoteRank::EndContribution(bool keep, MicroBatchIndex first) {
  OutgoingCommand command;
  command.message().mutable_end_contribution()->set_keep(keep);
  command.message().mutable_end_contribution()->set_first_micro_batch(first.value());
  rank_->Say(std::move(command));
}

void RemoteRank::DiscardGradients() {
  OutgoingCommand command;
  command.message().mutable_discard_gradients();
  rank_->Say(std::move(command));
}

void RemoteRank::RestoreTiedGradients() {
  OutgoingCommand command;
  command.message().mutable_restore_tied_gradients();
  rank_->Say(std::move(command));
}

void RemoteRank::SetIdle(StageState state) {
  OutgoingCommand command;
  command.message().set_set_idle(static_cast<int32_t>(state));
  rank_->Say(std::move(command));
}

void RemoteRank::Undo(Done<absl::Status> done) {
  OutgoingCommand command;
  command.message().mutable_undo();
  AskForSuccess(std::move(command), std::move(done));
}

void RemoteRank::ReadFacts(Done<absl::StatusOr<FactsOfRank>> done) {
  OutgoingCommand command;
  command.message().mutable_read_facts();
  AskFor<FactsOfRank>(std::move(command), std::move(done),
                      [](const peer::v1::Report& report, IncomingTensors&) { return FromProto(report.facts()); });
}

void RemoteRank::ReadState(bool with_optimizer, Done<absl::StatusOr<StatesOfStages>> done) {
  OutgoingCommand command;
  command.message().set_read_state(with_optimizer);
  AskFor<StatesOfStages>(
      std::move(command), std::move(done),
      [](const peer::v1::Report& report, IncomingTensors& tensors) { return tensors.TakeStates(report.states()); });
}

void RemoteRank::WriteState(NamedTensors state, Done<absl::Status> done) {
  OutgoingCommand command;
  command.message().mutable_write_state();
  if (const absl::Status made = command.AddAll(state); !made.ok()) return done(made);
  AskForSuccess(std::move(command), std::move(done));
}

void RemoteRank::ReadTies(Done<absl::StatusOr<TiedGradients>> done) {
  OutgoingCommand command;
  command.message().mutable_read_ties();
  AskFor<TiedGradients>(
      std::move(command), std::move(done),
      [](const peer::v1::Report& report, IncomingTensors& tensors) { return tensors.TakeTies(report.ties()); });
}

void RemoteRank::ReadGradients(TiedGradients ties, Done<absl::StatusOr<StatesOfStages>> done) {
  OutgoingCommand command;
  const absl::Status made = AddTies(ties, command.message().mutable_read_gradients(), &command);
  if (!made.ok()) return done(made);
  AskFor<StatesOfStages>(
      std::move(command), std::move(done),
      [](const peer::v1::Report& report, IncomingTensors& tensors) { return tensors.TakeStates(report.states()); });
}

void RemoteRank::ReadAccumulated(Done<absl::StatusOr<NamedTensors>> done) {
  OutgoingCommand command;
  command.message().mutable_read_accumulated();
  AskFor<NamedTensors>(std::move(command), std::move(done),
                       [](const peer::v1::Report&, IncomingTensors& tensors) -> absl::StatusOr<NamedTensors> {
                         return tensors.TakeAll();
                       });
}

void RemoteRank::WriteAccumulated(NamedTensors accumulated, Done<absl::StatusOr<int64_t>> done) {
  OutgoingCommand command;
  command.message().mutable_write_accumulated();
  if (const absl::Status made = command.AddAll(accumulated); !made.ok()) return done(made);
  AskFor<int64_t>(
      std::move(command), std::move(done),
      [](const peer::v1::Report& report, IncomingTensors&) -> absl::StatusOr<int64_t> { return report.count(); });
}

void RemoteRank::UpdateOptimizer(OptimizerSpec spec, Done<absl::Status> done) {
  OutgoingCommand command;
  *command.message().mutable_update_optimizer() = ToProto(spec);
  AskForSuccess(std::move(command), std::move(done));
}

}  // namespace penstock
