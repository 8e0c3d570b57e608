#include "tests/unit/exec/function_layers.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/model/layer_registry.h"

namespace penstock::testing {
namespace {

struct Entry {
  FunctionLayer layer;
  Tensors built;
};

// Layers by number, as specifications carry no functions.
class Table {
 public:
  int64_t Add(FunctionLayer layer) {
    absl::MutexLock lock(&mu_);
    entries_.push_back({std::move(layer), {}});
    return static_cast<int64_t>(entries_.size()) - 1;
  }
  Entry Get(int64_t number) {
    absl::MutexLock lock(&mu_);
    return entries_.at(number);
  }
  void NoteBuilt(int64_t number, Tensors parameters) {
    absl::MutexLock lock(&mu_);
    entries_.at(number).built = std::move(parameters);
  }

 private:
  absl::Mutex mu_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mu_);
};

Table& Layers() {
  static auto* table = new Table;
  return *table;
}

class RunsFunction : public Layer {
 public:
  RunsFunction(int64_t number, bool shapes_only) : layer_(Layers().Get(number).layer) {
    for (const auto& shape : layer_.parameters) {
      const std::string name = absl::StrCat("p", own_.size());
      own_.push_back(AddParameter(name, Range(shape)));
      if (!layer_.needs_grad) own_.back().requires_grad_(false);
    }
    for (const std::string& name : layer_.stashes) DeclareStash(name);
    for (const std::string& name : layer_.pops) DeclarePop(name);
    if (!shapes_only) Layers().NoteBuilt(number, own_);
  }
  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    return layer_.forward(inputs, context, own_);
  }
  std::vector<TensorSignature> InputSignature() const override { return {{"", DataType::kUnspecified, {}, true}}; }
  std::vector<TensorSignature> OutputSignature() const override {
    if (layer_.outputs.empty()) return {{"output", DataType::kUnspecified, {}, true}};
    std::vector<TensorSignature> signatures;
    for (const std::string& name : layer_.outputs) signatures.push_back({name, DataType::kFp32, {-1, -1}});
    return signatures;
  }

 private:
  const FunctionLayer layer_;
  Tensors own_;
};

absl::StatusOr<std::unique_ptr<Layer>> MakeFunction(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t number = reader.NeededInt("number", 0, 1'000'000);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<RunsFunction>(number, request.shapes_only);
}

}  // namespace

LayerSpec Function(FunctionLayer layer) {
  static const bool registered = RegisterLayerKind("test_function", &MakeFunction).ok();
  PENSTOCK_CHECK(registered);
  std::string name = layer.name;
  return {.kind = "test_function", .name = std::move(name), .options = {{"number", Layers().Add(std::move(layer))}}};
}

LayerSpec Function(LayerFunction forward) { return Function(FunctionLayer{.forward = std::move(forward)}); }

LayerSpec Built(const std::string& kind, OptionMap options, const std::string& name) {
  return {.kind = kind, .name = name, .options = std::move(options)};
}

Tensors ParametersOf(const LayerSpec& layer) {
  return Layers().Get(std::get<int64_t>(layer.options.at("number"))).built;
}

Batch Multiply(const Batch& inputs, const LayerContext& /*context*/, const Tensors& parameters) {
  return inputs.TensorAt(0).mul(parameters.at(0));
}

LayerSpec Weighted(std::vector<int64_t> shape) { return Function({.forward = Multiply, .parameters = {shape}}); }

Batch PassOn(const Batch& inputs, const LayerContext& /*context*/, const Tensors& /*parameters*/) { return inputs; }

LayerSpec Linear(int64_t in, int64_t out, const std::string& name) {
  return Built("linear", {{"in", in}, {"out", out}}, name);
}

const char* ModeName(CheckpointMode mode) {
  return mode == CheckpointMode::kAlways ? "always" : mode == CheckpointMode::kNever ? "never" : "except_last";
}

PipelineSpec Pipe(std::vector<LayerSpec> layers, std::vector<int> balance, int chunks, CheckpointMode mode) {
  PipelineSpec spec;
  spec.model.layers = std::move(layers);
  spec.cut.balance = std::move(balance);
  spec.schedule = {"gpipe", chunks, mode};
  spec.optimizer.name = "sgd";
  spec.optimizer.options = {{"learning_rate", 1.0}};
  spec.loss.name = "mean_squared_error";
  spec.seed = 7;
  return spec;
}

PlainReference PlainOf(const PipelineSpec& spec) {
  return PlainReference({.model = spec.model, .loss = spec.loss, .optimizer = spec.optimizer, .seed = spec.seed});
}

PipeWorld::PipeWorld(DevicePool::Mode mode) : pool_({{"cpu:0", {0}, 0}, {"cpu:1", {1}, 0}}, mode) {
  at::set_num_threads(1);  // as the stages have
}

absl::StatusOr<std::unique_ptr<Pipeline>> PipeWorld::TryMake(const PipelineSpec& spec) {
  Pipeline::Options options;
  options.devices = &pool_;
  options.profile = {.rows = 2, .repeats = 1};
  options.before_action = before_action;
  options.watch_passes = watch_passes;
  return Pipeline::Create(spec, options);
}

std::unique_ptr<Pipeline> PipeWorld::Make(const PipelineSpec& spec) {
  auto pipeline = TryMake(spec);
  if (!pipeline.ok()) std::fprintf(stderr, "%s\n", pipeline.status().ToString().c_str());
  PENSTOCK_CHECK(pipeline.ok());
  return *std::move(pipeline);
}

absl::StatusOr<ForwardOutcome> PipeWorld::Infer(Pipeline& pipeline, NamedValues inputs, int chunks) {
  absl::Notification done;
  absl::StatusOr<ForwardOutcome> answer;
  ForwardRequest request = Ask(std::move(inputs));
  if (chunks > 0) request.micro_batches = chunks;
  pipeline.InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> outcome) {
    answer = std::move(outcome);
    done.Notify();
  });
  pool_.Wait(done);
  return answer;
}

NamedValues Input(Value value) {
  NamedValues values;
  values.push_back({"input", std::move(value)});
  return values;
}

NamedValues Inputs(const std::vector<Value>& values) {
  NamedValues named;
  for (const Value& value : values) named.push_back({absl::StrCat("input", named.size()), value});
  named.tuple = true;
  return named;
}

ContributionRequest Contribution(const at::Tensor& input, const at::Tensor& target) {
  ContributionRequest request;
  request.inputs = Input(input);
  request.target = target;
  return request;
}

ForwardRequest Ask(NamedValues inputs, bool input_gradients) {
  ForwardRequest request;
  request.inputs = std::move(inputs);
  request.input_gradients = input_gradients;
  return request;
}

at::Tensor Range(std::vector<int64_t> shape) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  return at::arange(1, count + 1, at::kFloat).div_(static_cast<double>(count)).reshape(shape);
}

bool SameTensors(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || a[i].tensor.defined() != b[i].tensor.defined()) return false;
    if (a[i].tensor.defined() && !at::equal(a[i].tensor, b[i].tensor)) return false;
  }
  return true;
}

bool SameState(const Pipeline& pipeline, const PlainReference& plain) {
  return SameTensors(pipeline.ExportState(false).value(), plain.SavedTensors());
}

std::string StatusText(const absl::Status& status) { return status.ToString(); }

}  // namespace penstock::testing
