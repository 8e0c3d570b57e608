#include "engine/schedule/timed_schedule.h"

#include <algorithm>
#include <utility>

namespace penstock {

Simulation SimulationOf(std::vector<std::vector<TimedAction>> lanes) {
  Simulation result;
  for (const auto& list : lanes) {
    for (const TimedAction& timed : list) result.makespan = std::max(result.makespan, timed.end);
  }
  for (const auto& list : lanes) {
    LaneTimes times;
    std::vector<IdleSpan> idle;
    Ticks at = 0;
    const auto wait = [&](IdleCause cause, Ticks until) {
      if (until <= at) return;
      idle.push_back({cause, at, until});
      times.Idle(cause) += until - at;
    };
    for (const TimedAction& timed : list) {
      wait(&timed == &list.front() ? IdleCause::kFill : InfoOf(timed.action.kind).waits_for, timed.start);
      times.busy += timed.end - timed.start;
      at = timed.end;
    }
    wait(IdleCause::kDrain, result.makespan);
    result.ideal = std::max(result.ideal, times.busy);
    if (!list.empty()) result.window = std::max(result.window, list.back().end - list.front().start);
    result.idle.push_back(std::move(idle));
    result.times.push_back(times);
  }
  result.lanes = std::move(lanes);
  return result;
}

}  // namespace penstock
