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

// One link of a chain of waits: what a stuck rank is to do next, and what that waits for.
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
  const int stuck_at = walk.next[needed_at.rank];
  if (needed_at.position > stuck_at) {
    absl::StrAppend(&text, "; ", ToString(wait.needed), " follows ", ToString(schedule.ranks[needed_at.rank][stuck_at]),
                    " on rank ", needed_at.rank);
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
      place.rank < 0 ? std::string() : absl::StrCat(" at rank ", place.rank, ", position ", place.position);
  if (marks.culprits.empty() && place.rank >= 0) marks.culprits.push_back(place);
  std::string message =
      absl::StrCat("schedule: ", kind, where, " (", ToString(action), ")\n  ",
                   absl::string_view(cause.data(), cause.size()), "\n", RenderGridAround(schedule, marks));
  message.pop_back();  // the last line break
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", message)
      .With("invariant", invariant)
      .With("rank", absl::StrCat(place.rank))
      .With("position", absl::StrCat(place.position))
      .With("action", ToString(action));
}

absl::Status CheckShape(const Schedule& schedule) {
  // Only a schedule of optimizer steps may have no micro-batch; then any other action is out of range below.
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(static_cast<int>(schedule.ranks.size()), schedule.stages,
                                      schedule.microbatches == 0 ? 1 : schedule.microbatches));
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t position = 0; position < schedule.ranks[rank].size(); ++position) {
      const Action& action = schedule.ranks[rank][position];
      const Place at{static_cast<int>(rank), static_cast<int>(position)};
      const int microbatches = action.kind == ActionKind::kOptimizer ? 1 : schedule.microbatches;
      if (action.stage >= 0 && action.stage < schedule.stages && action.microbatch >= 0 &&
          action.microbatch < microbatches) {
        PENSTOCK_RETURN_IF_ERROR(CheckPeer(schedule, at, action));
        continue;
      }
      return ScheduleFailure(schedule, "size", at, action,
                             absl::StrCat("out of range: the schedule has ", schedule.stages, " stages and ",
                                          schedule.microbatches, " micro-batches"));
    }
  }
  return absl::OkStatus();
}

absl::Status ExplainStuck(const Schedule& schedule, const Dependencies& dependencies, const ListWalk& walk) {
  // What every stuck rank waits for. One that waits for an action nobody performs explains it all.
  std::vector<std::optional<Wait>> waits(schedule.ranks.size());
  std::vector<Action> needed;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const int position = walk.next[rank];
    if (position == static_cast<int>(schedule.ranks[rank].size())) continue;
    const Place at{static_cast<int>(rank), position};
    const Action action = schedule.ranks[rank][position];
    dependencies.Of(action, &needed);
    for (const Action& need : needed) {
      const std::optional<Place> found = dependencies.Find(need);
      if (!found) {
        return ScheduleFailure(schedule, "dependencies", at, action,
                               absl::StrCat(ToString(action), " needs ", ToString(need), ", which no rank performs"));
      }
      if (!waits[rank] && found->position >= walk.next[found->rank]) waits[rank] = Wait{at, action, need};
    }
  }

  // Following the waits from any stuck rank ends in a cycle, as each waits for another that is stuck.
  int rank = 0;
  while (!waits[rank]) ++rank;
  std::vector<int> path;
  while (std::find(path.begin(), path.end(), rank) == path.end()) {
    path.push_back(rank);
    PENSTOCK_CHECK(waits[rank].has_value());
    rank = dependencies.Find(waits[rank]->needed)->rank;
  }
  std::vector<int> cycle(std::find(path.begin(), path.end(), rank), path.end());
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());

  GridMarks marks;
  std::vector<std::string> links;
  constexpr size_t kToldLinks = 8;
  for (const int in_cycle : cycle) {
    marks.culprits.push_back(waits[in_cycle]->at);
    if (links.size() < kToldLinks) {
      links.push_back(DescribeWait(schedule, dependencies, *waits[in_cycle], walk));
    } else if (links.size() == kToldLinks) {
      links.push_back(absl::StrCat("... (", cycle.size(), " ranks in all)"));
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
