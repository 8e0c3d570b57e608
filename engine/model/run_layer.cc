#include "engine/model/run_layer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {

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
    if (c10::GradMode::is_enabled()) SeparateUses(outputs);
    for (auto& [name, value] : stashed_) tracker_.Put(layer_.layer->Isolated(name), std::move(value));
  }

 private:
  static bool Contains(const std::vector<std::string>& names, const std::string& name) {
    for (const std::string& known : names) {
      if (known == name) return true;
    }
    return false;
  }

  // A tensor that leaves the layer several times gets a node of the graph for each further time. So the gradients of its
  // uses are summed in the order of the layers, two by two, wherever the model is cut between them.
  void SeparateUses(Batch& outputs) {
    std::set<const void*> left;
    const auto separate = [&left](const at::Tensor& tensor) {
      const bool again = tensor.requires_grad() && !left.insert(tensor.unsafeGetTensorImpl()).second;
      return again ? at::alias(tensor) : tensor;
    };
    if (outputs.size() + stashed_.size() < 2) return;
    outputs = outputs.MapTensors(separate);
    for (auto& [name, value] : stashed_) value = Batch(value).MapTensors(separate)[0];
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
  RunningLayer running(layer, skips);
  context.skips = &running;
  Batch outputs = layer.tuple_as_one_argument ? layer.layer->Forward(AsOneArgument(inputs, layer.name), context)
                                              : layer.layer->Forward(inputs, context);
  // A tuple that a layer gives as one value is its several values.
  if (outputs.atomic() && outputs[0].tuple() != nullptr) outputs = Batch::Tuple(*outputs[0].tuple());
  running.Finish(outputs);
  return outputs;
}

}  // namespace penstock
