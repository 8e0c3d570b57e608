#include "engine/model/layers/image_block.h"

#include <ATen/ops/conv2d.h>

#include <cmath>

#include "engine/model/initial_values.h"

namespace penstock {

at::Tensor Convolution::Apply(const at::Tensor& input) const {
  return at::conv2d(input, weight, /*bias=*/{}, {shape.stride.first, shape.stride.second},
                    {shape.padding.first, shape.padding.second});
}

Convolution ImageBlock::AddConvolution(const std::string& name, const LayerRequest& request,
                                       const ConvolutionShape& shape) {
  const auto outgoing = static_cast<double>(shape.out * shape.kernel.first * shape.kernel.second);
  return {shape, AddParameter(name + ".weight",
                              InitialNormal(request, {shape.out, shape.in, shape.kernel.first, shape.kernel.second},
                                            std::sqrt(2 / outgoing)))};
}

}  // namespace penstock
