#include "engine/observe/lane_reporter.h"

namespace penstock {

LaneReporter::LaneReporter(const PipelineMetrics* metrics, Rank self) : metrics_(metrics) {
  for (int lane = 0; lane < metrics_->lane_count(); ++lane) {
    const LaneMetrics& of_lane = metrics_->lane(lane);
    if (of_lane.description.rank != self) continue;
    Known& known = known_.emplace_back();
    known.lane = lane;
    known.times = of_lane.state.Snapshot();
    for (size_t i = 0; i < known.phases.size(); ++i) known.phases[i] = of_lane.phases.at(i).Snapshot();
  }
}

void LaneReporter::Open() {
  if (runs_++ > 0) return;
  const int64_t now = metrics_->clock()->NowNanos();
  for (Known& known : known_) known.times = metrics_->lane(known.lane).state.Snapshot(now);
}

LaneReports LaneReporter::Take() {
  LaneReports reports(known_.size());  // before anything counts as known
  const int64_t now = metrics_->clock()->NowNanos();
  for (size_t k = 0; k < known_.size(); ++k) {
    Known& known = known_[k];
    LaneReport& report = reports[k];
    const LaneMetrics& lane = metrics_->lane(known.lane);
    report.lane = known.lane;
    const StateTimes times = lane.state.Snapshot(now);
    for (size_t s = 0; s < times.nanos.size(); ++s) report.state_nanos[s] = times.nanos[s] - known.times.nanos[s];
    known.times = times;
    for (size_t i = 0; i < known.phases.size(); ++i) {
      const HistogramSnapshot phase = lane.phases.at(i).Snapshot();
      report.phases[i] = phase.Since(known.phases[i]);
      known.phases[i] = phase;
    }
    for (size_t i = 0; i < report.memory_bytes.size(); ++i) report.memory_bytes[i] = lane.memory->at(i).value();
  }
  return reports;
}

}  // namespace penstock
