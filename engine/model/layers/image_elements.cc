// Layer kinds over images that keep their size:
//   dropout2d      sets whole channels to zero. Option: p (0.1)
//   instance_norm  centres and scales each channel of each image by itself, without parameters. Option: eps (1e-5)
//   leaky_relu     option: slope (0.01), of negative elements

#include <ATen/ops/instance_norm.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/ones.h>

#include "engine/base/status_macros.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/layers/dropout.h"

namespace penstock {
namespace {

// What all of them say.
class ImageElementsLayer : public Layer {
 public:
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
};

class Dropout2dLayer : public ImageElementsLayer {
 public:
  explicit Dropout2dLayer(double p) : p_(p) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& input = OnlyInput(inputs, "dropout2d");
    CheckImage(input, "dropout2d", -1);
    if (!context.training || p_ == 0) return {input};
    const at::Tensor channels = at::ones({input.size(0), input.size(1), 1, 1}, input.options());
    return {input.mul(Dropout(channels, p_, context))};
  }

 private:
  const double p_;
};

class InstanceNormLayer : public ImageElementsLayer {
 public:
  explicit InstanceNormLayer(double eps) : eps_(eps) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = OnlyInput(inputs, "instance_norm");
    CheckImage(input, "instance_norm", -1);
    return {at::instance_norm(input, {}, {}, {}, {}, /*use_input_stats=*/true, /*momentum=*/0, eps_,
                              /*cudnn_enabled=*/true)};
  }

 private:
  const double eps_;
};

class LeakyReluLayer : public ImageElementsLayer {
 public:
  explicit LeakyReluLayer(double slope) : slope_(slope) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    return {at::leaky_relu(OnlyInput(inputs, "leaky_relu"), slope_)};
  }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  const double slope_;
};

template <typename Kind>
absl::StatusOr<std::unique_ptr<Layer>> Make(const LayerRequest& request, const std::string& option, double fallback) {
  OptionReader reader(request.options, request.path);
  const double value = reader.Double(option, fallback, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<Kind>(value);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDropout2d(const LayerRequest& request) {
  return Make<Dropout2dLayer>(request, "p", 0.1);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeInstanceNorm(const LayerRequest& request) {
  return Make<InstanceNormLayer>(request, "eps", 1e-5);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLeakyRelu(const LayerRequest& request) {
  return Make<LeakyReluLayer>(request, "slope", 0.01);
}

}  // namespace penstock
