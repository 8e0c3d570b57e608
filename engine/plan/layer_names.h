#pragma once

// Layers of a plan by number, and parameters by the partition that holds them: the ancestors' ways to name them.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/plan/plan.h"

namespace penstock {

// The layer at a position of the whole model, counted from the end if negative.
//
// Fails:     OUT_OF_RANGE / FIELD_INVALID.
absl::StatusOr<LayerPlan> LayerAt(const Plan& plan, int64_t index);

// What `partitions.J.K.rest` is called here: `layer.rest`, where K is the name of a layer of stage J or its position
// among them; a name wins. Any other name comes back as it is.
//
// Fails:     OUT_OF_RANGE / FIELD_INVALID for a stage or layer that is not there.
absl::StatusOr<std::string> FromPartitionName(const Plan& plan, const std::string& name);

}  // namespace penstock
