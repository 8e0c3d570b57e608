#include "tests/unit/plan/profile_layers.h"

#include <ATen/ops/add.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <string>

#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/model/layer.h"
#include "engine/model/layer_registry.h"

namespace penstock::testing {
namespace {

// A layer of one tensor.
class CountedLayer : public Layer {
 public:
  CountedLayer(const LayerRequest& request, std::vector<int64_t> row) : shape_(std::move(row)) {
    OptionReader reader(request.options, request.path);
    ms_ = reader.Int("ms", 0, 0, 1'000'000);
    first_ms_ = reader.Int("first_ms", ms_, 0, 1'000'000);
    times_ = reader.Int("times", 0, 0, 100);
    const int64_t size = reader.Int("size", 0, 0, 100);
    PENSTOCK_CHECK(reader.Finish().ok());
    shape_.insert(shape_.begin(), -1);
    if (size > 0) AddParameter("weight", at::zeros({size + 1, size}));
    ++Counts().built;
    ++Counts().alive;
  }
  ~CountedLayer() override { --Counts().alive; }

  Tensors Forward(const Tensors& inputs, const LayerContext& context) override {
    Counts().trained += context.training ? 1 : 0;
    ProfileClock().Advance(absl::Milliseconds(forwards_++ == 0 ? first_ms_ : ms_));
    at::Tensor value = Run(inputs.at(0));
    for (int64_t i = 0; i < times_; ++i) value = at::add(value, at::rand_like(value).requires_grad_(true));
    return {value};
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"input", DataType::kFp32, shape_}}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }

 protected:
  virtual at::Tensor Run(const at::Tensor& input) { return input; }

 private:
  std::vector<int64_t> shape_;
  int64_t ms_ = 0;
  int64_t first_ms_ = 0;
  int64_t times_ = 0;
  int forwards_ = 0;
};

class ConvolutionLayer : public CountedLayer {
 public:
  explicit ConvolutionLayer(const LayerRequest& request)
      : CountedLayer(request, {3, 8, 8}), weight_(AddParameter("weight", at::zeros({2, 3, 1, 1}))) {}

 protected:
  at::Tensor Run(const at::Tensor& input) override { return at::conv2d(input, weight_); }

 private:
  const at::Tensor weight_;
};

class RowLayer : public CountedLayer {
 public:
  explicit RowLayer(const LayerRequest& request) : CountedLayer(request, {2, 8, 8}) {}

 protected:
  at::Tensor Run(const at::Tensor& input) override { return input.flatten(1); }
};

template <typename Made>
absl::StatusOr<std::unique_ptr<Layer>> Make(const LayerRequest& request) {
  return std::make_unique<Made>(request);
}

struct Square : CountedLayer {
  explicit Square(const LayerRequest& request) : CountedLayer(request, {100, 100}) {}
};
struct Single : CountedLayer {
  explicit Single(const LayerRequest& request) : CountedLayer(request, {1}) {}
};

LayerSpec Spec(const std::string& kind, OptionMap options) {
  return {.kind = kind, .name = kind, .options = std::move(options)};
}

}  // namespace

FakeClock& ProfileClock() {
  static auto* clock = new FakeClock;
  return *clock;
}

LayerCounts& Counts() {
  static auto* counts = new LayerCounts;
  return *counts;
}

void UseProfileLayers() {
  static const bool registered = [] {
    return RegisterLayerKind("test_single", &Make<Single>).ok() &&
           RegisterLayerKind("test_square", &Make<Square>).ok() &&
           RegisterLayerKind("test_convolution", &Make<ConvolutionLayer>).ok() &&
           RegisterLayerKind("test_row", &Make<RowLayer>).ok();
  }();
  PENSTOCK_CHECK(registered);
  Counts() = {};
}

LayerSpec SleepLayer(int64_t ms, int64_t first_ms) {
  return Spec("test_single", {{"ms", ms}, {"first_ms", first_ms < 0 ? ms : first_ms}});
}
LayerSpec ExpandLayer(int64_t times) { return Spec("test_square", {{"times", times}}); }
LayerSpec TradeoffLayer(int64_t size, int64_t times) { return Spec("test_single", {{"size", size}, {"times", times}}); }
LayerSpec ConvLayer(int64_t ms) { return Spec("test_convolution", {{"ms", ms}}); }
LayerSpec FlattenLayer() { return Spec("test_row", {}); }
LayerSpec LinearLayer(int64_t in, int64_t out) { return Spec("linear", {{"in", in}, {"out", out}}); }

}  // namespace penstock::testing
