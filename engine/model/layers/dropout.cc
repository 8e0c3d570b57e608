// Layer kind `dropout`. Options: p, the probability that an element becomes zero (0.5).

#include "engine/model/layers/dropout.h"

#include <ATen/ops/empty_like.h>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class DropoutLayer : public Layer {
 public:
  explicit DropoutLayer(double p) : p_(p) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    return {Dropout(OnlyInput(inputs, "dropout"), p_, context)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  const double p_;
};

}  // namespace

at::Tensor Dropout(const at::Tensor& input, double p, const LayerContext& context) {
  if (!context.training || p == 0) return input;
  PENSTOCK_CHECK(context.random != nullptr);
  const double keep = 1 - p;
  const Draw draw = context.random->NextFor(input.device());
  at::Tensor mask = at::empty_like(input, at::TensorOptions().device(draw.device)).bernoulli_(keep, draw.generator);
  if (keep > 0) mask.div_(keep);
  return input.mul(mask.to(input.device()));
}

absl::StatusOr<std::unique_ptr<Layer>> MakeDropout(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const double p = reader.Double("p", 0.5, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<DropoutLayer>(p);
}

}  // namespace penstock
