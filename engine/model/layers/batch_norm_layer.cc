// Layer kind `batch_norm`, over all dimensions but the second, of inputs with 2 to 5. Options: features (needed), eps
// (1e-5), momentum (0.1) or cumulative (false): average everything seen, affine (true), track (true): have running
// statistics, deferred (as the model says): update them by mini-batch.

#include "engine/base/status_macros.h"
#include "engine/model/batch_norm.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class BatchNormLayer : public Layer {
 public:
  BatchNormLayer(const LayerRequest& request, const BatchNormOptions& options)
      : batch_norm_(AddBatchNorm("", request, options)) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    return {batch_norm_->Apply(OnlyInput(inputs, "batch_norm"), context)};
  }
  std::vector<TensorSignature> InputSignature() const override {
    return {{"input", DataType::kUnspecified, {}, /*any=*/true}};
  }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }

 private:
  BatchNorm* const batch_norm_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeBatchNorm(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  BatchNormOptions options;
  options.features = reader.NeededInt("features", 1, kMaxWidth);
  options.eps = reader.Double("eps", 1e-5, 0, 1);
  const double momentum = reader.Double("momentum", 0.1, 0, 1);
  options.momentum = reader.Bool("cumulative", false) ? std::nullopt : std::optional<double>(momentum);
  options.affine = reader.Bool("affine", true);
  options.track = reader.Bool("track", true);
  const bool deferred = reader.Bool("deferred", request.deferred_batch_norm);
  options.deferred = options.track && deferred;
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<BatchNormLayer>(request, options);
}

}  // namespace penstock
