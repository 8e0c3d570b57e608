// Layer kind `gpt_block`: a pre-norm decoder block, causal self-attention and a feed-forward net four times as wide
// with GELU, each added to its input after dropout; the attention itself has none.
// Options: width (256), heads (4), dropout (0).

#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/layers/dropout.h"

namespace penstock {
namespace {

class GptBlockLayer : public Layer {
 public:
  GptBlockLayer(const LayerRequest& request, int64_t width, int64_t heads, double dropout)
      : width_(width),
        heads_(heads),
        dropout_(dropout),
        attention_norm_(AddNorm(request, "attention.norm")),
        query_key_value_(AddLinear(request, "attention.query_key_value", width, 3 * width)),
        projection_(AddLinear(request, "attention.projection", width, width)),
        feed_norm_(AddNorm(request, "feed_forward.norm")),
        expand_(AddLinear(request, "feed_forward.expand", width, 4 * width)),
        contract_(AddLinear(request, "feed_forward.contract", 4 * width, width)) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& input = WideInput(inputs, "gpt_block", projection_.weight.scalar_type(), width_, 3);
    const at::Tensor middle = input.add(Dropout(Attention(Normed(input, attention_norm_)), dropout_, context));
    return {middle.add(Dropout(FeedForward(Normed(middle, feed_norm_)), dropout_, context))};
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", float_type(), {-1, -1, width_}}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", float_type(), {-1, -1, width_}}}; }

 private:
  struct Weights {
    at::Tensor weight;
    at::Tensor bias;
  };

  Weights AddNorm(const LayerRequest& request, const std::string& name) {
    const at::Tensor weight = AddParameter(name + ".weight", InitialConstant(request, {width_}, 1));
    return {weight, AddParameter(name + ".bias", InitialConstant(request, {width_}, 0))};
  }
  Weights AddLinear(const LayerRequest& request, const std::string& name, int64_t in, int64_t out) {
    const at::Tensor weight = AddParameter(name + ".weight", InitialLinearWeight(request, in, out));
    return {weight, AddParameter(name + ".bias", InitialLinearBias(request, in, out))};
  }

  at::Tensor Normed(const at::Tensor& input, const Weights& norm) const {
    return at::layer_norm(input, {width_}, norm.weight, norm.bias);
  }

  at::Tensor Attention(const at::Tensor& input) const {
    const int64_t rows = input.size(0);
    const int64_t length = input.size(1);
    const std::vector<at::Tensor> parts = at::linear(input, query_key_value_.weight, query_key_value_.bias)
                                              .view({rows, length, 3, heads_, width_ / heads_})
                                              .permute({2, 0, 3, 1, 4})
                                              .unbind(0);
    const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                                              /*dropout_p=*/0.0, /*is_causal=*/true);
    return at::linear(mixed.transpose(1, 2).reshape({rows, length, width_}), projection_.weight, projection_.bias);
  }

  at::Tensor FeedForward(const at::Tensor& input) const {
    return at::linear(at::gelu(at::linear(input, expand_.weight, expand_.bias)), contract_.weight, contract_.bias);
  }

  const int64_t width_;
  const int64_t heads_;
  const double dropout_;
  const Weights attention_norm_;
  const Weights query_key_value_;
  const Weights projection_;
  const Weights feed_norm_;
  const Weights expand_;
  const Weights contract_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeGptBlock(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t width = reader.Int("width", 256, 1, kMaxWidth);
  const int64_t heads = reader.Int("heads", 4, 1, 1024);
  const double dropout = reader.Double("dropout", 0, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if (width % heads != 0) {
    const std::string field = absl::StrCat(request.path, "[heads]");
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat(field, ": must divide the width ", width, ", got ", heads))
        .With("field", field)
        .With("value", absl::StrCat(heads));
  }
  return std::make_unique<GptBlockLayer>(request, width, heads, dropout);
}

}  // namespace penstock
