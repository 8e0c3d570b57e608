#include "engine/plan/layer_probe.h"

#include <ATen/ops/ones_like.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/autograd/autocast.h"
#include "engine/autograd/split_backward.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/model/run_layer.h"

namespace penstock {
namespace {

// Counts the bytes of a device that this thread allocates and has not yet freed, through the hook that LibTorch's
// allocators report to; `around`, which may be null, is told as before. The allocator's own sums are those of all
// threads, others' pipelines among them.
class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  LiveBytes(c10::Device device, c10::MemoryReportingInfoBase* around) : device_(device), around_(around) {}
  void reportMemoryUsage(void* block, int64_t change, size_t allocated, size_t reserved, c10::Device device) override {
    if (around_ != nullptr) around_->reportMemoryUsage(block, change, allocated, reserved, device);
    if (device.type() == device_.type() && (device.is_cpu() || device.index() == device_.index())) live_ += change;
  }
  void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live() const { return live_; }

 private:
  const c10::Device device_;
  c10::MemoryReportingInfoBase* const around_;
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

at::Tensor WithoutGraph(const at::Tensor& tensor) { return tensor.detach().requires_grad_(tensor.requires_grad()); }

struct Timing {
  int64_t forward_nanos = 0;
  int64_t backward_nanos = 0;        // of both halves in one
  int64_t input_gradient_nanos = 0;  // of the halves, if they were run by themselves
  int64_t weight_gradient_nanos = 0;
  int64_t stash_bytes = 0;
};

// What a layer returned: its outputs, then what it has stashed.
struct Returned {
  Batch outputs;
  std::map<SkipName, Value> stashed;
};

// When everything that the device was given is done.
int64_t DoneNanos(DeviceStreams& streams, Clock* clock) {
  streams.Synchronize();
  return clock->NowNanos();
}

// Where a backward begins.
struct Roots {
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
};

Roots RootsOf(const Returned& returned) {
  Roots found;
  const auto add = [&](const Batch& values) {
    for (const at::Tensor& tensor : values.AllTensors()) {
      if (!tensor.requires_grad()) continue;
      found.roots.push_back(tensor);
      found.gradients.push_back(at::ones_like(tensor));
    }
  };
  add(returned.outputs);
  for (const auto& [name, value] : returned.stashed) add(Batch(value));
  return found;
}

// `leaves` are what the gradients of the inputs go to.
void RunBackward(const Roots& from, const std::vector<at::Tensor>& leaves, bool halves, DeviceStreams& streams,
                 Clock* clock, Timing& timing) {
  if (from.roots.empty()) return;
  const int64_t begin = DoneNanos(streams, clock);
  if (!halves) {
    torch::autograd::backward(from.roots, from.gradients);
    timing.backward_nanos = DoneNanos(streams, clock) - begin;
    return;
  }
  const std::unique_ptr<SplitBackward> owed = SplitBackward::InputHalf(from.roots, from.gradients, leaves);
  const int64_t middle = DoneNanos(streams, clock);
  owed->WeightHalf();
  timing.input_gradient_nanos = middle - begin;
  timing.weight_gradient_nanos = DoneNanos(streams, clock) - middle;
}

// One forward and backward of a layer, the backward in halves or not; leaves in `next` what reaches the layer after it.
Timing RunOnce(const NamedLayer& layer, const Arrival& arrival, bool halves, DeviceStreams& streams,
               const ModelSettings& settings, Clock* clock, Arrival& next) {
  const SkipDeclaration declared = layer.layer->skips();
  std::vector<at::Tensor> leaves;
  // A copy of a leaf, which the layer may change in place, as in the middle of a stage.
  const auto fresh = [&leaves](const at::Tensor& tensor) {
    const at::Tensor leaf = WithoutGraph(tensor);
    if (leaf.requires_grad()) leaves.push_back(leaf);
    return leaf.clone();
  };
  const Batch inputs = arrival.values.MapTensors(fresh);
  next.skips = arrival.skips;
  SkipTracker tracker;
  std::vector<Value> popped;  // held, so that freeing them does not count as memory that the layer gives back
  for (const SkipName& name : declared.pops) {
    const auto node = next.skips.extract(name);
    if (node.empty()) continue;
    popped.push_back(node.mapped().MapTensors(fresh));
    tracker.Put(name, popped.back());
  }
  KeyedRandom random(0, StepId(0), MicroBatchIndex(0), LayerIndex(0));
  auto memory = std::make_shared<LiveBytes>(
      streams.device(),
      static_cast<c10::MemoryReportingInfoBase*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE)));
  Timing timing;
  Returned returned;
  {
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    const AutocastGuard precision(streams.device().type(), AutocastType(settings.autocast));
    const int64_t begin = DoneNanos(streams, clock);
    returned.outputs = RunLayer(layer, inputs, {.training = true, .recomputing = false, .random = &random}, tracker);
    timing.forward_nanos = DoneNanos(streams, clock) - begin;
    timing.stash_bytes = memory->live();
  }
  for (const SkipName& name : declared.stashes) returned.stashed[name] = *tracker.Take(name);
  next.values = returned.outputs.MapTensors(WithoutGraph);
  for (const auto& [name, value] : returned.stashed) next.skips[name] = value.MapTensors(WithoutGraph);
  RunBackward(RootsOf(returned), leaves, halves, streams, clock, timing);
  // The gradients stay: all but the first micro-batch of a step add to them, and that is a pass over memory of its own.
  return timing;
}

}  // namespace

LayerProfile MeasureLayer(const NamedLayer& layer, Arrival& arrival, DeviceStreams& streams,
                          const ModelSettings& settings, const ProfileOptions& options, Clock* clock) {
  for (const NamedTensor& parameter : layer.layer->parameters()) {
    if (!parameter.tensor.grad().defined()) continue;
    ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                      absl::StrCat("some parameter already has gradient: ", layer.name, ".", parameter.name))
                    .With("field", absl::StrCat(layer.name, ".", parameter.name)));
  }
  LayerProfile profile;
  std::vector<int64_t> forward;
  std::vector<int64_t> backward;
  std::vector<int64_t> input_gradient;
  std::vector<int64_t> weight_gradient;
  Arrival next;
  const int64_t begin = clock->NowNanos();
  for (int repeat = 0; repeat <= std::max(1, options.repeats); ++repeat) {
    const Timing timing = RunOnce(layer, arrival, /*halves=*/false, streams, settings, clock, next);
    const bool late = options.planning->OutOfTime();
    if (repeat == 0 && !late) continue;  // warm-up
    Timing split;
    if (options.halves && late) {  // no pass for it: each takes half of the whole
      split.input_gradient_nanos = split.weight_gradient_nanos = timing.backward_nanos / 2;
    } else if (options.halves) {
      split = RunOnce(layer, arrival, /*halves=*/true, streams, settings, clock, next);
    }
    input_gradient.push_back(split.input_gradient_nanos);
    weight_gradient.push_back(split.weight_gradient_nanos);
    forward.push_back(timing.forward_nanos);
    backward.push_back(timing.backward_nanos);
    profile.stash_bytes = std::max<int64_t>(timing.stash_bytes, 0);
    if (clock->NowNanos() - begin > options.budget_nanos || options.planning->OutOfTime()) break;
  }
  profile.forward_seconds = Median(forward);
  profile.backward_seconds = Median(backward);
  profile.input_gradient_seconds = Median(input_gradient);
  profile.weight_gradient_seconds = Median(weight_gradient);
  profile.output_bytes = ByteSize(next.values);
  profile.parameter_bytes = ByteSize(layer.layer->parameters());
  for (const SkipName& name : layer.layer->skips().stashes) {
    profile.skip_bytes[name] = ByteSize(Batch(next.skips.at(name)));
  }
  arrival = std::move(next);
  return profile;
}

}  // namespace penstock
