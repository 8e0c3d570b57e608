#include "engine/model/initial_values.h"

#include <ATen/ops/empty.h>

#include <cmath>

namespace penstock {
namespace {

at::Tensor Empty(const LayerRequest& request, const std::vector<int64_t>& shape) {
  return at::empty(shape, at::TensorOptions(at::kFloat).device(request.shapes_only ? at::kMeta : at::kCPU));
}

at::Tensor InitialUniform(const LayerRequest& request, const std::vector<int64_t>& shape, double bound) {
  at::Tensor values = Empty(request, shape);
  return request.shapes_only ? values : values.uniform_(-bound, bound, request.generator);
}

}  // namespace

at::Tensor InitialConstant(const LayerRequest& request, const std::vector<int64_t>& shape, double value) {
  return Empty(request, shape).fill_(value);
}

at::Tensor InitialNormal(const LayerRequest& request, const std::vector<int64_t>& shape, double deviation) {
  at::Tensor values = Empty(request, shape);
  return request.shapes_only ? values : values.normal_(0, deviation, request.generator);
}

at::Tensor InitialLinearWeight(const LayerRequest& request, int64_t in, int64_t out) {
  return InitialUniform(request, {out, in}, 1 / std::sqrt(static_cast<double>(in)));
}

at::Tensor InitialLinearBias(const LayerRequest& request, int64_t in, int64_t out) {
  return InitialUniform(request, {out}, 1 / std::sqrt(static_cast<double>(in)));
}

at::Tensor InitialConvolutionWeight(const LayerRequest& request, const std::vector<int64_t>& shape) {
  return InitialUniform(request, shape, 1 / std::sqrt(static_cast<double>(shape[1] * shape[2] * shape[3])));
}

}  // namespace penstock
