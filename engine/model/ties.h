#pragma once

// Tied parameters: several layers' parameters that are one.

#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer_registry.h"
#include "engine/model/model_spec.h"

namespace penstock {

// One parameter of one layer, by position.
struct TiedUse {
  int layer = 0;
  int parameter = 0;  // in Layer::parameters()

  auto operator<=>(const TiedUse&) const = default;
};

// All uses of one parameter, in model order.
struct TieGroup {
  std::vector<TiedUse> uses;
};

// Finds what a specification ties, in its order. The layers may be shapes only.
//
// Fails:     INVALID_ARGUMENT / SPEC_INVALID for a parameter that no layer has, by spec.model.ties[i].parameters[j];
//            for fewer than two, one that stands twice, and unequal shapes.
absl::StatusOr<std::vector<TieGroup>> CheckTies(const std::vector<TieSpec>& ties,
                                                const std::vector<NamedLayer>& layers);

}  // namespace penstock
