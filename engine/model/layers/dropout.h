#pragma once

// Dropout with keyed randomness: LibTorch's own takes no generator, so a recomputation could not repeat it.

#include "engine/model/layer.h"

namespace penstock {

// Sets elements to zero with probability `p` and divides the others by 1 - p. In training only; takes one draw of the
// context's generator then, none if p is 0. May throw (RunTorch).
at::Tensor Dropout(const at::Tensor& input, double p, const LayerContext& context);

}  // namespace penstock
