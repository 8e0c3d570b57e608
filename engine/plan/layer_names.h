#pragma once

// Layers by name; layers of a plan by number, and parameters by the partition that holds them: the ancestors' ways.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/plan/plan.h"

namespace penstock {

// The positions of the layers that a name means, ascending: the layer of that name; of an exported program, where no
// layer has it, all that belong to the module of that name (layer1 has those of layer1.0). Empty: there is none.
std::vector<size_t> LayersNamed(const std::string& name, const std::vector<LayerSpec>& layers);

// Some of the names, for errors.
std::string KnownLayers(const std::vector<LayerSpec>& layers, size_t first = 0);

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
