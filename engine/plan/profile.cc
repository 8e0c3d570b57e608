#include "engine/plan/profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/autograd/autocast.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/device/device.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
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

std::optional<at::ScalarType> AutocastType(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  return std::nullopt;
}

// What reaches a layer: values of the layers before it without their graph; a tensor requires grad if it did there.
struct Arrival {
  Batch values;
  std::map<SkipName, Value> skips;
};

at::Tensor WithoutGraph(const at::Tensor& tensor) { return tensor.detach().requires_grad_(tensor.requires_grad()); }

// A tensor that a layer may change in place, as in the middle of a stage.
at::Tensor FreshCopy(const at::Tensor& tensor) { return WithoutGraph(tensor).clone(); }

Value MapTensor(const Value& value, at::Tensor (*f)(const at::Tensor&)) { return Batch(value).MapTensors(f)[0]; }

struct Timing {
  int64_t forward_nanos = 0;
  int64_t backward_nanos = 0;
  int64_t stash_bytes = 0;
};

// What a layer answered: its outputs, then what it has stashed.
struct Answer {
  Batch outputs;
  std::map<SkipName, Value> stashed;
};

int64_t Backward(const Answer& answer, Clock* clock) {
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
  const auto add = [&](const Value& value) {
    if (!value.is_tensor() || !value.tensor()->requires_grad()) return;
    roots.push_back(*value.tensor());
    gradients.push_back(at::ones_like(*value.tensor()));
  };
  for (const Value& value : answer.outputs) add(value);
  for (const auto& [name, value] : answer.stashed) add(value);
  const int64_t begin = clock->NowNanos();
  if (!roots.empty()) torch::autograd::backward(roots, gradients);
  return clock->NowNanos() - begin;
}

// One forward and backward of a layer; leaves in `next` what reaches the layer after it.
Timing RunOnce(const NamedLayer& layer, const Arrival& arrival, const ModelSettings& settings, Clock* clock,
               Arrival& next) {
  const SkipDeclaration declared = layer.layer->skips();
  const Batch inputs = arrival.values.MapTensors(FreshCopy);
  next.skips = arrival.skips;
  SkipTracker tracker;
  std::vector<Value> popped;  // held, so that freeing them does not count as memory that the layer gives back
  for (const SkipName& name : declared.pops) {
    const auto node = next.skips.extract(name);
    if (node.empty()) continue;
    popped.push_back(MapTensor(node.mapped(), FreshCopy));
    tracker.Put(name, popped.back());
  }
  KeyedRandom random(0, StepId(0), MicrobatchIndex(0), LayerIndex(0));
  auto memory = std::make_shared<LiveBytes>();
  Timing timing;
  Answer answer;
  {
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    const AutocastGuard precision(at::kCPU, AutocastType(settings.autocast));
    const int64_t begin = clock->NowNanos();
    answer.outputs = RunLayer(layer, inputs, {.training = true, .recomputing = false, .random = &random}, tracker);
    timing.forward_nanos = clock->NowNanos() - begin;
    timing.stash_bytes = memory->live();
  }
  for (const SkipName& name : declared.stashes) answer.stashed[name] = *tracker.Take(name);
  next.values = answer.outputs.MapTensors(WithoutGraph);
  for (const auto& [name, value] : answer.stashed) next.skips[name] = MapTensor(value, WithoutGraph);
  timing.backward_nanos = Backward(answer, clock);
  // The gradients stay: all but the first micro-batch of a step add to them, and that is a pass over memory of its own.
  return timing;
}

// Leaves in `arrival` what reaches the next layer.
LayerProfile Measure(const NamedLayer& layer, Arrival& arrival, const ModelSettings& settings,
                     const ProfileOptions& options, Clock* clock) {
  LayerProfile profile;
  std::vector<int64_t> forward;
  std::vector<int64_t> backward;
  Arrival next;
  const int64_t begin = clock->NowNanos();
  for (int repeat = 0; repeat <= std::max(1, options.repeats); ++repeat) {
    const Timing timing = RunOnce(layer, arrival, settings, clock, next);
    if (repeat == 0) continue;  // warm-up
    forward.push_back(timing.forward_nanos);
    backward.push_back(timing.backward_nanos);
    profile.stash_bytes = std::max<int64_t>(timing.stash_bytes, 0);
    if (clock->NowNanos() - begin > options.budget_nanos) break;
  }
  profile.forward_seconds = Median(forward);
  profile.backward_seconds = Median(backward);
  profile.output_bytes = ByteSize(next.values);
  profile.parameter_bytes = ByteSize(layer.layer->parameters());
  for (const SkipName& name : layer.layer->skips().stashes) {
    profile.skip_bytes[name] = ByteSize(Batch(next.skips.at(name)));
  }
  arrival = std::move(next);
  return profile;
}

absl::StatusOr<LayerProfile> ProfileLayer(const LayerSpec& spec, int index, Arrival& arrival,
                                          const ModelSettings& settings, const ProfileOptions& options, Clock* clock) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<NamedLayer> built, BuildLayers({spec}, 0, settings.build));
  Layer& layer = *built[0].layer;
  LayerProfile profile;
  const absl::Status status = RunTorch([&] {
    at::AutoGradMode with_graph(true);
    if (index == 0) {
      const Tensors examples = ExampleInputs(layer.InputSignature(), options.rows, layer.LargestOpenDimension());
      arrival.values = examples.size() == 1 ? Batch(examples[0]) : Batch::OfTensors(examples);
    }
    profile = Measure(built[0], arrival, settings, options, clock);
  });
  if (status.ok()) return profile;
  if (ReasonOf(status) == "SKIP_INVALID") return status;
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("spec.model: layer ", index, " (", spec.name,
                            ") does not run on the output of the layer before it: ", status.message()))
      .With("field", absl::StrCat("spec.model.layers[", index, "]"))
      .With("value", spec.kind);
}

absl::StatusOr<std::vector<LayerProfile>> ProfileOnThisThread(const std::vector<LayerSpec>& layers,
                                                              const ModelSettings& settings,
                                                              const ProfileOptions& options, Clock* clock) {
  std::vector<LayerProfile> profiles;
  Arrival arrival;
  for (size_t i = 0; i < layers.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(LayerProfile profile,
                              ProfileLayer(layers[i], static_cast<int>(i), arrival, settings, options, clock));
    profiles.push_back(std::move(profile));
  }
  return profiles;
}

// Nothing if there is something to measure with: the first layer says what it takes.
absl::StatusOr<std::vector<LayerProfile>> WithoutMeasurement(const std::vector<LayerSpec>& layers,
                                                             const ModelSettings& settings) {
  std::vector<LayerProfile> profiles;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<NamedLayer> shapes, BuildLayerShapes(layers, settings.build));
  const std::vector<TensorSignature> inputs = shapes.front().layer->InputSignature();
  const auto is_any = [](const TensorSignature& input) { return input.any; };
  if (!inputs.empty() && std::none_of(inputs.begin(), inputs.end(), is_any)) return profiles;
  for (const NamedLayer& layer : shapes) {
    LayerProfile profile;
    profile.parameter_bytes = ByteSize(layer.layer->parameters());
    profile.measured = false;
    profiles.push_back(std::move(profile));
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
                                                        const ModelSettings& settings, const ProfileOptions& options,
                                                        Clock* clock) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<LayerProfile> known, WithoutMeasurement(layers, settings));
  if (!known.empty()) return known;
  std::vector<absl::StatusOr<std::vector<LayerProfile>>> measured(
      devices.size(), absl::StatusOr<std::vector<LayerProfile>>(std::vector<LayerProfile>()));
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (size_t d = 0; d < devices.size(); ++d) {
      threads.push_back(std::make_unique<Thread>(
          absl::StrCat("ps-profile-", d),
          [&, d] {
            UseCores(devices[d]);
            measured[d] = ProfileOnThisThread(layers, settings, options, clock);
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
      mean[i].skip_bytes = one.skip_bytes;
    }
  }
  return mean;
}

}  // namespace penstock
