#pragma once

// Declared ties: parameters of equal shape that are one parameter of several layers.

#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer_registry.h"

namespace penstock {

// One use of a tied parameter.
struct TiedUse {
  int layer = 0;      // in the model
  int parameter = 0;  // in Layer::parameters()
};

// The uses of one tied parameter, in model order.
struct TieGroup {
  std::vector<TiedUse> uses;
};

// Finds the parameters of declared ties.
//
// Fails:     NOT_FOUND / SPEC_INVALID naming spec.model.ties[i].parameters[j] that is none; INVALID_ARGUMENT / SPEC_INVALID
//            for fewer than two parameters, unequal shapes, or a parameter in two ties.
absl::StatusOr<std::vector<TieGroup>> CheckTies(const std::vector<TieSpec>& ties,
                                                const std::vector<NamedLayer>& layers);

}  // namespace penstock
