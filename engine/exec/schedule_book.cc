#include "engine/exec/schedule_book.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/plan/planner.h"

namespace penstock {

namespace {

// Moves each R behind the receives that follow it, next to its backward.
void DelayRecompute(Schedule& schedule) {
  for (auto& list : schedule.ranks) {
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      if (list[i].kind == ActionKind::kRecompute && IsReceive(list[i + 1].kind)) std::swap(list[i], list[i + 1]);
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Schedule>> ScheduleBook::Find(SchedulePurpose purpose, int microbatches) {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<const Schedule>& entry = lists_[{purpose, microbatches}];
  if (entry == nullptr) {
    const bool forward_only = purpose == SchedulePurpose::kForwardOnly;
    PENSTOCK_ASSIGN_OR_RETURN(Schedule lists, BuildSchedule({.kind = forward_only ? "forward-only" : spec_.kind,
                                                             .purpose = purpose,
                                                             .ranks = stages_,
                                                             .microbatches = microbatches,
                                                             .recompute = ToRecomputeMode(spec_.checkpoint),
                                                             .skips = skips_}));
    if (late_recompute_) DelayRecompute(lists);
    entry = std::make_shared<const Schedule>(std::move(lists));
  }
  return entry;
}

}  // namespace penstock
