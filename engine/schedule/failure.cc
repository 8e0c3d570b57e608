#include "engine/schedule/failure.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/skips.h"

namespace penstock {
namespace {

// One link of a chain of waits: what a stuck lane is to do next, and what that waits for.
struct Wait {
  Place at;
  Action action;
  Action needed;
};

std::string DescribeWait(const Schedule& schedule, const Dependencies& dependencies, const Wait& wait,
                         const ListWalk& walk) {
  const bool credit = IsSend(wait.action.kind) && IsReceive(wait.needed.kind);
  std::string text =
      absl::StrCat(ToString(wait.action), credit ? " waits for the credit of " : " waits for ", ToString(wait.needed));
  const Place needed_at = *dependencies.Find(wait.needed);
  const int stuck_at = walk.next[needed_at.lane];
  if (needed_at.position > stuck_at) {
    absl::StrAppend(&text, "; ", ToString(wait.needed), " follows ", ToString(schedule.lanes[needed_at.lane][stuck_at]),
                    " on lane ", needed_at.lane);
  }
  return text;
}

// Only messages have a peer: a later stage on the way of values, an earlier one on that of gradients.
absl::Status CheckPeer(const Schedule& schedule, Place at, const Action& action) {
  if (action.peer == -1) return absl::OkStatus();
  if (!IsCommunication(action.kind)) {
    return ScheduleFailure(schedule, "content", at, action,
                           absl::StrCat(ToString(action), " moves nothing, so it has no peer"));
  }
  if (action.peer < 0 || action.peer >= schedule.stages) {
    return ScheduleFailure(schedule, "size", at, action,
                           absl::StrCat("peer out of range: the schedule has ", schedule.stages, " stages"));
  }
  const SkipEdge edge = EdgeOf(action);
  if (edge.from < edge.to) return absl::OkStatus();
  return ScheduleFailure(
      schedule, "content", at, action,
      absl::StrCat("a skip leads to a later stage: not from stage ", edge.from, " to stage ", edge.to));
}

}  // namespace

absl::Status ScheduleFailure(const Schedule& schedule, std::string_view invariant, Place place, const Action& action,
                             std::string_view cause, GridMarks marks) {
  const absl::string_view kind(invariant.data(), invariant.size());
  const std::string where =
      place.lane < 0 ? std::string() : absl::StrCat(" at lane ", place.lane, ", position ", place.position);
  if (marks.culprits.empty() && place.lane >= 0) marks.culprits.push_back(place);
  std::string message =
      absl::StrCat("schedule: ", kind, where, " (", ToString(action), ")\n  ",
                   absl::string_view(cause.data(), cause.size()), "\n", RenderGridAround(schedule, marks));
  message.pop_back();  // the last line break
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", message)
      .With("invariant", invariant)
      .With("lane", absl::StrCat(place.lane))
      .With("position", absl::StrCat(place.position))
      .With("action", ToString(action));
}

absl::Status CheckShape(const Schedule& schedule) {
  // Only a schedule of optimizer steps may have no micro-batch; then any other action is out of range below.
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(static_cast<int>(schedule.lanes.size()), schedule.stages,
                                      schedule.micro_batches == 0 ? 1 : schedule.micro_batches));
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    for (size_t position = 0; position < schedule.lanes[lane].size(); ++position) {
      const Action& action = schedule.lanes[lane][position];
      const Place at{static_cast<int>(lane), static_cast<int>(position)};
      const int micro_batches = action.kind == ActionKind::kOptimizer ? 1 : schedule.micro_batches;
      if (action.stage >= 0 && action.stage < schedule.stages && action.micro_batch >= 0 &&
          action.micro_batch < micro_batches) {
        PENSTOCK_RETURN_IF_ERROR(CheckPeer(schedule, at, action));
        continue;
      }
      return ScheduleFailure(schedule, "size", at, action,
                             absl::StrCat("out of range: the schedule has ", schedule.stages, " stages and ",
                                          schedule.micro_batches, " micro-batches"));
    }
  }
  return absl::OkStatus();
}

absl::Status ExplainStuck(const Schedule& schedule, const Dependencies& dependencies, const ListWalk& walk) {
  // What every stuck lane waits for. A wait for an action that no lane performs explains the rest.
  std::vector<std::optional<Wait>> waits(schedule.lanes.size());
  std::vector<Action> needed;
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    const int position = walk.next[lane];
    if (position == static_cast<int>(schedule.lanes[lane].size())) continue;
    const Place at{static_cast<int>(lane), position};
    const Action action = schedule.lanes[lane][position];
    dependencies.Of(action, &needed);
    for (const Action& need : needed) {
      const std::optional<Place> found = dependencies.Find(need);
      if (!found) {
        return ScheduleFailure(schedule, "dependencies", at, action,
                               absl::StrCat(ToString(action), " needs ", ToString(need), ", which no lane performs"));
      }
      if (!waits[lane] && found->position >= walk.next[found->lane]) waits[lane] = Wait{at, action, need};
    }
  }

  // Following the waits from any stuck lane ends in a cycle, as each waits for another that is stuck.
  int lane = 0;
  while (!waits[lane]) ++lane;
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), lane) == path.end()) {
    path.push_back(lane);
    PENSTOCK_CHECK(waits[lane].has_value());
    lane = dependencies.Find(waits[lane]->needed)->lane;
  }
  std::vector<int> cycle(std::find(path.begin(), path.end(), lane), path.end());
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());

  GridMarks marks;
  std::vector<std::string> links;
  constexpr size_t kToldLinks = 8;
  for (const int in_cycle : cycle) {
    marks.culprits.push_back(waits[in_cycle]->at);
    if (links.size() < kToldLinks) {
      links.push_back(DescribeWait(schedule, dependencies, *waits[in_cycle], walk));
    } else if (links.size() == kToldLinks) {
      links.push_back(absl::StrCat("... (", cycle.size(), " lanes in all)"));
    }
  }
  for (size_t stuck = 0; stuck < waits.size(); ++stuck) {
    if (waits[stuck] && std::find(cycle.begin(), cycle.end(), static_cast<int>(stuck)) == cycle.end()) {
      marks.others.push_back(waits[stuck]->at);
    }
  }
  const Wait& head = *waits[cycle.front()];
  return ScheduleFailure(schedule, "deadlock", head.at, head.action, absl::StrJoin(links, "; "), std::move(marks));
}

}  // namespace penstock
