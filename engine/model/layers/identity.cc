// Layer kind `identity`: gives what it takes, any values. No options.

#include "engine/base/status_macros.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class IdentityLayer : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override { return inputs; }
  // Says `any`, so that a model of nothing else still says what it takes; without a name: any number of values.
  std::vector<TensorSignature> InputSignature() const override {
    return {{"", DataType::kUnspecified, {}, /*any=*/true}};
  }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool KeepsLeadingDimensions() const override { return true; }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeIdentity(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<IdentityLayer>();
}

}  // namespace penstock
