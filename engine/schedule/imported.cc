#include "engine/schedule/imported.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/skips.h"
#include "engine/schedule/torch_csv.h"
#include "engine/schedule/verify.h"

namespace penstock {
namespace {

absl::Status RefuseImport(const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat("schedule: ", problem, ", got ", value))
      .With("field", "schedule")
      .With("value", value);
}

absl::Status CheckForTraining(const Schedule& lists) {
  for (size_t lane = 0; lane < lists.lanes.size(); ++lane) {
    for (const Action& action : lists.lanes[lane]) {
      if (action.kind != ActionKind::kRecompute) continue;
      return RefuseImport("must hold no recomputation, which the checkpoint mode places",
                          absl::StrCat(ToString(action), " on lane ", lane));
    }
  }
  const SchedulePurpose purpose = ImpliedOptions(lists).purpose;
  if (purpose == SchedulePurpose::kTrainingStep || purpose == SchedulePurpose::kContribution) return absl::OkStatus();
  return RefuseImport("must hold the forward and the backward of every micro-batch", std::string(ToString(purpose)));
}

// Backwards ascend, as Verify says. Running statistics of batch norm are updated by forwards, in their order.
absl::Status CheckForwardsAscend(const Schedule& lists) {
  std::vector<int> last(lists.stages, -1);
  for (size_t lane = 0; lane < lists.lanes.size(); ++lane) {
    for (const Action& action : lists.lanes[lane]) {
      if (action.kind != ActionKind::kForward) continue;
      if (action.micro_batch < last[action.stage]) {
        return RefuseImport("must hold the forwards of a stage in ascending micro-batch order",
                            absl::StrCat(ToString(action), " after ", action.stage, "F", last[action.stage]));
      }
      last[action.stage] = action.micro_batch;
    }
  }
  return absl::OkStatus();
}

// Those that follow from the others.
bool IsAddedByPasses(const Action& action) {
  return IsCommunication(action.kind) || action.kind == ActionKind::kOptimizer;
}

Schedule OwnActions(Schedule lists) {
  lists.kind = std::string(kImportedKind);
  for (auto& list : lists.lanes) std::erase_if(list, IsAddedByPasses);
  return lists;
}

absl::StatusOr<ImportedSchedule> PlaceImported(Schedule actions) {
  const int lanes = static_cast<int>(actions.lanes.size());
  if (actions.stages % lanes != 0) {
    return RefuseImport(absl::StrCat("must give each of its ", lanes, " lanes equally many stages"),
                        absl::StrCat(actions.stages, " stages"));
  }
  const int chunks = actions.stages / lanes;
  const std::vector<int> found = LaneOfEachStage(actions);
  for (const Placement placement : {Placement::kLooped, Placement::kV}) {
    if (LanesOfStages(placement, lanes, chunks) != found) continue;
    return ImportedSchedule{.actions = std::move(actions), .placement = placement, .chunks = chunks};
  }
  const std::vector<int> looped = LanesOfStages(Placement::kLooped, lanes, chunks);
  int stage = 0;
  while (found[stage] == looped[stage]) ++stage;
  return RefuseImport(
      "must deal the stages to the lanes in rounds, each from the first lane to the last or every other one back",
      absl::StrCat("stage ", stage, " on lane ", found[stage]));
}

}  // namespace

absl::StatusOr<ImportedSchedule> ImportSchedule(std::string_view text) {
  PENSTOCK_ASSIGN_OR_RETURN(TorchImport read, ReadSchedule(text));
  PENSTOCK_RETURN_IF_ERROR(CheckForTraining(read.schedule));
  PENSTOCK_RETURN_IF_ERROR(Verify(read.schedule, ImpliedOptions(read.schedule), SkipsInLists(read.schedule)).status());
  PENSTOCK_RETURN_IF_ERROR(CheckForwardsAscend(read.schedule));
  return PlaceImported(OwnActions(std::move(read.schedule)));
}

Schedule FirstMicroBatches(const Schedule& actions, int micro_batches) {
  Schedule first = actions;
  first.micro_batches = micro_batches;
  for (auto& list : first.lanes) {
    std::erase_if(list, [&](const Action& action) { return action.micro_batch >= micro_batches; });
  }
  return first;
}

}  // namespace penstock
