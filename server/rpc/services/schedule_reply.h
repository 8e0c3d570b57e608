#pragma once

// GetSchedule: what a step was to be and what it was, page by page.

#include <string>

#include "absl/status/statusor.h"
#include "penstock/v1/insight.pb.h"
#include "server/rpc/service_environment.h"

namespace penstock {

// One page of a schedule. The next page is of the same run, also if a later one has ended meanwhile.
//
// Fails:     FIELD_INVALID; PIPELINE_NOT_FOUND; PAGE_TOKEN_INVALID; STEP_NOT_RETAINED.
absl::StatusOr<v1::GetScheduleResponse> DescribeSchedule(const ServiceEnvironment& environment,
                                                         const Identity& identity,
                                                         const v1::GetScheduleRequest& request);

}  // namespace penstock
