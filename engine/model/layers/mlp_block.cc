// Layer kind `mlp_block`: linear, ReLU and, if asked for, dropout. Options: width (1024), dropout (0).

#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/layers/dropout.h"

namespace penstock {
namespace {

class MlpBlockLayer : public Layer {
 public:
  MlpBlockLayer(const LayerRequest& request, int64_t width, double dropout)
      : width_(width),
        dropout_(dropout),
        weight_(AddParameter("weight", InitialLinearWeight(request, width, width))),
        bias_(AddParameter("bias", InitialLinearBias(request, width, width))) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& input = WideInput(inputs, "mlp_block", weight_.scalar_type(), width_);
    return {Dropout(at::relu(at::linear(input, weight_, bias_)), dropout_, context)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", float_type(), {-1, width_}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", float_type(), {-1, width_}}}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  const int64_t width_;
  const double dropout_;
  const at::Tensor weight_;
  const at::Tensor bias_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeMlpBlock(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t width = reader.Int("width", 1024, 1, kMaxWidth);
  const double dropout = reader.Double("dropout", 0, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<MlpBlockLayer>(request, width, dropout);
}

}  // namespace penstock
