#pragma once

// Whether a plan fits where it is to stand.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/plan_request.h"
#include "engine/plan/profile.h"

namespace penstock {

// Weights, gradients and optimizer state against all devices together, before a single layer is made: a slip of the pen in a
// width must not cost the machine its memory.
//
// Fails:     PLAN_DOES_NOT_FIT.
absl::Status CheckStateFits(const PlanRequest& request);

// Every device against its limit.
//
// Fails:     PLAN_DOES_NOT_FIT naming the device, its limit and the largest class of bytes.
absl::Status CheckMemory(const Plan& plan, const std::vector<Device>& devices);

// Whether layers begin ... end-1 alone stay within the limit of the device of their stage, with as many micro-batches in
// flight as the schedule holds there. Empty if no device that would be used has a limit. What it captures must outlive it.
std::function<bool(int stage, int begin, int end)> FitsOnDevice(const PlanRequest& request,
                                                                const std::vector<LayerProfile>& profile, int stages);

}  // namespace penstock
