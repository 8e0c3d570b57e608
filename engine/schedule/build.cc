#include "engine/schedule/build.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/fuse_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/optimizer_pass.h"
#include "engine/schedule/skips.h"

namespace penstock {
namespace {

ScheduleRequest AsScheduleRequest(const BuildRequest& request) {
  return {request.kind, request.ranks,      request.microbatches, request.chunks,
          request.lag,  request.live_limit, request.costs,        request.imported};
}

absl::StatusOr<Schedule> ComputeActions(const BuildRequest& request, const ScheduleKind& kind) {
  switch (request.purpose) {
    case SchedulePurpose::kTrainingStep:
    case SchedulePurpose::kContribution: {
      ScheduleRequest as_planned = AsScheduleRequest(request);
      as_planned.microbatches = std::max(request.microbatches, request.planned_microbatches);
      PENSTOCK_RETURN_IF_ERROR(CheckRequest(as_planned));
      PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, kind.generate(AsScheduleRequest(request)));
      return FuseWhereItPays(std::move(schedule), request.costs);
    }
    case SchedulePurpose::kForwardOnly:
      return ForwardOnly(request.ranks, request.microbatches, request.chunks, kind.placement);
    case SchedulePurpose::kBackwardOnly:
      return BackwardOnly(request.ranks, request.microbatches, request.chunks, kind.placement);
    case SchedulePurpose::kOptimizerOnly:
      return NoMicrobatches(request.ranks, request.chunks);
  }
  return absl::InternalError("unknown schedule purpose");
}

}  // namespace

absl::StatusOr<Schedule> BuildSchedule(const BuildRequest& request) {
  const bool has_microbatches = request.purpose != SchedulePurpose::kOptimizerOnly;
  const bool has_backward = request.purpose != SchedulePurpose::kForwardOnly && has_microbatches;
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(AsScheduleRequest(request)));
  if (has_backward && !kind.trains) return InvalidField("kind", "must have a backward to train", request.kind);
  PENSTOCK_RETURN_IF_ERROR(CheckPlacement(AsScheduleRequest(request)));
  const int stages = request.ranks * request.chunks;
  const int microbatches = has_microbatches ? request.microbatches : 1;
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.ranks, stages, microbatches));
  PENSTOCK_RETURN_IF_ERROR(CheckSkips(request.skips, stages, microbatches));
  if (!request.costs.stages.empty()) PENSTOCK_RETURN_IF_ERROR(CheckCosts(request.costs, stages));
  PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, ComputeActions(request, kind));
  schedule = InsertRecompute(std::move(schedule), request.recompute);
  schedule = InsertCommunication(schedule, request.skips);
  if (request.purpose == SchedulePurpose::kTrainingStep || request.purpose == SchedulePurpose::kOptimizerOnly) {
    schedule = AppendOptimizer(std::move(schedule), RanksOfStages(kind.placement, request.ranks, request.chunks));
  }
  const auto peaks = Verify(schedule, {.purpose = request.purpose}, request.skips);
  if (!peaks.ok()) return Error(absl::StatusCode::kInternal, "BUG", std::string(peaks.status().message()));
  return schedule;
}

}  // namespace penstock
