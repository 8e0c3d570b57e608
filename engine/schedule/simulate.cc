#include "engine/schedule/simulate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/schedule/dependencies.h"
#include "engine/schedule/failure.h"

namespace penstock {
namespace {

// Gives times to actions, in an order in which needs come first.
class Timeline {
 public:
  Timeline(const Schedule& schedule, const ScheduleCosts& costs, const Dependencies& dependencies)
      : schedule_(schedule), costs_(costs), dependencies_(dependencies) {
    for (const auto& list : schedule.lanes) result_.lanes.emplace_back(list.size());
    result_.times.resize(schedule.lanes.size());
    result_.idle.resize(schedule.lanes.size());
    clocks_.resize(schedule.lanes.size(), 0);
  }

  // Runs one action, not before `earliest`.
  void Run(Place place, Ticks earliest) {
    const Action& action = schedule_.lanes[place.lane][place.position];
    Ticks start = std::max(clocks_[place.lane], earliest);
    dependencies_.Of(action, &needed_);
    for (const Action& need : needed_) {
      const Place at = *dependencies_.Find(need);
      const Ticks ready = result_.lanes[at.lane][at.position].end;
      start = std::max(start, at.lane == place.lane ? ready : Arrival(need, action.stage, ready));
    }
    const Ticks cost = CostOf(action.kind, costs_.stages[action.stage]);
    AddIdle(place.lane, place.position == 0 ? IdleCause::kFill : InfoOf(action.kind).waits_for, start);
    result_.times[place.lane].busy += cost;
    clocks_[place.lane] = start + cost;
    result_.lanes[place.lane][place.position] = {action, start, start + cost};
    if (AccumulatesGradient(action.kind)) gradients_done_ = std::max(gradients_done_, start + cost);
  }

  // When the last gradient of any lane was ready.
  Ticks gradients_done() const { return gradients_done_; }

  Simulation Finish() {
    for (const Ticks clock : clocks_) result_.makespan = std::max(result_.makespan, clock);
    for (size_t lane = 0; lane < clocks_.size(); ++lane) {
      result_.ideal = std::max(result_.ideal, result_.times[lane].busy);
      if (!result_.lanes[lane].empty()) {
        result_.window = std::max(result_.window, clocks_[lane] - result_.lanes[lane].front().start);
      }
      AddIdle(lane, IdleCause::kDrain, result_.makespan);
    }
    return std::move(result_);
  }

 private:
  // When a result that is ready at its stage is at another, of a lane of its own. Where a skip goes beside the
  // activation, the edge's transfer is of both together, and the activation's.
  Ticks Arrival(const Action& result, int to, Ticks ready) {
    const int from = result.stage;
    const EdgeCosts* edge = costs_.EdgeBetween(from, to);
    if (edge == nullptr) return ready + costs_.hop;
    const bool beside = result.peer >= 0 && (from + 1 == to || to + 1 == from);
    if (beside) return ready + edge->latency + costs_.hop;
    Ticks& sent = sent_[{from, to}];
    sent = std::max(sent, ready) + edge->transfer;
    return sent + edge->latency + costs_.hop;
  }

  // Charges the time from the lane's clock until `end`.
  void AddIdle(size_t lane, IdleCause cause, Ticks end) {
    if (end == clocks_[lane]) return;
    result_.idle[lane].push_back({cause, clocks_[lane], end});
    result_.times[lane].Idle(cause) += end - clocks_[lane];
  }

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  const Dependencies& dependencies_;
  Simulation result_;
  std::vector<Ticks> clocks_;                  // per lane, the end of its last action
  std::map<std::pair<int, int>, Ticks> sent_;  // by stages (from, to): when the last message has left the link
  Ticks gradients_done_ = 0;
  std::vector<Action> needed_;
};

// Finds an action that stands behind an OPT on its lane.
std::optional<Place> FindBehindOptimizer(const Schedule& schedule) {
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    const auto& list = schedule.lanes[lane];
    for (size_t position = 1; position < list.size(); ++position) {
      if (list[position - 1].kind == ActionKind::kOptimizer && list[position].kind != ActionKind::kOptimizer) {
        return Place{static_cast<int>(lane), static_cast<int>(position)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace

Ticks& LaneTimes::Idle(IdleCause cause) {
  switch (cause) {
    case IdleCause::kFill:
      return fill;
    case IdleCause::kWaitActivation:
      return wait_activation;
    case IdleCause::kWaitGradient:
      return wait_gradient;
    case IdleCause::kWaitBarrier:
      return wait_barrier;
    case IdleCause::kDrain:
      break;
  }
  return drain;
}

double Simulation::Overhead() const {
  return ideal == 0 ? 0 : static_cast<double>(makespan - ideal) / static_cast<double>(ideal);
}

double Simulation::Bubble() const {
  return makespan == 0 ? 0 : static_cast<double>(makespan - ideal) / static_cast<double>(makespan);
}

absl::StatusOr<Simulation> Simulate(const Schedule& schedule, const ScheduleCosts& costs) {
  PENSTOCK_RETURN_IF_ERROR(CheckShape(schedule));
  PENSTOCK_RETURN_IF_ERROR(CheckCosts(costs, schedule.stages));
  if (const std::optional<Place> behind = FindBehindOptimizer(schedule)) {
    return ScheduleFailure(schedule, "order", *behind, schedule.lanes[behind->lane][behind->position],
                           "optimizer steps must end the list of their lane");
  }
  const Dependencies dependencies(schedule, HasCommunication(schedule));
  const ListWalk walk = WalkLists(schedule, dependencies);
  if (!walk.finished) return ExplainStuck(schedule, dependencies, walk);

  Timeline timeline(schedule, costs, dependencies);
  std::vector<Place> optimizer_steps;  // they come last on their lanes and may wait for all others
  for (const Place& place : walk.order) {
    if (schedule.lanes[place.lane][place.position].kind == ActionKind::kOptimizer) {
      optimizer_steps.push_back(place);
    } else {
      timeline.Run(place, 0);
    }
  }
  const Ticks barrier = costs.optimizer_barrier ? timeline.gradients_done() : 0;
  for (const Place& place : optimizer_steps) timeline.Run(place, barrier);
  Simulation simulation = timeline.Finish();
  simulation.peaks = ComputePeaks(schedule);
  return simulation;
}

}  // namespace penstock
