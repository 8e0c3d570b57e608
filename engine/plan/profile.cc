#include "engine/plan/profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/device/device.h"
#include "engine/device/torch_status.h"
#include "engine/model/run_layer.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

// Counts the bytes that this thread allocates and has not yet freed, through LibTorch's reporting hook.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override { live_ += change; }
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live() const { return live_; }

 private:
  int64_t live_ = 0;
};

double Median(std::vector<int64_t> nanos) {
  std::sort(nanos.begin(), nanos.end());
  return static_cast<double>(nanos[nanos.size() / 2]) * 1e-9;
}

// One forward and backward of a layer; leaves the outputs in `values`, detached.
struct Timing {
  int64_t forward_nanos = 0;
  int64_t backward_nanos = 0;
  int64_t stash_bytes = 0;
};

Timing RunOnce(const NamedLayer& layer, Batch& values, SkipTracker& skips, Clock* clock) {
  const Batch leaves = values.MapTensors([](const at::Tensor& value) {
    at::Tensor leaf = value.detach();
    if (leaf.is_floating_point()) leaf.requires_grad_(true);
    return leaf;
  });
  KeyedRandom random(0, StepId(0), MicrobatchIndex(0), LayerIndex(0));
  auto memory = std::make_shared<LiveBytes>();
  Timing timing;
  Batch outputs;
  {
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    const int64_t begin = clock->NowNanos();
    outputs = RunLayer(layer, leaves, {.training = true, .recomputing = false, .random = &random}, skips);
    timing.forward_nanos = clock->NowNanos() - begin;
    timing.stash_bytes = memory->live();
  }
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
  values = outputs.MapTensors([](const at::Tensor& output) { return output.detach(); });
  for (const Value& value : outputs) {
    if (!value.is_tensor() || !value.tensor()->requires_grad()) continue;
    roots.push_back(*value.tensor());
    gradients.push_back(at::ones_like(*value.tensor()));
  }
  outputs = Batch();
  const int64_t begin = clock->NowNanos();
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  timing.backward_nanos = clock->NowNanos() - begin;
  // The gradients stay: all but the first micro-batch of a step add to them, and that is a pass over memory of its own.
  return timing;
}

absl::StatusOr<LayerProfile> ProfileLayer(const LayerSpec& spec, int index, Batch& values, SkipTracker& skips,
                                          const ProfileOptions& options, Clock* clock) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<NamedLayer> built, BuildLayers({spec}, 0));
  Layer& layer = *built[0].layer;
  LayerProfile profile;
  absl::Status status = RunTorch([&] {
    at::AutoGradMode with_graph(true);
    if (index == 0) {
      const Tensors examples = ExampleInputs(layer.InputSignature(), options.rows, layer.LargestOpenDimension());
      values = examples.size() == 1 ? Batch(examples[0]) : Batch::OfTensors(examples);
    }
    std::vector<int64_t> forward;
    std::vector<int64_t> backward;
    Batch outputs;
    SkipTracker after;
    const int64_t begin = clock->NowNanos();
    for (int repeat = 0; repeat <= options.repeats; ++repeat) {
      outputs = values;
      after = skips;
      const Timing timing = RunOnce(built[0], outputs, after, clock);
      if (repeat == 0) continue;  // warm-up
      forward.push_back(timing.forward_nanos);
      backward.push_back(timing.backward_nanos);
      profile.stash_bytes = std::max<int64_t>(timing.stash_bytes, 0);
      if (clock->NowNanos() - begin > options.budget_nanos) break;
    }
    profile.forward_seconds = Median(forward);
    profile.backward_seconds = Median(backward);
    values = std::move(outputs);
    skips = std::move(after);
    profile.output_bytes = ByteSize(values);
    profile.parameter_bytes = ByteSize(layer.parameters());
  });
  if (!status.ok()) {
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat("spec.model: layer ", index, " (", spec.name,
                              ") does not run on the output of the layer "
                              "before it: ",
                              status.message()))
        .With("field", absl::StrCat("spec.model.layers[", index, "]"))
        .With("value", spec.kind);
  }
  return profile;
}

absl::StatusOr<std::vector<LayerProfile>> ProfileOnThisThread(const std::vector<LayerSpec>& layers,
                                                              const ProfileOptions& options, Clock* clock) {
  std::vector<LayerProfile> profiles;
  Batch values;
  SkipTracker skips;
  for (size_t i = 0; i < layers.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(LayerProfile profile,
                              ProfileLayer(layers[i], static_cast<int>(i), values, skips, options, clock));
    profiles.push_back(profile);
  }
  return profiles;
}

}  // namespace

Tensors ExampleInputs(const std::vector<TensorSignature>& signature, int64_t rows, int64_t open_dimension) {
  Tensors inputs;
  for (const TensorSignature& input : signature) {
    std::vector<int64_t> shape = input.shape;
    shape[0] = rows;
    for (size_t i = 1; i < shape.size(); ++i) {
      if (shape[i] < 0) shape[i] = open_dimension;
    }
    inputs.push_back(at::zeros(shape, at::TensorOptions().dtype(ToScalarType(input.type).value())));
  }
  return inputs;
}

absl::StatusOr<std::vector<LayerProfile>> ProfileLayers(const std::vector<LayerSpec>& layers,
                                                        const std::vector<Device>& devices,
                                                        const ProfileOptions& options, Clock* clock) {
  std::vector<absl::StatusOr<std::vector<LayerProfile>>> measured(
      devices.size(), absl::StatusOr<std::vector<LayerProfile>>(std::vector<LayerProfile>()));
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (size_t d = 0; d < devices.size(); ++d) {
      threads.push_back(std::make_unique<Thread>(
          absl::StrCat("ps-profile-", d),
          [&, d] {
            UseCores(devices[d]);
            measured[d] = ProfileOnThisThread(layers, options, clock);
          },
          devices[d].cores));
    }
  }  // joins
  std::vector<LayerProfile> mean(layers.size());
  for (const auto& profiles : measured) {
    if (!profiles.ok()) return profiles.status();
    for (size_t i = 0; i < layers.size(); ++i) {
      const LayerProfile& one = (*profiles)[i];
      mean[i].forward_seconds += one.forward_seconds / static_cast<double>(devices.size());
      mean[i].backward_seconds += one.backward_seconds / static_cast<double>(devices.size());
      mean[i].output_bytes = one.output_bytes;
      mean[i].stash_bytes = one.stash_bytes;
      mean[i].parameter_bytes = one.parameter_bytes;
    }
  }
  return mean;
}

}  // namespace penstock
