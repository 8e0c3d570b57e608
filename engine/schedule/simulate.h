#pragma once

// Predicts when each action of a schedule would run, in virtual time.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/peak.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/virtual_time.h"

namespace penstock {

struct TimedAction {
  Action action;
  Ticks start = 0;
  Ticks end = 0;
};

struct IdleSpan {
  IdleCause cause = IdleCause::kFill;
  Ticks start = 0;
  Ticks end = 0;
};

// Where the time of a lane goes; everything sums to the makespan.
struct LaneTimes {
  Ticks busy = 0;
  Ticks fill = 0;
  Ticks wait_activation = 0;
  Ticks wait_gradient = 0;
  Ticks wait_barrier = 0;
  Ticks drain = 0;

  Ticks& Idle(IdleCause cause);
};

struct Simulation {
  std::vector<std::vector<TimedAction>> lanes;  // in list order; sends and receives take no time of the lane
  std::vector<std::vector<IdleSpan>> idle;      // per lane, ascending, none empty
  std::vector<LaneTimes> times;                 // per lane
  PeakActivations peaks;
  Ticks makespan = 0;  // last end of all lanes, all starting at 0: a step with a barrier
  Ticks ideal = 0;     // busy time of the busiest lane
  Ticks window = 0;    // largest (last end - first start) of any lane: a step without a barrier

  double Overhead() const;  // (makespan - ideal) / ideal; 0 if nothing takes time
  double Bubble() const;    // 1 - ideal / makespan: a share of time; 0 if nothing takes time
};

// Runs the lists in virtual time. An action starts at the later of: the end of the previous one on its lane; the end of
// each one it depends on, plus the hop if that ran on another lane. A hop occupies neither lane, but messages of one edge
// that goes over a link take it one after the other, each way, in the order in which they are taken. Works with and without
// sends and receives, with the same times.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID for `costs` that are negative, above kMaxCost, or not one per stage;
//            INVALID_ARGUMENT / SPEC_INVALID, with Verify's message, for lists that can't run to their end.
absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const ScheduleCosts& costs);

}  // namespace penstock
