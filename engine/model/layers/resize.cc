// Layer kinds that change the height and width of images, without parameters:
//   max_pool2d       options: kernel (2), stride (kernel), padding (0)
//   avg_pool2d       the same; zeros around the image count
//   global_avg_pool  one pixel per channel. No options
//   upsample         repeats each pixel. Option: scale (2)
//   flatten          all dimensions but the first become one. No options

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/upsample_nearest2d.h>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/layers/input_checks.h"

namespace penstock {
namespace {

class PoolLayer : public Layer {
 public:
  enum class Form { kMaximum, kAverage };
  PoolLayer(Form form, int64_t kernel, int64_t stride, int64_t padding)
      : form_(form), kernel_(kernel), stride_(stride), padding_(padding) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = OnlyInput(inputs, "pool");
    CheckImage(input, "pool", -1);
    if (form_ == Form::kMaximum) {
      return {at::max_pool2d(input, {kernel_, kernel_}, {stride_, stride_}, {padding_, padding_})};
    }
    return {at::avg_pool2d(input, {kernel_, kernel_}, {stride_, stride_}, {padding_, padding_})};
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool ResizesImages() const override { return true; }

 private:
  const Form form_;
  const int64_t kernel_;
  const int64_t stride_;
  const int64_t padding_;
};

absl::StatusOr<std::unique_ptr<Layer>> MakePool(const LayerRequest& request, PoolLayer::Form form) {
  OptionReader reader(request.options, request.path);
  const int64_t kernel = reader.Int("kernel", 2, 1, kMaxKernel);
  const int64_t stride = reader.Int("stride", kernel, 1, kMaxKernel);
  const int64_t padding = reader.Int("padding", 0, 0, kernel / 2);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<PoolLayer>(form, kernel, stride, padding);
}

class GlobalAvgPoolLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = OnlyInput(inputs, "global_avg_pool");
    CheckImage(input, "global_avg_pool", -1);
    return {input.mean({2, 3}, /*keepdim=*/true)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool ResizesImages() const override { return true; }
};

class UpsampleLayer : public Layer {
 public:
  explicit UpsampleLayer(int64_t scale) : scale_(scale) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = OnlyInput(inputs, "upsample");
    CheckImage(input, "upsample", -1);
    return {at::upsample_nearest2d(input, {input.size(2) * scale_, input.size(3) * scale_})};
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool ResizesImages() const override { return true; }

 private:
  const int64_t scale_;
};

class FlattenLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override { return {OnlyInput(inputs, "flatten").flatten(1)}; }
  std::vector<TensorSignature> InputSignature() const override {
    return {{"input", DataType::kUnspecified, {}, /*any=*/true}};
  }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", float_type(), {-1, -1}}}; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeMaxPool2d(const LayerRequest& request) {
  return MakePool(request, PoolLayer::Form::kMaximum);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeAvgPool2d(const LayerRequest& request) {
  return MakePool(request, PoolLayer::Form::kAverage);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeGlobalAvgPool(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<GlobalAvgPoolLayer>();
}

absl::StatusOr<std::unique_ptr<Layer>> MakeUpsample(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t scale = reader.Int("scale", 2, 1, 16);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<UpsampleLayer>(scale);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeFlatten(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<FlattenLayer>();
}

}  // namespace penstock
