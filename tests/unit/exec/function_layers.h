#pragma once

// What the tests of whole pipelines share: layers whose forward is a function of the test, and short forms of the
// calls.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/pipeline.h"
#include "engine/model/layer.h"
#include "engine/schedule/action.h"
#include "tests/support/plain_reference.h"

namespace penstock::testing {

// What a layer does. `parameters` are its own, in the order of FunctionLayer::parameters.
using LayerFunction = std::function<Batch(const Batch& inputs, const LayerContext& context, const Tensors& parameters)>;

// Describes a layer of kind `test_function`, which takes any values; `name` may be empty.
struct FunctionLayer {
  LayerFunction forward;
  std::vector<std::vector<int64_t>> parameters = {};  // shapes; values are 1, 2, 3, ... divided by their number
  std::vector<std::string> stashes = {};
  std::vector<std::string> pops = {};
  std::string name = {};
  std::vector<std::string> outputs =
      {};                  // names of the tensors that it gives, float32 [rows, ?]; empty: only a run tells
  bool needs_grad = true;  // whether parameters require it
};

// The layer of a specification. What it refers to must outlive every pipeline made from that.
LayerSpec Function(FunctionLayer layer);
LayerSpec Function(LayerFunction forward);
LayerSpec Built(const std::string& kind, OptionMap options = {}, const std::string& name = "");
// The parameters of the function layer as it was built last, for a pipeline if that came last.
Tensors ParametersOf(const LayerSpec& layer);
// A function layer's forward that gives the product of its input and the only parameter.
Batch Multiply(const Batch& inputs, const LayerContext& context, const Tensors& parameters);
// The same as a layer with a parameter of that shape.
LayerSpec Weighted(std::vector<int64_t> shape = {2});
// A function layer's forward that gives its inputs.
Batch PassOn(const Batch& inputs, const LayerContext& context, const Tensors& parameters);
LayerSpec Linear(int64_t in, int64_t out, const std::string& name = "");

constexpr CheckpointMode kModes[] = {CheckpointMode::kAlways, CheckpointMode::kExceptLast, CheckpointMode::kNever};
const char* ModeName(CheckpointMode mode);

// SGD with learning rate 1, seed 7, fill-drain, and the loss of mean_squared_error.
PipelineSpec Pipe(std::vector<LayerSpec> layers, std::vector<int> balance, int chunks = 1,
                  CheckpointMode mode = CheckpointMode::kExceptLast);
PlainReference PlainOf(const PipelineSpec& spec);

// Two CPU devices, and what happens on them. In serial mode everything runs on the caller's thread.
class PipeWorld {
 public:
  explicit PipeWorld(DevicePool::Mode mode = DevicePool::Mode::kSerial);

  absl::StatusOr<std::unique_ptr<Pipeline>> TryMake(const PipelineSpec& spec);
  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec);  // ends the program if it fails
  absl::StatusOr<ForwardOutcome> Infer(Pipeline& pipeline, NamedValues inputs, int chunks = 0);

  DevicePool& pool() { return pool_; }
  std::function<void(const Action&)> before_action;    // on the stages' threads: set it before any pipeline runs
  std::function<void(const PassEvent&)> watch_passes;  // the same

 private:
  DevicePool pool_;
};

// One value by itself, and several in a tuple.
NamedValues Input(Value value);
NamedValues Inputs(const std::vector<Value>& values);
ContributionRequest Contribution(const at::Tensor& input, const at::Tensor& target);
ForwardRequest Ask(NamedValues inputs, bool input_gradients = false);
// 0, 1, 2, ... scaled, so that every element is another.
at::Tensor Range(std::vector<int64_t> shape);
// The same names and elements, bit for bit; undefined tensors equal each other.
bool SameTensors(const NamedTensors& a, const NamedTensors& b);
// Whether both trained to the same state.
bool SameState(const Pipeline& pipeline, const PlainReference& plain);
std::string StatusText(const absl::Status& status);

}  // namespace penstock::testing
