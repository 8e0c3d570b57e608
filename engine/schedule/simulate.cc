#include "engine/schedule/simulate.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/dependencies.h"
#include "engine/schedule/failure.h"

namespace penstock {
namespace {

Ticks CostOf(const Action& action, const StageCosts& costs) {
  switch (action.kind) {
    case ActionKind::kForward:
      return costs.forward;
    case ActionKind::kBackward:
      return costs.backward.value_or(costs.input_gradient + costs.weight_gradient);
    case ActionKind::kInputGradient:
      return costs.input_gradient;
    case ActionKind::kWeightGradient:
      return costs.weight_gradient;
    case ActionKind::kRecompute:
      return costs.recompute;
    case ActionKind::kOptimizer:
      return costs.optimizer;
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      return 0;
  }
  return 0;
}

// What a lane waits for before an action that is not its first.
IdleCause CauseOfWait(ActionKind kind) {
  switch (kind) {
    case ActionKind::kBackward:
    case ActionKind::kInputGradient:
    case ActionKind::kWeightGradient:
    case ActionKind::kReceiveBackward:
      return IdleCause::kWaitGradient;
    case ActionKind::kOptimizer:
      return IdleCause::kWaitBarrier;
    default:
      return IdleCause::kWaitActivation;
  }
}

Ticks& TimeOf(IdleCause cause, LaneTimes* times) {
  switch (cause) {
    case IdleCause::kFill:
      return times->fill;
    case IdleCause::kWaitActivation:
      return times->wait_activation;
    case IdleCause::kWaitGradient:
      return times->wait_gradient;
    case IdleCause::kWaitBarrier:
      return times->wait_barrier;
    case IdleCause::kDrain:
      break;
  }
  return times->drain;
}

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
      start = std::max(start, result_.lanes[at.lane][at.position].end + (at.lane == place.lane ? 0 : costs_.hop));
    }
    const Ticks cost = CostOf(action, costs_.stages[action.stage]);
    AddIdle(place.lane, place.position == 0 ? IdleCause::kFill : CauseOfWait(action.kind), start);
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
  // Charges the time from the lane's clock until `end`.
  void AddIdle(size_t lane, IdleCause cause, Ticks end) {
    if (end == clocks_[lane]) return;
    result_.idle[lane].push_back({cause, clocks_[lane], end});
    TimeOf(cause, &result_.times[lane]) += end - clocks_[lane];
  }

  const Schedule& schedule_;
  const ScheduleCosts& costs_;
  const Dependencies& dependencies_;
  Simulation result_;
  std::vector<Ticks> clocks_;  // per lane, the end of its last action
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

absl::Status CheckCosts(const ScheduleCosts& costs, int stages) {
  if (static_cast<int>(costs.stages.size()) != stages) {
    return InvalidField("costs", absl::StrCat("must be one per stage, ", stages), absl::StrCat(costs.stages.size()));
  }
  const auto check = [](std::string_view name, Ticks cost) {
    if (cost >= 0 && cost <= kMaxCost) return absl::OkStatus();
    return InvalidField(name, absl::StrCat("must be 0 to ", kMaxCost, " ticks"), absl::StrCat(cost));
  };
  for (const StageCosts& stage : costs.stages) {
    PENSTOCK_RETURN_IF_ERROR(check("costs.forward", stage.forward));
    PENSTOCK_RETURN_IF_ERROR(check("costs.input_gradient", stage.input_gradient));
    PENSTOCK_RETURN_IF_ERROR(check("costs.weight_gradient", stage.weight_gradient));
    PENSTOCK_RETURN_IF_ERROR(check("costs.backward", stage.backward.value_or(0)));
    PENSTOCK_RETURN_IF_ERROR(check("costs.recompute", stage.recompute));
    PENSTOCK_RETURN_IF_ERROR(check("costs.optimizer", stage.optimizer));
  }
  return check("costs.hop", costs.hop);
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
