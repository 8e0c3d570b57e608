#pragma once

// The leader's end of what it says to another rank of one pipeline.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/exec/rank_commands.h"
#include "server/ranks/rank_conversation.h"

namespace penstock {

// Commands as messages, and answers as what they mean.
//
// Owns:      a share of the conversation.
// Threads:   as RankCommands.
// Lifecycle: the stages are there from a Build() that went well until the destructor, which says so and closes the
//            conversation.
class RemoteRank final : public RankCommands {
 public:
  explicit RemoteRank(std::shared_ptr<RankConversation> rank);
  ~RemoteRank() override;

  // `program`: the file of the program, for a rank that does not have it; or null.
  //
  // Fails:     as BuildRankHost; UNAVAILABLE / RANK_LOST; MODEL_NOT_FOUND and MODEL_MISMATCH where the rank needs the file.
  void Build(const peer::v1::BuildStages& stages, const std::string* program, Done<absl::Status> done);

  void Start(RunOrder order) override;
  void Stop(int64_t run) override;
  void BeDue(int64_t run) override;
  void PutTies(int64_t run, TiedGradients ties) override;
  void Grant(int64_t run, StepDecision decision) override;
  void End(int64_t run) override;
  void ForgetGraph(int64_t run) override;
  void EndContribution(bool keep, MicroBatchIndex first) override;
  void DiscardGradients() override;
  void RestoreTiedGradients() override;
  void SetIdle(StageState state) override;
  void Undo(Done<absl::Status> done) override;
  void ReadFacts(Done<absl::StatusOr<FactsOfRank>> done) override;
  void ReadState(bool with_optimizer, Done<absl::StatusOr<StatesOfStages>> done) override;
  void WriteState(NamedTensors state, Done<absl::Status> done) override;
  void ReadTies(Done<absl::StatusOr<TiedGradients>> done) override;
  void ReadGradients(TiedGradients ties, Done<absl::StatusOr<StatesOfStages>> done) override;
  void ReadAccumulated(Done<absl::StatusOr<NamedTensors>> done) override;
  void WriteAccumulated(NamedTensors accumulated, Done<absl::StatusOr<int64_t>> done) override;
  void UpdateOptimizer(OptimizerSpec spec, Done<absl::Status> done) override;

 private:
  void SayOr(const absl::Status& made, OutgoingCommand command);
  template <typename Result, typename Read>
  void AskFor(OutgoingCommand command, Done<absl::StatusOr<Result>> done, Read read);
  void AskForSuccess(OutgoingCommand command, Done<absl::Status> done);

  const std::shared_ptr<RankConversation> rank_;
  std::vector<MessagePart> drop_;  // made beforehand: the end needs no memory
};

}  // namespace penstock
