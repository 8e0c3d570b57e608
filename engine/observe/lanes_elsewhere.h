#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/base/ids.h"
#include "engine/observe/lane_report.h"
#include "engine/observe/metrics.h"
#include "engine/observe/stage_state.h"

namespace penstock {

// The leader's account of lanes that stand on other ranks.
//
// Model:     While a rank has a run, only the rank knows what its lanes do: their clocks stand here, until it tells.
//            What it does not tell, because messages are on their way or because it is lost, counts as waiting for the
//            first input (`fill`), or as `infer_wait`. When it has left all its runs they go on here: in `drain` while
//            a step is open, else as idle. So a lane's times sum to the leader's time, as those of its own lanes do.
// Owns:      nothing; the metrics outlive it.
// Threads:   one at a time. Takes no memory but in Join().
class LanesElsewhere {
 public:
  explicit LanesElsewhere(PipelineMetrics* metrics) : metrics_(metrics) {}

  // A rank that has lanes of the pipeline, before the first run.
  void Join(Rank rank);
  // A run opens on all ranks that have joined. Each of them leaves it once, and then the run ends.
  void Open(bool inference);
  void Leave(Rank rank);
  void End(bool inference);
  // What a rank tells of its lanes; of others it can tell nothing.
  void Take(Rank rank, const LaneReports& reports);
  void SetIdle(StageState state);

 private:
  struct LanesOfRank {
    std::vector<int> lanes;
    int runs = 0;  // that the rank has not left
  };
  void GoOn(const LanesOfRank& rank, int64_t now);
  int64_t Now() const { return metrics_->clock()->NowNanos(); }

  PipelineMetrics* const metrics_;
  std::map<Rank, LanesOfRank> ranks_;
  int steps_ = 0;       // open
  int inferences_ = 0;  // the same
  StageState idle_ = StageState::kSetup;
};

}  // namespace penstock
