// Layer kinds of ResNet (He et al., "Deep residual learning for image recognition", 2015), as torchvision has it: the
// stride of a bottleneck is in its 3 x 3 convolution.
//   resnet_stem        7 x 7 convolution, batch norm, ReLU, 3 x 3 maximum; a quarter of the size. Options: in (3), out
//                      (64), image (224): the height and width that it is measured with
//   resnet_bottleneck  1 x 1, 3 x 3 and 1 x 1 convolutions, each with batch norm, around which the input goes; where it
//                      does not fit, through a convolution of its own. Options: in, width (both needed): it gives four
//                      times the width; stride (1)
//   resnet_head        average of all pixels, linear map. Options: in, classes (both needed)

#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/relu.h>

#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/layers/image_block.h"

namespace penstock {
namespace {

constexpr int64_t kExpansion = 4;  // of a bottleneck's width, at its end

class ResnetStemLayer : public ImageBlock {
 public:
  ResnetStemLayer(const LayerRequest& request, int64_t in, int64_t out, int64_t image)
      : image_(image),
        convolution_(AddConvolution("conv", request, ConvolutionShape::Square(in, out, 7, 2, 3))),
        norm_(AddBatchNorm("norm", request, out)) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& input =
        ImageInput(inputs, "resnet_stem", convolution_.weight.scalar_type(), convolution_.shape.in);
    const at::Tensor wide = at::relu(norm_->Apply(convolution_.Apply(input), context));
    return {at::max_pool2d(wide, {3, 3}, {2, 2}, {1, 1})};
  }
  std::vector<TensorSignature> InputSignature() const override { return {Images("image", convolution_.shape.in)}; }
  int64_t LargestOpenDimension() const override { return image_; }
  std::vector<TensorSignature> OutputSignature() const override { return {Images("output", convolution_.shape.out)}; }

 private:
  const int64_t image_;
  const Convolution convolution_;
  BatchNorm* const norm_;
};

class ResnetBottleneckLayer : public ImageBlock {
 public:
  ResnetBottleneckLayer(const LayerRequest& request, int64_t in, int64_t width, int64_t stride)
      : in_(in),
        out_(width * kExpansion),
        narrow_(AddConvolution("conv1", request, ConvolutionShape::Square(in, width, 1))),
        narrow_norm_(AddBatchNorm("norm1", request, width)),
        middle_(AddConvolution("conv2", request, ConvolutionShape::Square(width, width, 3, stride, 1))),
        middle_norm_(AddBatchNorm("norm2", request, width)),
        widen_(AddConvolution("conv3", request, ConvolutionShape::Square(width, out_, 1))),
        widen_norm_(AddBatchNorm("norm3", request, out_)) {
    if (stride == 1 && in == out_) return;
    around_ = AddConvolution("around.conv", request, ConvolutionShape::Square(in, out_, 1, stride));
    around_norm_ = AddBatchNorm("around.norm", request, out_);
  }

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& input = ImageInput(inputs, "resnet_bottleneck", narrow_.weight.scalar_type(), in_);
    at::Tensor inside = at::relu(narrow_norm_->Apply(narrow_.Apply(input), context));
    inside = at::relu(middle_norm_->Apply(middle_.Apply(inside), context));
    inside = widen_norm_->Apply(widen_.Apply(inside), context);
    const at::Tensor around = around_norm_ == nullptr ? input : around_norm_->Apply(around_.Apply(input), context);
    return {at::relu(inside.add(around))};
  }
  std::vector<TensorSignature> InputSignature() const override { return {Images("image", in_)}; }
  std::vector<TensorSignature> OutputSignature() const override { return {Images("output", out_)}; }

 private:
  const int64_t in_;
  const int64_t out_;
  const Convolution narrow_;
  BatchNorm* const narrow_norm_;
  const Convolution middle_;
  BatchNorm* const middle_norm_;
  const Convolution widen_;
  BatchNorm* const widen_norm_;
  Convolution around_;
  BatchNorm* around_norm_ = nullptr;  // null where the input fits as it is
};

class ResnetHeadLayer : public ImageBlock {
 public:
  ResnetHeadLayer(const LayerRequest& request, int64_t in, int64_t classes)
      : in_(in),
        classes_(classes),
        weight_(AddParameter("weight", InitialLinearWeight(request, in, classes))),
        bias_(AddParameter("bias", InitialLinearBias(request, in, classes))) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = ImageInput(inputs, "resnet_head", weight_.scalar_type(), in_);
    return {at::linear(input.mean({2, 3}), weight_, bias_)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {Images("image", in_)}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"logits", float_type(), {-1, classes_}}}; }

 private:
  const int64_t in_;
  const int64_t classes_;
  const at::Tensor weight_;
  const at::Tensor bias_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeResnetStem(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t in = reader.Int("in", 3, 1, kMaxWidth);
  const int64_t out = reader.Int("out", 64, 1, kMaxWidth);
  const int64_t image = reader.Int("image", 224, 1, kMaxWidth);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<ResnetStemLayer>(request, in, out, image);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeResnetBottleneck(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t in = reader.NeededInt("in", 1, kMaxWidth);
  const int64_t width = reader.NeededInt("width", 1, kMaxWidth / kExpansion);
  const int64_t stride = reader.Int("stride", 1, 1, 2);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<ResnetBottleneckLayer>(request, in, width, stride);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeResnetHead(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t in = reader.NeededInt("in", 1, kMaxWidth);
  const int64_t classes = reader.NeededInt("classes", 1, 1 << 24);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<ResnetHeadLayer>(request, in, classes);
}

}  // namespace penstock
