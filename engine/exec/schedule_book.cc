#include "engine/exec/schedule_book.h"

#include "engine/base/status_macros.h"
#include "engine/plan/planner.h"

namespace penstock {

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
    entry = std::make_shared<const Schedule>(std::move(lists));
  }
  return entry;
}

}  // namespace penstock
