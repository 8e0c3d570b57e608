// Layer kind `gpt_head`: layer norm, then a linear map without bias to one number per symbol.
// Options: width (256), vocab (256).

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class GptHeadLayer : public Layer {
 public:
  GptHeadLayer(const LayerRequest& request, int64_t width, int64_t vocab)
      : width_(width),
        vocab_(vocab),
        norm_weight_(AddParameter("norm.weight", InitialConstant(request, {width}, 1))),
        norm_bias_(AddParameter("norm.bias", InitialConstant(request, {width}, 0))),
        weight_(AddParameter("weight", InitialNormal(request, {vocab, width}, kGptDeviation))) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = WideInput(inputs, "gpt_head", weight_.scalar_type(), width_, 3);
    return {at::linear(at::layer_norm(input, {width_}, norm_weight_, norm_bias_), weight_)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", float_type(), {-1, -1, width_}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"logits", float_type(), {-1, -1, vocab_}}}; }

 private:
  const int64_t width_;
  const int64_t vocab_;
  const at::Tensor norm_weight_;
  const at::Tensor norm_bias_;
  const at::Tensor weight_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeGptHead(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t width = reader.Int("width", 256, 1, kMaxWidth);
  const int64_t vocab = reader.Int("vocab", 256, 1, 1 << 24);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<GptHeadLayer>(request, width, vocab);
}

}  // namespace penstock
