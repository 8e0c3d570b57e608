#pragma once

// The global gradient norm: the norm of the per-parameter norms in model order, so that it doesn't depend on the cut.

#include <vector>

#include "engine/tensor/named_tensors.h"

namespace penstock {

// The 2-norm of each parameter's gradient, in order; a parameter without gradient has none. Scalars of the gradient's
// type, but of a 16-bit one float32: its own would round the norm, and fp16 overflow. May throw.
std::vector<at::Tensor> GradientNorms(const NamedTensors& parameters);

// The norm of all norms, in the order given (that of the model). 0 if there are none. May throw.
double GlobalNorm(const std::vector<at::Tensor>& norms);

// The factor by which gradients shrink: min(1, clip / (norm + 1e-6)); 1 if clip is 0.
double ClipScale(double norm, double clip);

}  // namespace penstock
