#include "engine/exec/schedule_book.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/schedule/recompute_pass.h"

namespace penstock {

namespace {

Checkpointed CheckpointedBy(const Schedule& schedule) {
  Checkpointed checkpointed(schedule.stages, std::vector<bool>(schedule.microbatches));
  for (const auto& list : schedule.ranks) {
    for (const Action& action : list) {
      if (action.kind == ActionKind::kRecompute) checkpointed[action.stage][action.microbatch] = true;
    }
  }
  return checkpointed;
}

}  // namespace

absl::StatusOr<ListsOfRun> ScheduleBook::Find(SchedulePurpose purpose, int microbatches) {
  absl::MutexLock lock(&mu_);
  const auto known = lists_.find({purpose, microbatches});
  if (known != lists_.end()) return known->second;
  BuildRequest request = request_;
  request.purpose = purpose;
  request.microbatches = microbatches;
  PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, BuildSchedule(request));
  if (late_recompute_) schedule = RecomputeLate(std::move(schedule));
  auto checkpointed = std::make_shared<const Checkpointed>(CheckpointedBy(schedule));
  const ListsOfRun lists = {std::make_shared<const Schedule>(std::move(schedule)), std::move(checkpointed)};
  lists_.emplace(std::pair(purpose, microbatches), lists);
  return lists;
}

}  // namespace penstock
