#pragma once

// What layers over images are made of: convolutions and batch norms with names.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/batch_norm.h"
#include "engine/model/layer.h"

namespace penstock {

// Sizes of a convolution without bias, as (height, width).
struct ConvolutionShape {
  int64_t in = 0;
  int64_t out = 0;
  std::pair<int64_t, int64_t> kernel = {1, 1};
  std::pair<int64_t, int64_t> stride = {1, 1};
  std::pair<int64_t, int64_t> padding = {0, 0};

  static ConvolutionShape Square(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, int64_t padding = 0) {
    return {in, out, {kernel, kernel}, {stride, stride}, {padding, padding}};
  }
};

// One convolution and its weight.
struct Convolution {
  ConvolutionShape shape;
  at::Tensor weight;

  at::Tensor Apply(const at::Tensor& input) const;  // may throw (RunTorch)
};

// A layer made of convolutions and batch norms.
class ImageBlock : public Layer {
 protected:
  // First values as He et al., "Delving deep into rectifiers", 2015: normal, by the outgoing connections.
  Convolution AddConvolution(const std::string& name, const LayerRequest& request, const ConvolutionShape& shape);

  // What a signature says of images of so many channels.
  TensorSignature Images(const std::string& name, int64_t channels) const {
    return {name, float_type(), {-1, channels, -1, -1}};
  }
};

}  // namespace penstock
