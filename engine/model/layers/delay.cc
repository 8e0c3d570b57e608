// Layer kind `delay`: stands for an accelerator that takes its time. It gives its first value plus one learned number,
// `shift`, which is 0 at first, and the other values as they are; and it sleeps (SleepUntilNanos: exact to some 50 us),
// so that many devices can be scheduled on a machine with few cores.
// Options: forward_ms (1), input_ms (1), weight_ms (1): what forward, input gradient and weight gradient take; at most
// a minute. inference_ms (forward_ms): what a forward takes outside of training. features (0): the width of the one
// value, if it is a float tensor of that width; 0: whatever comes. A model that begins with the latter cannot be
// measured before it runs.
//
//   where                         sleeps
//   forward, recomputation        forward_ms, that of the addition included
//   fused backward                input_ms + weight_ms
//   input-gradient half           input_ms, and nothing on a stage whose inputs ask for no gradient (the first one,
//                                 mostly)
//   weight-gradient half          weight_ms, and there input_ms + weight_ms: the whole backward is its weight half
//
// So every stage's backward takes the same time in total, the first one's too. With gradients for the inputs of the
// first stage, its halves are as long as the others'.

#include <ATen/ops/add.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

constexpr double kNanosPerMilli = 1e6;
constexpr double kLongestMillis = 60'000;

void Sleep(int64_t nanos, int64_t since) {
  if (nanos > 0) SleepUntilNanos(since + nanos);
}

// Sleeps of one pass over the graph follow each other as kernels on a stream do: the host does not come in between.
void SleepInPass(int64_t nanos) {
  struct Busy {
    int pass = -1;
    int64_t until = 0;
  };
  thread_local Busy busy;
  const int pass = torch::autograd::get_current_graph_task_id();
  const int64_t start = pass == busy.pass ? busy.until : RealClock()->NowNanos();
  busy = {pass, start + nanos};
  Sleep(nanos, start);
}

// Nodes of the graph, not functions of the operators' kind: whoever waits 5 ms finds all code cold, and a device's own
// work on the host should be small beside what it stands for.

// The gradient of the shift: the sum of what arrives.
class WeightSleep : public Node {
 public:
  WeightSleep(int64_t nanos, at::ScalarType type, torch::autograd::edge_list next)
      : Node(std::move(next)), nanos_(nanos), type_(type) {}
  std::string name() const override { return "DelayWeightBackward"; }

 private:
  variable_list apply(variable_list&& gradients) override {
    SleepInPass(nanos_);
    return {gradients[0].defined() ? gradients[0].sum().reshape({1}).to(type_) : at::Tensor()};
  }

  const int64_t nanos_;
  const at::ScalarType type_;
};

// Every backward comes through it.
class InputSleep : public Node {
 public:
  InputSleep(int64_t nanos, torch::autograd::edge_list next) : Node(std::move(next)), nanos_(nanos) {}
  std::string name() const override { return "DelayInputBackward"; }

 private:
  variable_list apply(variable_list&& gradients) override {
    SleepInPass(nanos_);
    return std::move(gradients);
  }

  const int64_t nanos_;
};

// Hands what arrives to the input and to the shift. A node of its own: a split backward runs the node at which the two
// ways part in both halves.
class Fork : public Node {
 public:
  explicit Fork(torch::autograd::edge_list next) : Node(std::move(next)) {}
  std::string name() const override { return "DelayForkBackward"; }

 private:
  variable_list apply(variable_list&& gradients) override { return {gradients[0], gradients[0]}; }
};

// A node in memory that autograd frees without recursion, however long the graph.
template <typename T, typename... Arguments>
std::shared_ptr<T> NewNode(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
}

// The two sleeps of the backward stand at different places of the graph: the input's above the sum, where every
// backward comes through; the weight's between the sum and the parameter.
class DelayLayer : public Layer {
 public:
  struct Times {
    int64_t forward_nanos;
    int64_t input_nanos;
    int64_t weight_nanos;
    int64_t inference_nanos;
  };
  DelayLayer(const LayerRequest& request, Times times, int64_t features)
      : times_(times), features_(features), shift_(AddParameter("shift", InitialConstant(request, {1}, 0))) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const int64_t start = RealClock()->NowNanos();
    const at::Tensor& input = First(inputs);
    Value output(Sum(input));
    Sleep(context.training ? times_.forward_nanos : times_.inference_nanos, start);
    if (inputs.atomic()) return Batch(std::move(output));
    std::vector<Value> values = inputs.values();
    values[0] = std::move(output);
    return Batch::Tuple(std::move(values));
  }
  // Without a width as `identity`.
  std::vector<TensorSignature> InputSignature() const override {
    if (features_ > 0) return {{"input", float_type(), {-1, features_}}};
    return {{"", DataType::kUnspecified, {}, /*any=*/true}};
  }
  std::vector<TensorSignature> OutputSignature() const override {
    if (features_ > 0) return {{"output", float_type(), {-1, features_}}};
    return {};
  }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  at::Tensor Sum(const at::Tensor& input) const {
    at::Tensor sum;
    {
      const at::NoGradGuard no_graph;
      sum = at::add(input, shift_.scalar_type() == input.scalar_type() ? shift_ : shift_.to(input.scalar_type()));
    }
    if (!at::GradMode::is_enabled() || !(input.requires_grad() || shift_.requires_grad())) return sum;
    // From the shift upwards.
    const auto above = [&sum](const std::shared_ptr<Node>& node) {
      return torch::autograd::Edge(node, node->add_input_metadata(sum));
    };
    const auto weight =
        NewNode<WeightSleep>(times_.weight_nanos, shift_.scalar_type(), torch::autograd::collect_next_edges(shift_));
    torch::autograd::edge_list ways = torch::autograd::collect_next_edges(input);
    ways.push_back(above(weight));
    const auto fork = NewNode<Fork>(std::move(ways));
    torch::autograd::edge_list only = {above(fork)};
    torch::autograd::set_history(sum, NewNode<InputSleep>(times_.input_nanos, std::move(only)));
    return sum;
  }
  const at::Tensor& First(const Batch& inputs) const {
    if (features_ > 0) return WideInput(inputs, "delay", shift_.scalar_type(), features_);
    const at::Tensor& first = inputs.TensorAt(0);
    if (first.is_floating_point()) return first;
    ThrowStatus(
        Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
              absl::StrCat("delay: its first value must be of floating type, got ", toString(first.scalar_type())))
            .With("field", "input")
            .With("value", toString(first.scalar_type())));
  }

  const Times times_;
  const int64_t features_;
  const at::Tensor shift_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeDelay(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const auto nanos = [&reader](const std::string& name, double otherwise) {
    return static_cast<int64_t>(reader.Double(name, otherwise, 0, kLongestMillis) * kNanosPerMilli);
  };
  const int64_t forward = nanos("forward_ms", 1);
  const DelayLayer::Times times = {forward, nanos("input_ms", 1), nanos("weight_ms", 1),
                                   nanos("inference_ms", static_cast<double>(forward) / kNanosPerMilli)};
  const int64_t features = reader.Int("features", 0, 0, kMaxWidth);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<DelayLayer>(request, times, features);
}

}  // namespace penstock
