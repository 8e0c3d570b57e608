#pragma once

// A cut by the names of layers.

#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/plan/plan.h"

namespace penstock {

// The same cut with a balance instead of `starts`, if it has any. A name is a layer's; of an exported program also that
// of a module, which begins where its first layer does (layer1 where layer1.0 does).
//
// Fails:     SPEC_INVALID naming spec.cut.starts[i]: a name that begins no layer, stands at the first, or is out of
//            order; or spec.cut.balance or spec.cut.stages, given beside names.
absl::StatusOr<CutSpec> WithBalance(CutSpec cut, const std::vector<LayerSpec>& layers);

}  // namespace penstock
