#include "engine/optim/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <optional>

namespace penstock {

std::vector<at::Tensor> GradientNorms(const NamedTensors& parameters) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> norms;
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) continue;
    const bool narrow = gradient.scalar_type() == at::kHalf || gradient.scalar_type() == at::kBFloat16;
    norms.push_back(at::linalg_vector_norm(gradient, /*ord=*/2, /*dim=*/{}, /*keepdim=*/false,
                                           narrow ? std::optional(at::kFloat) : std::nullopt));
  }
  return norms;
}

double GlobalNorm(const std::vector<at::Tensor>& norms) {
  const at::NoGradGuard no_grad;
  return norms.empty() ? 0 : at::linalg_vector_norm(at::stack(norms)).item<double>();
}

double ClipScale(double norm, double clip) { return clip == 0 ? 1 : std::min(1.0, clip / (norm + 1e-6)); }

}  // namespace penstock
