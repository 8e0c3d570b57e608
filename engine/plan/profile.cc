#include "engine/plan/profile.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/autograd/seeds.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/device/device.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
#include "engine/plan/layer_probe.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

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
    profile = MeasureLayer(built[0], arrival, settings, options, clock);
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
  // Not zeros: what a maximum, a comparison or a sparse product costs depends on the values.
  const at::Generator generator = InitialGenerator(0, LayerIndex(0));
  Tensors inputs;
  for (const TensorSignature& input : signature) {
    std::vector<int64_t> shape = input.shape;
    shape[0] = rows;
    for (size_t i = 1; i < shape.size(); ++i) {
      if (shape[i] < 0) shape[i] = open_dimension;
    }
    inputs.push_back(at::zeros(shape, at::TensorOptions().dtype(ToScalarType(input.type).value())));
    if (inputs.back().is_floating_point()) inputs.back().normal_(0, 1, generator);
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
