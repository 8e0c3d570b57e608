#include "engine/schedule/rank_writer.h"

#include <string>

namespace penstock {

Schedule EmptySchedule(std::string_view kind, int ranks, int chunks, int microbatches) {
  Schedule schedule{.kind = std::string(kind), .stages = ranks * chunks, .microbatches = microbatches};
  schedule.ranks.resize(ranks);
  return schedule;
}

RankWriter::RankWriter(Schedule* schedule, Placement placement, int rank)
    : schedule_(schedule),
      placement_(placement),
      rank_(rank),
      counts_(schedule->stages / static_cast<int>(schedule->ranks.size())) {}

void RankWriter::Backward(int chunk) {
  Append(ActionKind::kBackward, chunk, counts_[chunk].backwards++);
  ++counts_[chunk].weights;
}

void RankWriter::InputGradient(int chunk) {
  Append(ActionKind::kInputGradient, chunk, counts_[chunk].backwards++);
  waiting_.push_back(chunk);
}

void RankWriter::OldestWeightGradient() {
  if (waited_ < waiting_.size()) WeightGradient(waiting_[waited_++]);
}

void RankWriter::RemainingWeightGradients(int chunk) {
  while (counts_[chunk].weights < counts_[chunk].backwards) WeightGradient(chunk);
}

void RankWriter::Append(ActionKind kind, int chunk, int microbatch) {
  if (microbatch >= schedule_->microbatches) return;
  const int stage = StageOfChunk(placement_, static_cast<int>(schedule_->ranks.size()), rank_, chunk);
  schedule_->ranks[rank_].push_back({kind, stage, microbatch});
}

}  // namespace penstock
