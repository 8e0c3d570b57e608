#include "tests/unit/plan/profile_layers.h"

#include <ATen/ops/add.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <string>
#include <utility>

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

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    Counts().trained += context.training ? 1 : 0;
    ProfileClock().Advance(absl::Milliseconds(forwards_++ == 0 ? first_ms_ : ms_));
    at::Tensor value = Run(inputs.TensorAt(0));
    for (int64_t i = 0; i < times_; ++i) value = at::add(value, at::rand_like(value).requires_grad_(true));
    return value;
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

struct Square : CountedLayer {
  explicit Square(const LayerRequest& request) : CountedLayer(request, {100, 100}) {}
};
struct Single : CountedLayer {
  explicit Single(const LayerRequest& request) : CountedLayer(request, {1}) {}
};
struct Anything : CountedLayer {
  explicit Anything(const LayerRequest& request) : CountedLayer(request, {1}) {}
  std::vector<TensorSignature> InputSignature() const override { return {}; }
};

struct InPlace : CountedLayer {
  explicit InPlace(const LayerRequest& request) : CountedLayer(request, {1}) {}

 protected:
  at::Tensor Run(const at::Tensor& input) override { return input.pow_(2); }
};

struct Pair : CountedLayer {
  explicit Pair(const LayerRequest& request) : CountedLayer(request, {1}) {}
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& x = inputs.TensorAt(0);
    return Batch::OfTensors(Tensors{x.mul(2), x.gt(0), x.detach().mul(3)});
  }
};

struct Join : CountedLayer {
  explicit Join(const LayerRequest& request) : CountedLayer(request, {1}) {}
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    if (inputs.size() != 3 || !inputs.TensorAt(0).requires_grad() || inputs.TensorAt(1).requires_grad() ||
        inputs.TensorAt(2).requires_grad()) {
      throw std::runtime_error("wrong inputs for join");
    }
    return inputs.TensorAt(0).add(inputs.TensorAt(2)).mul(inputs.TensorAt(1));
  }
};

class StashingLayer : public CountedLayer {
 public:
  explicit StashingLayer(const LayerRequest& request)
      : CountedLayer(request, {1}), forget_(request.options.count("first_ms") > 0) {
    DeclareStash("x");
  }
  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor& x = inputs.TensorAt(0);
    if (!forget_) context.skips->Stash("x", x.mul(x));
    return x.mul(2);
  }

 private:
  const bool forget_;
};

struct Popping : CountedLayer {
  explicit Popping(const LayerRequest& request) : CountedLayer(request, {1}) { DeclarePop("x"); }
  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    return inputs.TensorAt(0).add(*context.skips->Pop("x").tensor());
  }
};

template <typename Made>
absl::StatusOr<std::unique_ptr<Layer>> Make(const LayerRequest& request) {
  return std::make_unique<Made>(request);
}

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
    const std::pair<const char*, LayerFactory> kinds[] = {
        {"test_single", &Make<Single>},
        {"test_square", &Make<Square>},
        {"test_convolution", &Make<ConvolutionLayer>},
        {"test_row", &Make<RowLayer>},
        {"test_pair", &Make<Pair>},
        {"test_join", &Make<Join>},
        {"test_stash", &Make<StashingLayer>},
        {"test_pop", &Make<Popping>},
        {"test_inplace", &Make<InPlace>},
        {"test_anything", &Make<Anything>},
    };
    bool all = true;
    for (const auto& [kind, factory] : kinds) all = RegisterLayerKind(kind, factory).ok() && all;
    return all;
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
LayerSpec PairLayer() { return Spec("test_pair", {}); }
LayerSpec JoinLayer() { return Spec("test_join", {}); }
LayerSpec StashLayer(bool forget) {
  return Spec("test_stash", forget ? OptionMap{{"first_ms", int64_t{0}}} : OptionMap{});
}
LayerSpec PopLayer() { return Spec("test_pop", {}); }
LayerSpec InPlaceLayer(int64_t ms) { return Spec("test_inplace", {{"ms", ms}}); }
LayerSpec AnythingLayer() { return Spec("test_anything", {}); }
LayerSpec LinearLayer(int64_t in, int64_t out) { return Spec("linear", {{"in", in}, {"out", out}}); }

}  // namespace penstock::testing
