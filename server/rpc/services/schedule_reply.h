#pragma once

// GetSchedule: what a step was to be and what it was, page by page.

#include <functional>

#include "absl/status/statusor.h"
#include "engine/base/job_thread.h"
#include "penstock/v1/insight.pb.h"
#include "server/rpc/service_environment.h"

namespace penstock {

// One page of a schedule. The next page is of the same run, also if a later one has ended meanwhile.
//
// Model:     A page of what was measured on lanes in several processes reads the rings of all of them, on `jobs` and
//            after the other ranks have told theirs; all else is done at once.
// Owns:      a share of the pipeline's metrics meanwhile, none of the pipeline.
// Threads:   `done` is called once, on the caller's thread or another one.
// Fails:     FIELD_INVALID; PIPELINE_NOT_FOUND; PAGE_TOKEN_INVALID; STEP_NOT_RETAINED; FEATURE_DISABLED for what
//            was measured, without traces; RANK_LOST where a rank does not tell; HOST_MEMORY, CALLER_QUOTA.
void DescribeSchedule(const ServiceEnvironment& environment, JobThread* jobs, const Identity& identity,
                      const v1::GetScheduleRequest& request,
                      std::function<void(const absl::StatusOr<v1::GetScheduleResponse>&)> done);

}  // namespace penstock
