#pragma once

// What a rank tells the leader of one pipeline.

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/exec/rank_commands.h"
#include "server/ranks/rank_convert.h"

namespace penstock {

// Puts events and answers into messages.
//
// Threads:   any method from any thread.
// Fails:     what can't be told is told as the failure of its run, or of its question.
class RankReporter final : public RankEvents {
 public:
  using Tell = std::function<void(std::vector<MessagePart>)>;

  RankReporter(uint64_t pipeline, Tell tell) : pipeline_(pipeline), tell_(std::move(tell)) {}

  void Failed(Rank rank, int64_t run, const absl::Status& why) override;
  void HasTies(Rank rank, int64_t run, TiedGradients own) override;
  void HasNorms(Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) override;
  void Left(Rank rank, int64_t run, bool before_the_end, Measures measures) override;
  void Lost(Rank, const absl::Status&) override {}  // a rank does not tell its own loss

  // Answers a question with what `fill` puts into the report, or with the error of either.
  void Answer(uint64_t question, const absl::Status& result,
              const std::function<absl::Status(OutgoingReport*)>& fill = {});

 private:
  void Send(OutgoingReport report);

  const uint64_t pipeline_;
  const Tell tell_;
};

}  // namespace penstock
