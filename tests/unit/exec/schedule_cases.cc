#include "tests/unit/exec/schedule_cases.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/schedule/generators.h"
#include "tests/unit/exec/function_layers.h"

namespace penstock::testing {
namespace {

LayerSpec Stash() {
  const auto forward = [](const Batch& in, const LayerContext& context, const Tensors&) {
    context.skips->Stash("first", in.TensorAt(0));
    return in;
  };
  return Function({.forward = forward, .stashes = {"first"}, .name = "stash"});
}

LayerSpec Pop() {
  const auto forward = [](const Batch& in, const LayerContext& context, const Tensors&) {
    return Batch(in.TensorAt(0).add(*context.skips->Pop("first").tensor()));
  };
  return Function({.forward = forward, .pops = {"first"}, .name = "pop"});
}

LayerSpec Second(int stage) {
  const std::string name = absl::StrCat("second", stage);
  if (stage % 3 == 0) return Built("dropout", {{"p", 0.2}}, name);
  if (stage % 3 == 1) return Built("batch_norm", {{"features", kCaseWidth}}, name);
  return Built("gelu", {}, name);
}

}  // namespace

std::vector<ScheduleCase> ScheduleCases(int max_lanes, int max_chunks) {
  std::vector<ScheduleCase> cases;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    if (!kind.trains) continue;
    for (int lanes = 1; lanes <= max_lanes; ++lanes) {
      for (int chunks = kind.min_chunks; chunks <= std::min(kind.max_chunks, max_chunks); ++chunks) {
        ScheduleCase one = {std::string(kind.name), lanes, chunks};
        one.min_micro_batches = MinMicroBatches(kind, lanes);
        if (kind.name == "lag") one.lag = lanes;
        cases.push_back(std::move(one));
      }
    }
  }
  return cases;
}

std::string Describe(const ScheduleCase& one) {
  return absl::StrCat(one.kind, ", ", one.lanes, " lanes, ", one.chunks, " chunks");
}

PipelineSpec SpecOf(const ScheduleCase& one, int micro_batches, CheckpointMode mode) {
  std::vector<LayerSpec> layers;
  std::vector<int> balance(one.stages(), 2);
  layers.push_back(Stash());
  ++balance.front();
  for (int stage = 0; stage < one.stages(); ++stage) {
    layers.push_back(Built("linear", {{"in", kCaseWidth}, {"out", kCaseWidth}}, absl::StrCat("linear", stage)));
    layers.push_back(Second(stage));
  }
  layers.push_back(Pop());
  ++balance.back();
  PipelineSpec spec = Pipe(std::move(layers), std::move(balance), micro_batches, mode);
  if (one.stages() > 1) spec.model.ties = {{{"linear0.weight", absl::StrCat("linear", one.stages() - 1, ".weight")}}};
  spec.schedule.kind = one.kind;
  spec.schedule.chunks = one.chunks;
  spec.schedule.lag = one.lag;
  spec.optimizer.options = {{"learning_rate", 0.1}};
  return spec;
}

}  // namespace penstock::testing
