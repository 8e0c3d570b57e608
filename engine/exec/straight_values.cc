#include "engine/exec/straight_values.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace penstock {
namespace {

Value ShapeOf(const Value& value) {
  return value.MapTensors([](const at::Tensor& tensor) {
    return at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(at::kMeta));
  });
}

// Puts what a stage has into the places of a whole tuple.
void Put(const std::vector<StraightValue>& values, const std::vector<Batch>& of_stage, std::vector<Batch>& whole) {
  if (values.empty()) return;
  for (size_t m = 0; m < whole.size(); ++m) {
    for (size_t i = 0; i < values.size() && i < of_stage[m].size(); ++i) {
      if (!of_stage[m][i].is_none()) whole[m].Set(values[i].position, of_stage[m][i]).IgnoreError();
    }
  }
}

}  // namespace

std::vector<std::vector<Batch>> InputsByStage(const Plan& plan, std::vector<Batch> micro_batches) {
  std::vector<std::vector<Batch>> by_stage(plan.stages.size());
  for (const SkipRoute& route : plan.skips) {
    if (route.inputs.empty()) continue;
    for (Batch& all : micro_batches) {
      ValueList values;
      for (const StraightValue& input : route.inputs) {
        values.push_back(all[input.position]);
        all.Set(input.position, ShapeOf(values.back())).IgnoreError();
      }
      by_stage[route.edge.to].push_back(Batch::Tuple(std::move(values)));
    }
  }
  by_stage.front() = std::move(micro_batches);
  return by_stage;
}

std::vector<Batch> JoinOutputs(const Plan& plan, const std::vector<std::vector<Batch>>& outputs) {
  std::vector<Batch> joined = outputs.back();
  for (const SkipRoute& route : plan.skips) Put(route.outputs, outputs[route.edge.from], joined);
  return joined;
}

std::vector<Batch> JoinInputGradients(const Plan& plan, const std::vector<std::vector<Batch>>& gradients) {
  std::vector<Batch> joined = gradients.front();
  for (const SkipRoute& route : plan.skips) Put(route.inputs, gradients[route.edge.to], joined);
  return joined;
}

}  // namespace penstock
