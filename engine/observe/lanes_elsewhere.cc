#include "engine/observe/lanes_elsewhere.h"

#include <algorithm>

namespace penstock {

void LanesElsewhere::Join(Rank rank) {
  LanesOfRank& of_rank = ranks_[rank];
  for (int lane = 0; lane < metrics_->lane_count(); ++lane) {
    if (metrics_->lane(lane).description.rank == rank) of_rank.lanes.push_back(lane);
  }
  GoOn(of_rank, Now());
}

void LanesElsewhere::Open(bool inference) {
  ++(inference ? inferences_ : steps_);
  const int64_t now = Now();
  for (auto& [rank, of_rank] : ranks_) {
    if (++of_rank.runs > 1) continue;
    const StageState untold = steps_ > 0 ? StageState::kFill : StageState::kInferWait;
    for (const int lane : of_rank.lanes) metrics_->lane(lane).state.Stand(untold, now);
  }
}

void LanesElsewhere::Leave(Rank rank) {
  LanesOfRank& of_rank = ranks_.at(rank);
  if (--of_rank.runs == 0) GoOn(of_rank, Now());
}

void LanesElsewhere::End(bool inference) {
  --(inference ? inferences_ : steps_);
  SetIdle(idle_);
}

void LanesElsewhere::SetIdle(StageState state) {
  idle_ = state;
  const int64_t now = Now();
  for (const auto& [rank, of_rank] : ranks_) {
    if (of_rank.runs == 0) GoOn(of_rank, now);
  }
}

void LanesElsewhere::Take(Rank rank, const LaneReports& reports) {
  const std::vector<int>& lanes = ranks_.at(rank).lanes;
  const int64_t now = Now();
  for (const LaneReport& report : reports) {
    if (std::find(lanes.begin(), lanes.end(), report.lane) == lanes.end()) continue;
    LaneMetrics& lane = metrics_->lane(report.lane);
    lane.state.Tell(report.state_nanos, now);
    bool progress = false;
    for (size_t i = 0; i < report.phases.size(); ++i) {
      lane.phases[static_cast<Phase>(i)].Add(report.phases[i]);
      progress = progress || report.phases[i].cumulative[PhaseBuckets().size()] > 0;
    }
    if (progress) lane.last_progress.Mark(lane.clock);
    for (size_t i = 0; i < report.memory_bytes.size(); ++i)
      (*lane.memory)[static_cast<MemoryKind>(i)].Set(report.memory_bytes[i]);
  }
}

void LanesElsewhere::GoOn(const LanesOfRank& rank, int64_t now) {
  StageState state = idle_;
  if (steps_ > 0) {
    state = StageState::kDrain;
  } else if (inferences_ > 0 && idle_ != StageState::kSetup && idle_ != StageState::kCheckpoint) {
    state = StageState::kInferWait;
  }
  for (const int lane : rank.lanes) metrics_->lane(lane).state.Enter(state, now);
}

}  // namespace penstock
