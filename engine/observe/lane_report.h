#pragma once

#include <array>
#include <vector>

#include "engine/observe/histogram.h"
#include "engine/observe/metric_labels.h"
#include "engine/observe/state_clock.h"

namespace penstock {

// What a lane has done since its rank told of it last, for the leader's copy of its metrics to add up.
struct LaneReport {
  int lane = 0;
  TimesByState state_nanos{};                                  // while a run was there
  std::array<HistogramSnapshot, kPhaseNames.size()> phases{};  // actions that have ended
  std::array<double, kMemoryKindNames.size()> memory_bytes{};  // at present
};
using LaneReports = std::vector<LaneReport>;

}  // namespace penstock
