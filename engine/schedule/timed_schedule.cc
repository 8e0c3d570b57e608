#include "engine/schedule/timed_schedule.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

IdleCause CauseBefore(const TimedAction& next, bool first) {
  if (first) return IdleCause::kFill;
  if (next.action.kind == ActionKind::kOptimizer) return IdleCause::kWaitBarrier;
  if (ConsumesGradient(next.action.kind) || next.action.kind == ActionKind::kWeightGradient) {
    return IdleCause::kWaitGradient;
  }
  return IdleCause::kWaitActivation;
}

Ticks& TimeOf(IdleCause cause, LaneTimes& times) {
  switch (cause) {
    case IdleCause::kFill:
      return times.fill;
    case IdleCause::kWaitActivation:
      return times.wait_activation;
    case IdleCause::kWaitGradient:
      return times.wait_gradient;
    case IdleCause::kWaitBarrier:
      return times.wait_barrier;
    case IdleCause::kDrain:
      break;
  }
  return times.drain;
}

}  // namespace

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
      TimeOf(cause, times) += until - at;
    };
    for (const TimedAction& timed : list) {
      wait(CauseBefore(timed, &timed == &list.front()), timed.start);
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
