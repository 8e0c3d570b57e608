// Layer kind `gpt_embedding`: token plus position embedding, then dropout.
// Options: vocab (256), width (256), sequence (128), dropout (0).
//
// Sequences may be shorter than `sequence`, so the signature leaves their length open; a longer one is refused here.

#include <ATen/ops/aminmax.h>
#include <ATen/ops/embedding.h>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/layers/dropout.h"

namespace penstock {
namespace {

constexpr char kKind[] = "gpt_embedding";
class GptEmbeddingLayer : public Layer {
 public:
  GptEmbeddingLayer(const LayerRequest& request, int64_t vocab, int64_t width, int64_t sequence, double dropout)
      : vocab_(vocab),
        width_(width),
        sequence_(sequence),
        dropout_(dropout),
        token_(AddParameter("token.weight", InitialNormal(request, {vocab, width}, kGptDeviation))),
        position_(AddParameter("position.weight", InitialNormal(request, {sequence, width}, kGptDeviation))) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& tokens = OnlyInput(inputs, kKind);
    if (!context.recomputing && !context.values_checked) Check(tokens);
    const at::Tensor embedded = at::embedding(token_, tokens).add(position_.narrow(0, 0, tokens.size(1)));
    return {Dropout(embedded, dropout_, context)};
  }
  void CheckValues(const Batch& inputs) const override { Check(OnlyInput(inputs, kKind)); }
  std::vector<TensorSignature> InputSignature() const override { return {{"tokens", DataType::kInt64, {-1, -1}}}; }
  int64_t LargestOpenDimension() const override { return sequence_; }
  std::vector<TensorSignature> OutputSignature() const override { return {{"output", float_type(), {-1, -1, width_}}}; }

 private:
  // Looks at every token before the table is read at its place.
  void Check(const at::Tensor& tokens) const {
    if (tokens.scalar_type() != at::kLong || tokens.dim() != 2) {
      ThrowInputError(kKind, "inputs[tokens]", "must be INT64 of 2 dimensions, batch and sequence; its rank",
                      tokens.dim());
    }
    if (tokens.size(1) < 1 || tokens.size(1) > sequence_) {
      ThrowInputError(kKind, "inputs[tokens].shape[1]",
                      absl::StrCat("must lie in [1, ", sequence_, "], the longest sequence of the model"),
                      tokens.size(1));
    }
    if (tokens.numel() == 0) return;
    const auto [least, most] = at::aminmax(tokens);
    const int64_t low = least.item<int64_t>();
    const int64_t high = most.item<int64_t>();
    if (low < 0 || high >= vocab_) {
      ThrowInputError(kKind, "inputs[tokens]", absl::StrCat("must lie in [0, ", vocab_ - 1, "]"), low < 0 ? low : high);
    }
  }

  const int64_t vocab_;
  const int64_t width_;
  const int64_t sequence_;
  const double dropout_;
  const at::Tensor token_;
  const at::Tensor position_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeGptEmbedding(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t vocab = reader.Int("vocab", 256, 1, 1 << 24);
  const int64_t width = reader.Int("width", 256, 1, kMaxWidth);
  const int64_t sequence = reader.Int("sequence", 128, 1, 1 << 20);
  const double dropout = reader.Double("dropout", 0, 0, 1);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<GptEmbeddingLayer>(request, vocab, width, sequence, dropout);
}

}  // namespace penstock
