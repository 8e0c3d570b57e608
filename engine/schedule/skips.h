#pragma once

// Skip connections between stages: which there may be, and which of them need messages.

#include <vector>

#include "absl/status/status.h"
#include "engine/schedule/action.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// INVALID_ARGUMENT / FIELD_INVALID of `skips` unless each edge has 0 <= from < to < stages, none occurs twice, and
// their messages are within the limits of schedule.h (edges times micro-batches at most kMaxCells).
absl::Status CheckSkips(const std::vector<SkipEdge>& skips, int stages, int micro_batches);

// The edge that a communication with a peer belongs to: gradients travel it backwards.
SkipEdge EdgeOf(const Action& communication);

// Every edge that the messages of the lists name, ascending, each once.
std::vector<SkipEdge> SkipsInLists(const Schedule& schedule);

// The skips whose two stages live on different lanes: only these need messages.
//
// Model:     per stage, the other ends of its skips. An edge with a stage that no lane has is left out too.
class CrossingSkips {
 public:
  // `lane_of` as LaneOfEachStage returns it; `skips` within its stages.
  CrossingSkips(std::vector<SkipEdge> skips, const std::vector<int>& lane_of);

  const std::vector<SkipEdge>& edges() const { return edges_; }                   // ascending
  const std::vector<int>& SourcesOf(int stage) const { return sources_[stage]; }  // whose values it pops, ascending
  const std::vector<int>& DestinationsOf(int stage) const {
    return destinations_[stage];
  }  // stages that pop their own skips, ascending

 private:
  std::vector<SkipEdge> edges_;
  std::vector<std::vector<int>> sources_;
  std::vector<std::vector<int>> destinations_;
};

}  // namespace penstock
