// Layer kind `layer_norm`, over the last dimension. Options: width (needed), epsilon (1e-5).

#include <ATen/ops/layer_norm.h>

#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class LayerNormLayer : public Layer {
 public:
  LayerNormLayer(const LayerRequest& request, int64_t width, double epsilon)
      : width_(width),
        epsilon_(epsilon),
        weight_(AddParameter("weight", InitialConstant(request, {width}, 1))),
        bias_(AddParameter("bias", InitialConstant(request, {width}, 0))) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    return {at::layer_norm(WideInput(inputs, "layer_norm", weight_.scalar_type(), width_), {width_}, weight_, bias_,
                           epsilon_)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", float_type(), {-1, width_}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", float_type(), {-1, width_}}}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  const int64_t width_;
  const double epsilon_;
  const at::Tensor weight_;
  const at::Tensor bias_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNorm(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t width = reader.NeededInt("width", 1, kMaxWidth);
  const double epsilon = reader.Double("epsilon", 1e-5, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<LayerNormLayer>(request, width, epsilon);
}

}  // namespace penstock
