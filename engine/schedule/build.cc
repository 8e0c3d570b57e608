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
  return {request.kind, request.lanes,      request.micro_batches, request.chunks,
          request.lag,  request.live_limit, request.costs,         request.imported};
}

absl::StatusOr<Schedule> ComputeActions(const BuildRequest& request, const ScheduleKind& kind) {
  switch (request.purpose) {
    case SchedulePurpose::kTrainingStep:
    case SchedulePurpose::kContribution: {
      ScheduleRequest as_planned = AsScheduleRequest(request);
      as_planned.micro_batches = std::max(request.micro_batches, request.planned_micro_batches);
      PENSTOCK_RETURN_IF_ERROR(CheckRequest(as_planned));
      PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, kind.generate(AsScheduleRequest(request)));
      return FuseWhereItPays(std::move(schedule), request.costs);
    }
    case SchedulePurpose::kForwardOnly:
      return ForwardOnly(request.lanes, request.micro_batches, request.chunks, kind.placement);
    case SchedulePurpose::kBackwardOnly:
      return BackwardOnly(request.lanes, request.micro_batches, request.chunks, kind.placement);
    case SchedulePurpose::kOptimizerOnly:
      return NoMicroBatches(request.lanes, request.chunks);
  }
  return absl::InternalError("unknown schedule purpose");
}

}  // namespace

absl::StatusOr<Schedule> BuildSchedule(const BuildRequest& request) {
  const bool has_micro_batches = request.purpose != SchedulePurpose::kOptimizerOnly;
  const bool has_backward = request.purpose != SchedulePurpose::kForwardOnly && has_micro_batches;
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(AsScheduleRequest(request)));
  if (has_backward && !kind.trains) return InvalidField("kind", "must have a backward to train", request.kind);
  PENSTOCK_RETURN_IF_ERROR(CheckPlacement(AsScheduleRequest(request)));
  const int stages = request.lanes * request.chunks;
  const int micro_batches = has_micro_batches ? request.micro_batches : 1;
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(request.lanes, stages, micro_batches));
  PENSTOCK_RETURN_IF_ERROR(CheckSkips(request.skips, stages, micro_batches));
  if (!request.costs.stages.empty()) PENSTOCK_RETURN_IF_ERROR(CheckCosts(request.costs, stages));
  PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, ComputeActions(request, kind));
  schedule = InsertRecompute(std::move(schedule), request.recompute);
  schedule = InsertCommunication(schedule, request.skips);
  if (request.purpose == SchedulePurpose::kTrainingStep || request.purpose == SchedulePurpose::kOptimizerOnly) {
    schedule = AppendOptimizer(std::move(schedule), LanesOfStages(kind.placement, request.lanes, request.chunks));
  }
  const auto peaks = Verify(schedule, {.purpose = request.purpose}, request.skips);
  if (!peaks.ok()) return Error(absl::StatusCode::kInternal, "BUG", std::string(peaks.status().message()));
  return schedule;
}

}  // namespace penstock
