// Layer kind `conv2d`, over images. Options: in, out (both needed), kernel (3), stride (1), padding (0), bias (true),
// image (32): the height and width of the images that a model is measured with of which it is the first to say so.

#include <ATen/ops/conv2d.h>

#include "engine/base/status_macros.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/layers/initial_values.h"
#include "engine/model/layers/input_checks.h"

namespace penstock {
namespace {

struct Conv2dOptions {
  int64_t in;
  int64_t out;
  int64_t kernel;
  int64_t stride;
  int64_t padding;
  bool bias;
  int64_t image;
};

class Conv2dLayer : public Layer {
 public:
  Conv2dLayer(const LayerRequest& request, const Conv2dOptions& options)
      : options_(options),
        weight_(AddParameter(
            "weight", InitialConvolutionWeight(request, {options.out, options.in, options.kernel, options.kernel}))) {
    if (options.bias) {
      bias_ =
          AddParameter("bias", InitialLinearBias(request, options.in * options.kernel * options.kernel, options.out));
    }
  }

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = ImageInput(inputs, "conv2d", weight_.scalar_type(), options_.in);
    return {
        at::conv2d(input, weight_, bias_, {options_.stride, options_.stride}, {options_.padding, options_.padding})};
  }
  std::vector<TensorSignature> InputSignature() const override {
    return {{"image", float_type(), {-1, options_.in, -1, -1}}};
  }
  int64_t LargestOpenDimension() const override { return options_.image; }
  std::vector<TensorSignature> OutputSignature() const override {
    return {{"output", float_type(), {-1, options_.out, -1, -1}}};
  }

 private:
  const Conv2dOptions options_;
  const at::Tensor weight_;
  at::Tensor bias_;  // undefined without one
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeConv2d(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  Conv2dOptions options = {};
  options.in = reader.NeededInt("in", 1, kMaxWidth);
  options.out = reader.NeededInt("out", 1, kMaxWidth);
  options.kernel = reader.Int("kernel", 3, 1, kMaxKernel);
  options.stride = reader.Int("stride", 1, 1, kMaxKernel);
  options.padding = reader.Int("padding", 0, 0, kMaxKernel);
  options.bias = reader.Bool("bias", true);
  options.image = reader.Int("image", 32, 1, kMaxWidth);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<Conv2dLayer>(request, options);
}

}  // namespace penstock
