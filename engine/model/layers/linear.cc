// Layer kind `linear`. Options: in, out (both needed), bias (true).

#include <ATen/ops/linear.h>

#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class LinearLayer : public Layer {
 public:
  LinearLayer(const LayerRequest& request, int64_t in, int64_t out, bool bias)
      : in_(in), out_(out), weight_(AddParameter("weight", InitialLinearWeight(request, in, out))) {
    if (bias) bias_ = AddParameter("bias", InitialLinearBias(request, in, out));
  }

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    return {at::linear(WideInput(inputs, "linear", weight_.scalar_type(), in_), weight_, bias_)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", float_type(), {-1, in_}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", float_type(), {-1, out_}}}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  const int64_t in_;
  const int64_t out_;
  const at::Tensor weight_;
  at::Tensor bias_;  // undefined without one
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeLinear(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t in = reader.NeededInt("in", 1, kMaxWidth);
  const int64_t out = reader.NeededInt("out", 1, kMaxWidth);
  const bool bias = reader.Bool("bias", true);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<LinearLayer>(request, in, out, bias);
}

}  // namespace penstock
