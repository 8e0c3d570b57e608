#include "engine/schedule/lane_writer.h"

#include <string>

namespace penstock {

Schedule EmptySchedule(std::string_view kind, int lanes, int chunks, int micro_batches) {
  Schedule schedule{.kind = std::string(kind), .stages = lanes * chunks, .micro_batches = micro_batches};
  schedule.lanes.resize(lanes);
  return schedule;
}

LaneWriter::LaneWriter(Schedule* schedule, Placement placement, int lane)
    : schedule_(schedule),
      placement_(placement),
      lane_(lane),
      counts_(schedule->stages / static_cast<int>(schedule->lanes.size())) {}

void LaneWriter::Backward(int chunk) {
  Append(ActionKind::kBackward, chunk, counts_[chunk].backwards++);
  ++counts_[chunk].weights;
}

void LaneWriter::InputGradient(int chunk) {
  Append(ActionKind::kInputGradient, chunk, counts_[chunk].backwards++);
  waiting_.push_back(chunk);
}

void LaneWriter::OldestWeightGradient() {
  if (waited_ < waiting_.size()) WeightGradient(waiting_[waited_++]);
}

void LaneWriter::RemainingWeightGradients(int chunk) {
  while (counts_[chunk].weights < counts_[chunk].backwards) WeightGradient(chunk);
}

void LaneWriter::Append(ActionKind kind, int chunk, int micro_batch) {
  if (micro_batch >= schedule_->micro_batches) return;
  const int stage = StageOfChunk(placement_, static_cast<int>(schedule_->lanes.size()), lane_, chunk);
  schedule_->lanes[lane_].push_back({kind, stage, micro_batch});
}

}  // namespace penstock
