#include "engine/model/run_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_strided.h>

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

// Between two layers may be a cut, where a gradient stops at a leaf of one graph and goes on into another. What this
// does to a gradient happens to all of them, so that a cut changes no bit of any result:
//
//   order      A tensor that leaves a layer several times (as output and stash) gets a node of its own for each time.
//              Then the gradients of its uses are summed two by two in the order of the layers, as from stage to stage.
//   layout     A leaf lays its gradient out in memory as it is laid out itself. LibTorch's backward functions choose
//              their order of summation, or their approximation of a function, by that layout: part of a larger
//              gradient, as behind a concatenation, gives other roundings than a whole one.

namespace penstock {
namespace {

void TakeGradientsLaidOutLike(const at::Tensor& tensor) {
  const bool dense = tensor.is_non_overlapping_and_dense();
  const std::vector<int64_t> strides =
      tensor.strides().vec();  // the hook must not hold the tensor, which holds the hook
  tensor.register_hook([dense, strides](const at::Tensor& gradient) {
    if (!gradient.defined()) return gradient;  // some other output of the same node has one
    if (!dense) return gradient.contiguous();
    if (gradient.strides() == at::IntArrayRef(strides)) return gradient;
    return at::empty_strided(gradient.sizes(), strides, gradient.options()).copy_(gradient);
  });
}

}  // namespace

// What one layer sees of the tracker while it runs.
class RunningLayer : public LayerSkips {
 public:
  RunningLayer(const NamedLayer& layer, SkipTracker& tracker) : layer_(layer), tracker_(tracker) {
    for (const std::string& name : layer.layer->pops_) loaded_[name] = tracker.Take(layer.layer->Isolated(name));
  }

  void Stash(const std::string& name, Value value) override {
    if (!Contains(layer_.layer->stashes_, name)) Fail(absl::StrCat("'", name, "' has not been declared as stashable"));
    stashed_[name] = std::move(value);
  }

  Value Pop(const std::string& name) override {
    if (!Contains(layer_.layer->pops_, name)) Fail(absl::StrCat("'", name, "' has not been declared as poppable"));
    std::optional<Value> value = std::exchange(loaded_[name], std::nullopt);
    if (!value.has_value()) Fail(absl::StrCat("'", name, "' has not been stashed"));
    popped_.insert(name);
    return *std::move(value);
  }

  // After the layer: everything declared must have happened. `outputs` are what it gives.
  void Finish(Batch& outputs) {
    std::vector<std::string> missing;
    for (const std::string& name : layer_.layer->stashes_) {
      if (stashed_.count(name) == 0) missing.push_back(absl::StrCat("'", name, "'"));
    }
    if (!missing.empty()) Fail(absl::StrCat(absl::StrJoin(missing, ", "), " must be stashed but have not"));
    for (const std::string& name : layer_.layer->pops_) {
      if (popped_.count(name) == 0) missing.push_back(absl::StrCat("'", name, "'"));
    }
    if (!missing.empty()) Fail(absl::StrCat(absl::StrJoin(missing, ", "), " must be popped but have not"));
    if (c10::GradMode::is_enabled()) PrepareForCuts(outputs);
    for (auto& [name, value] : stashed_) tracker_.Put(layer_.layer->Isolated(name), std::move(value));
  }

 private:
  static bool Contains(const std::vector<std::string>& names, const std::string& name) {
    for (const std::string& known : names) {
      if (known == name) return true;
    }
    return false;
  }

  void PrepareForCuts(Batch& outputs) {
    std::set<const void*> left;
    const auto prepare = [&left](const at::Tensor& tensor) {
      if (!tensor.requires_grad()) return tensor;
      const bool again = !left.insert(tensor.unsafeGetTensorImpl()).second;
      at::Tensor own = again ? at::alias(tensor) : tensor;
      TakeGradientsLaidOutLike(own);
      return own;
    };
    outputs = outputs.MapTensors(prepare);
    for (auto& [name, value] : stashed_) value = value.MapTensors(prepare);
  }

  [[noreturn]] void Fail(const std::string& sentence) const {
    ThrowStatus(Error(absl::StatusCode::kFailedPrecondition, "SKIP_INVALID",
                      absl::StrCat("layer ", layer_.name, ": ", sentence))
                    .With("field", layer_.name));
  }

  const NamedLayer& layer_;
  SkipTracker& tracker_;
  std::map<std::string, std::optional<Value>> loaded_;
  std::map<std::string, Value> stashed_;
  std::set<std::string> popped_;
};

namespace {

// Several values as one tuple of tensors, as torchgpipe gives them to a layer.
Batch AsOneArgument(const Batch& inputs, const std::string& layer) {
  if (inputs.atomic()) return inputs;
  for (const Value& value : inputs) {
    if (value.is_tensor()) continue;
    ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                      absl::StrCat("layer ", layer, ": expected Tensor, but got ", value.TypeName()))
                    .With("field", layer)
                    .With("value", value.TypeName()));
  }
  return Batch(Value::Tuple(inputs.values()));
}

}  // namespace

std::optional<Value> SkipTracker::Take(const SkipName& name) {
  auto node = values_.extract(name);
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

Batch RunLayer(const NamedLayer& layer, const Batch& inputs, LayerContext context, SkipTracker& skips) {
  const Batch arguments = inputs.Folded();
  RunningLayer running(layer, skips);
  context.skips = &running;
  Batch outputs = layer.tuple_as_one_argument ? layer.layer->Forward(AsOneArgument(arguments, layer.name), context)
                                              : layer.layer->Forward(arguments, context);
  // A tuple that a layer gives as one value is its several values.
  if (outputs.atomic() && outputs[0].tuple() != nullptr) outputs = Batch::Tuple(*outputs[0].tuple());
  outputs = outputs.Spread();
  running.Finish(outputs);
  return outputs;
}

}  // namespace penstock
