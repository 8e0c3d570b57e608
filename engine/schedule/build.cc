#include "engine/schedule/build.h"

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/optimizer_pass.h"
#include "engine/schedule/skips.h"

namespace penstock {
namespace {

absl::StatusOr<Schedule> ComputeActions(const BuildRequest& request) {
  switch (request.purpose) {
    case SchedulePurpose::kTrainingStep:
    case SchedulePurpose::kContribution: {
      PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, FindScheduleKind(request.kind));
      if (!kind.trains) return InvalidField("kind", "must have a backward to train", request.kind);
      return kind.generate(request.ranks, request.microbatches);
    }
    case SchedulePurpose::kForwardOnly:
      return ForwardOnly(request.ranks, request.microbatches);
    case SchedulePurpose::kBackwardOnly:
      return BackwardOnly(request.ranks, request.microbatches);
    case SchedulePurpose::kOptimizerOnly:
      return NoMicrobatches(request.ranks);
  }
  return absl::InternalError("unknown schedule purpose");
}

}  // namespace

absl::StatusOr<Schedule> BuildSchedule(const BuildRequest& request) {
  const bool has_microbatches = request.purpose != SchedulePurpose::kOptimizerOnly;
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.ranks, request.ranks, has_microbatches ? request.microbatches : 1));
  PENSTOCK_RETURN_IF_ERROR(CheckSkips(request.skips, request.ranks, has_microbatches ? request.microbatches : 1));
  PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, ComputeActions(request));
  schedule = InsertRecompute(std::move(schedule), request.recompute);
  schedule = InsertCommunication(schedule, request.skips);
  if (request.purpose == SchedulePurpose::kTrainingStep || request.purpose == SchedulePurpose::kOptimizerOnly) {
    schedule = AppendOptimizer(std::move(schedule));
  }
  const auto peaks = Verify(schedule, {.purpose = request.purpose}, request.skips);
  if (!peaks.ok()) return Error(absl::StatusCode::kInternal, "BUG", std::string(peaks.status().message()));
  return schedule;
}

}  // namespace penstock
