#pragma once

// Where the time of lanes went between two looks, for people.

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "engine/observe/stage_state.h"
#include "penstock/v1/insight.pb.h"

namespace penstock {

// One lane's time between two looks.
struct LaneShares {
  int lane = 0;
  std::string device;
  std::string state;                     // at the second look
  std::map<StageState, double> seconds;  // those above 0
  int64_t memory_bytes = 0;

  double total() const;
  double work() const;     // inside steps
  double in_step() const;  // work, filled and idle time
  double busy() const;     // share of all time: work, filled, inference
  double bubble() const;   // 1 - work / in_step; 0 outside of steps
};

// What happened to a pipeline between two looks at it. States that this program doesn't know are left out.
std::vector<LaneShares> SharesBetween(const v1::PipelineStatistics& before, const v1::PipelineStatistics& after);

// `columns` letters, each a share of the time, in the order of the states' table: the letter of LaneLegend(); with
// colours, those of all other views.
std::string LaneBar(const LaneShares& lane, int columns, bool colours);

// "f forward  b backward ...": the letters of the states that occur.
std::string LaneLegend(const std::vector<LaneShares>& lanes, bool colours);

}  // namespace penstock
