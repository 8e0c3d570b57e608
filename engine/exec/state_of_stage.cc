#include "engine/exec/state_of_stage.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace penstock {

NamedTensors ShapesOf(const NamedTensors& tensors) {
  NamedTensors shapes;
  for (const auto& [name, tensor] : tensors) {
    shapes.push_back({name, at::empty(tensor.sizes(), tensor.options().device(at::kMeta))});
  }
  return shapes;
}

NamedTensors InModelOrder(StatesOfStages states) {
  std::sort(states.begin(), states.end(),
            [](const StateOfStage& a, const StateOfStage& b) { return a.stage < b.stage; });
  NamedTensors all;
  for (NamedTensors StateOfStage::*part : {&StateOfStage::saved, &StateOfStage::optimizer}) {
    for (StateOfStage& state : states) {
      for (NamedTensor& tensor : state.*part) all.push_back(std::move(tensor));
    }
  }
  return all;
}

}  // namespace penstock
