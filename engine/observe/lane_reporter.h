#pragma once

#include <array>
#include <vector>

#include "engine/base/ids.h"
#include "engine/observe/lane_report.h"
#include "engine/observe/metrics.h"

namespace penstock {

// Notes on a rank how far its leader knows what the rank's lanes do, and reports the rest.
//
// Owns:      nothing; the metrics outlive it.
// Threads:   one at a time.
// Lifecycle: Open() before a run starts, and Close() before the leader is told that it has left.
class LaneReporter {
 public:
  LaneReporter(const PipelineMetrics* metrics, Rank self);

  // The leader counts the time in which no run is there by itself.
  void Open();
  void Close() { --runs_; }
  // What it does not know yet. May throw.
  LaneReports Take();

 private:
  struct Known {
    int lane = 0;
    StateTimes times;
    std::array<HistogramSnapshot, kPhaseNames.size()> phases;
  };

  const PipelineMetrics* const metrics_;
  std::vector<Known> known_;
  int runs_ = 0;  // that are there
};

}  // namespace penstock
