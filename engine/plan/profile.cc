#include "engine/plan/profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/autograd/seeds.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/device.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
#include "engine/plan/layer_probe.h"
#include "engine/plan/measured_memory.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

// Puts the layer's tensors where it is to be measured.
void PlaceLayer(const NamedLayer& layer, const Device& device) {
  if (device.kind == DeviceKind::kCpu) return;
  for (const NamedTensors* tensors : {&layer.layer->parameters(), &layer.layer->buffers()}) {
    for (NamedTensor named : *tensors) named.tensor.set_data(ToDevice(named.tensor.detach(), device));
  }
}

absl::StatusOr<LayerProfile> ProfileLayer(const LayerSpec& spec, int index, int64_t integer, const Device& device,
                                          Arrival& arrival, const ModelSettings& settings,
                                          const ProfileOptions& options, Clock* clock) {
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<NamedLayer> built, BuildLayers({spec}, 0, settings.build));
  Layer& layer = *built[0].layer;
  LayerProfile profile;
  const absl::Status status = RunTorch([&] {
    at::AutoGradMode with_graph(true);
    if (index == 0) {
      const Batch examples = BatchOf(MeasuringInputs(options.sample.get(), layer.InputSignature(), options.rows,
                                                     layer.LargestOpenDimension(), integer));
      arrival.values = examples.MapTensors([&](const at::Tensor& tensor) { return ToDevice(tensor, device); });
    }
    PlaceLayer(built[0], device);
    DeviceStreams& streams = StreamsOf(device);
    streams.RunOn(StreamKind::kCompute,
                  [&] { profile = MeasureLayer(built[0], arrival, streams, settings, options, clock); });
  });
  if (status.ok()) return profile;
  const bool of_model = status.code() != absl::StatusCode::kCancelled &&
                        status.code() != absl::StatusCode::kResourceExhausted && ReasonOf(status) != "SKIP_INVALID";
  if (!of_model) return status;
  if (index == 0 && options.sample != nullptr) {
    return Error(absl::StatusCode::kInvalidArgument, "FIELD_INVALID",
                 absl::StrCat("sample.inputs: the first layer (", spec.name,
                              ") does not run on them: ", status.message()))
        .With("field", "sample.inputs")
        .With("value", spec.kind);
  }
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("spec.model: layer ", index, " (", spec.name,
                            ") does not run on the output of the layer before it: ", status.message()))
      .With("field", absl::StrCat("spec.model.layers[", index, "]"))
      .With("value", spec.kind);
}

bool SameBuild(const LayerSpec& a, const LayerSpec& b) {
  return a.kind == b.kind && a.options == b.options && a.isolate.empty() && b.isolate.empty() &&
         std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), SameBuild);
}

// What a layer's costs depend on of the values that reach it; empty if that is not known.
std::string ShapesOf(const Arrival& arrival) {
  std::string text;
  for (const Value& value : arrival.values) {
    if (!value.is_tensor()) return "";
    const at::Tensor& tensor = *value.tensor();
    absl::StrAppend(&text, absl::StrJoin(tensor.sizes(), ","), " ", absl::StrJoin(tensor.strides(), ","), " ",
                    c10::toString(tensor.scalar_type()), tensor.requires_grad() ? " learns;" : ";");
  }
  return text;
}

// Measurements by what they depend on, so that a row of equal blocks is measured once.
class Measured {
 public:
  struct Entry {
    LayerSpec spec;
    std::string shapes;
    LayerProfile profile;
    Batch outputs;
  };

  const Entry* Find(const LayerSpec& spec, const std::string& shapes) const {
    if (shapes.empty()) return nullptr;
    const auto same = [&](const Entry& entry) { return entry.shapes == shapes && SameBuild(entry.spec, spec); };
    const auto found = std::find_if(entries_.begin(), entries_.end(), same);
    return found == entries_.end() ? nullptr : &*found;
  }
  void Add(Entry entry) { entries_.push_back(std::move(entry)); }

 private:
  std::vector<Entry> entries_;
};

absl::StatusOr<std::vector<LayerProfile>> ProfileOnThisThread(int64_t integer, const std::vector<LayerSpec>& layers,
                                                              const Device& device, const ModelSettings& settings,
                                                              const ProfileOptions& options, Clock* clock) {
  std::vector<LayerProfile> profiles;
  Measured measured;
  Arrival arrival;
  for (size_t i = 0; i < layers.size(); ++i, options.planning->PartDone()) {
    PENSTOCK_RETURN_IF_ERROR(options.planning->CheckWanted());
    const bool skips_around = !arrival.skips.empty();
    const std::string shapes = skips_around ? "" : ShapesOf(arrival);
    if (const Measured::Entry* known = measured.Find(layers[i], shapes)) {
      profiles.push_back(known->profile);
      arrival.values = known->outputs;
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(LayerProfile profile, ProfileLayer(layers[i], static_cast<int>(i), integer, device,
                                                                 arrival, settings, options, clock));
    if (!shapes.empty() && arrival.skips.empty()) measured.Add({layers[i], shapes, profile, arrival.values});
    profiles.push_back(std::move(profile));
  }
  return profiles;
}

// Whether something is there to measure with: a sample, or the first layer says what it takes, `inputs`.
bool CanMeasure(const ProfileOptions& options, const std::vector<TensorSignature>& inputs) {
  const auto is_any = [](const TensorSignature& input) { return input.any; };
  return options.sample != nullptr || (!inputs.empty() && std::none_of(inputs.begin(), inputs.end(), is_any));
}

std::vector<LayerProfile> WithoutMeasurement(const std::vector<NamedLayer>& shapes) {
  std::vector<LayerProfile> profiles;
  for (const NamedLayer& layer : shapes) {
    LayerProfile profile;
    profile.parameter_bytes = ByteSize(layer.layer->parameters());
    profile.measured = false;
    profiles.push_back(std::move(profile));
  }
  return profiles;
}

// Measured with this integer in the inputs.
absl::StatusOr<std::vector<LayerProfile>> ProfileWith(int64_t integer, const std::vector<LayerSpec>& layers,
                                                      const std::vector<Device>& devices, const ModelSettings& settings,
                                                      const ProfileOptions& options, Clock* clock) {
  std::vector<absl::StatusOr<std::vector<LayerProfile>>> measured(
      devices.size(), absl::StatusOr<std::vector<LayerProfile>>(std::vector<LayerProfile>()));
  {
    const auto memory = std::make_shared<MeasuredMemory>(options.claim_memory, options.planning);
    std::vector<std::unique_ptr<Thread>> threads;
    for (size_t d = 0; d < devices.size(); ++d) {
      threads.push_back(std::make_unique<Thread>(
          absl::StrCat("ps-profile-", d),
          [&, d] {
            UseCores(devices[d]);
            const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, memory);
            measured[d] = ProfileOnThisThread(integer, layers, devices[d], settings, options, clock);
          },
          devices[d].cores));
    }
    for (size_t d = 0; d < devices.size(); ++d) {
      threads[d]->Join();
      if (!threads[d]->status().ok()) measured[d] = threads[d]->status();
    }
  }
  std::vector<LayerProfile> mean(layers.size());
  for (const auto& profiles : measured) {
    if (!profiles.ok()) return profiles.status();
    for (size_t i = 0; i < layers.size(); ++i) {
      const LayerProfile& one = (*profiles)[i];
      mean[i].forward_seconds += one.forward_seconds / static_cast<double>(devices.size());
      mean[i].backward_seconds += one.backward_seconds / static_cast<double>(devices.size());
      mean[i].input_gradient_seconds += one.input_gradient_seconds / static_cast<double>(devices.size());
      mean[i].weight_gradient_seconds += one.weight_gradient_seconds / static_cast<double>(devices.size());
      mean[i].output_bytes = one.output_bytes;
      mean[i].stash_bytes = one.stash_bytes;
      mean[i].parameter_bytes = one.parameter_bytes;
      mean[i].skip_bytes = one.skip_bytes;
    }
  }
  return mean;
}

}  // namespace

Tensors ExampleInputs(const std::vector<TensorSignature>& signature, int64_t rows, int64_t open_dimension,
                      int64_t integer) {
  // Not zeros: what a maximum, a comparison or a sparse product costs depends on the values.
  const at::Generator generator = InitialGenerator(0, LayerIndex(0));
  Tensors inputs;
  for (const TensorSignature& input : signature) {
    std::vector<int64_t> shape = input.shape;
    if (!shape.empty()) shape[0] = rows;
    for (size_t i = 1; i < shape.size(); ++i) {
      if (shape[i] < 0) shape[i] = open_dimension;
    }
    inputs.push_back(at::full(shape, integer, at::TensorOptions().dtype(ToScalarType(input.type).value())));
    if (inputs.back().is_floating_point()) inputs.back().normal_(0, 1, generator);
  }
  return inputs;
}

NamedValues MeasuringInputs(const PlanningSample* sample, const std::vector<TensorSignature>& signature, int64_t rows,
                            int64_t open_dimension, int64_t integer) {
  NamedValues values;
  if (sample == nullptr) {
    Tensors examples = ExampleInputs(signature, rows, open_dimension, integer);
    for (size_t i = 0; i < examples.size(); ++i) values.push_back({signature[i].name, Value(std::move(examples[i]))});
    return values;
  }
  for (const NamedValue& named : sample->inputs) {
    const at::Tensor* split = named.value.tensor();  // what every micro-batch gets whole stays as it is
    values.push_back({named.name, split == nullptr ? named.value : Value(TakeRows(*split, rows))});
  }
  return values;
}

absl::Status WithExampleInteger(const PlanningSample* sample, const std::vector<TensorSignature>& signature,
                                const std::function<absl::Status(int64_t integer)>& run) {
  absl::Status status = run(0);
  const auto has_integers = [](const TensorSignature& input) {
    return !input.any && at::isIntegralType(ToScalarType(input.type).value(), /*includeBool=*/true);
  };
  const bool of_model = !absl::IsCancelled(status) && !absl::IsResourceExhausted(status);
  if (status.ok() || !of_model || sample != nullptr || std::none_of(signature.begin(), signature.end(), has_integers))
    return status;
  return run(1).ok() ? absl::OkStatus() : status;
}

absl::StatusOr<std::vector<LayerProfile>> ProfileLayers(const std::vector<LayerSpec>& layers,
                                                        const std::vector<Device>& devices,
                                                        const ModelSettings& settings, const ProfileOptions& options,
                                                        Clock* clock) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<NamedLayer> shapes, BuildLayerShapes(layers, settings.build));
  const std::vector<TensorSignature> inputs = shapes.front().layer->InputSignature();
  if (!options.planning->measures() || !CanMeasure(options, inputs)) return WithoutMeasurement(shapes);
  std::vector<LayerProfile> profiles;
  PENSTOCK_RETURN_IF_ERROR(WithExampleInteger(options.sample.get(), inputs, [&](int64_t integer) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(profiles, ProfileWith(integer, layers, devices, settings, options, clock));
    return absl::OkStatus();
  }));
  return profiles;
}

}  // namespace penstock
