#pragma once

// A cut as torchgpipe's container shows it: layers by index across the stages, and names of tensors by partition.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/plan/plan.h"

namespace penstock {

// The layer at a place in model order, counted from the end if negative. Fails: OUT_OF_RANGE naming the index.
absl::StatusOr<LayerPlan> LayerAt(const Plan& plan, int64_t index);

// `partitions.J.K.weight` for the tensor `weight` of the layer that is number K of stage J; a name that belongs to no layer
// as it is. What stands before the layer in `optimizer/layer.weight/slot` stays.
std::string PartitionKey(const Plan& plan, std::string_view name);

// The way back: `layer.weight`. Also takes the layer's own name in the place of K. Anything else is answered as it is.
std::string LayerKey(const Plan& plan, std::string_view key);

}  // namespace penstock
