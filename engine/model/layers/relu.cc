// Layer kind `relu`. No options.

#include <ATen/ops/relu.h>

#include "engine/base/status_macros.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class ReluLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override { return {at::relu(OnlyInput(inputs, "relu"))}; }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool KeepsLeadingDimensions() const override { return true; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeRelu(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<ReluLayer>();
}

}  // namespace penstock
