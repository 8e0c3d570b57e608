#pragma once

// First values of parameters, drawn from the request's generator only, in the order of the calls. May throw (RunTorch).

#include <vector>

#include "engine/model/layer.h"

namespace penstock {

at::Tensor InitialConstant(const LayerRequest& request, const std::vector<int64_t>& shape, double value);
at::Tensor InitialNormal(const LayerRequest& request, const std::vector<int64_t>& shape, double deviation);

// Of a GPT's embeddings and head: small, so that the first loss is near log(vocab).
inline constexpr double kGptDeviation = 0.02;

// Weight [out, in] and bias [out] of a linear map, uniform within 1 / sqrt(in), as PyTorch's own Linear starts.
at::Tensor InitialLinearWeight(const LayerRequest& request, int64_t in, int64_t out);
at::Tensor InitialLinearBias(const LayerRequest& request, int64_t in, int64_t out);

// Weight [out, in, height, width] of a convolution, in the same way: the inputs are all that one output sees. The bias
// is InitialLinearBias.
at::Tensor InitialConvolutionWeight(const LayerRequest& request, const std::vector<int64_t>& shape);

}  // namespace penstock
