#pragma once

// Measures what each layer costs, with real kernels on the devices that will run it.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "engine/device/device.h"
#include "engine/model/layer_registry.h"
#include "engine/model/skip_spec.h"
#include "engine/plan/planning.h"
#include "engine/plan/planning_sample.h"

namespace penstock {

// The costs of one layer for one micro-batch.
//
// Units:     seconds; bytes. `stash_bytes` is what the forward keeps for the backward, its output included;
//            `skip_bytes` what it hands to later layers past those between.
struct LayerProfile {
  double forward_seconds = 0;
  double backward_seconds = 0;        // both halves in one
  double input_gradient_seconds = 0;  // the halves; both 0 if they were not measured
  double weight_gradient_seconds = 0;
  int64_t output_bytes = 0;
  int64_t stash_bytes = 0;
  int64_t parameter_bytes = 0;
  std::map<SkipName, int64_t> skip_bytes = {};
  bool measured = true;  // false: the model does not say what it takes; only parameters are known
};

// What holds for all layers while they run.
struct ModelSettings {
  BuildOptions build = {};
  std::string autocast = {};  // of ModelSpec
};

struct ProfileOptions {
  int64_t rows = 4;                        // of the micro-batch
  int repeats = 5;                         // after one warm-up; the median counts
  int64_t budget_nanos = 1'000'000'000;    // per layer: fewer repeats, but at least one, if they take longer
  bool halves = false;                     // measure the two halves of a backward by themselves too
  Planning* planning = EndlessPlanning();  // at its end one repeat is enough; told of each layer that is measured
  // Called with the bytes of the host that measuring wants, before they are touched, and with 0 at its end; an error
  // ends it. Null: nobody counts them.
  std::function<absl::Status(int64_t bytes)> claim_memory = {};
  std::shared_ptr<const PlanningSample> sample = {};  // what the first layer gets, by rows; null: made-up values
};

// Made-up inputs to measure with: normally distributed numbers, or `integer` everywhere, of a signature, with `rows`
// rows and `open_dimension` for other open dimensions. Always the same. May throw.
Tensors ExampleInputs(const std::vector<TensorSignature>& signature, int64_t rows, int64_t open_dimension,
                      int64_t integer = 0);

// Calls `run` with the integer for made-up inputs: 0, which each table has a row for, and where the model refuses that,
// for example because it divides by it, 1. The error is that of 0 where both are refused. With a sample, it calls once.
absl::Status WithExampleInteger(const PlanningSample* sample, const std::vector<TensorSignature>& signature,
                                const std::function<absl::Status(int64_t integer)>& run);

// The sample's inputs with `rows` rows, or, where it is null, made-up ones of the signature (ExampleInputs). May throw.
NamedValues MeasuringInputs(const PlanningSample* sample, const std::vector<TensorSignature>& signature, int64_t rows,
                            int64_t open_dimension, int64_t integer = 0);

// Runs forward and backward of every layer on every device at the same time, so that the figures are those of a machine
// whose other cores work too, and returns the mean over the devices of the medians over the repeats. Each device holds
// one layer at a time, built anew and in training: the model that runs later is another, whose weights, buffers and
// gradients stay as they are. ("some parameter already has gradient", as an ancestor says, cannot happen.)
//
// Layers that are equal but for their names, get inputs of equal shape and have no skips are measured once.
//
// A layer gets what the one before it has really given, and the skips that were stashed for it. Every repeat begins
// with equal inputs, which the layer may change in place. As in a pipeline, a tensor requires grad if it did where it
// comes from, what the first layer gets does not, and outputs without grad are not back-propagated.
//
// On an accelerator the layer and its inputs stand there, every time is taken when its streams are done, and the stash
// is what its allocator says.
//
// Fails:     what a layer's forward throws (WithExampleInteger), naming the layer: a model whose layers do not fit
//            together is found here. FIELD_INVALID of sample.inputs where the first layer does not run on the sample.
//            FAILED_PRECONDITION / SKIP_INVALID for a layer that does not stash or pop what it declares.
//            WORK_CANCELLED, before the next layer or the next allocation of one, once the plan is not wanted. What
//            `claim_memory` fails with.
absl::StatusOr<std::vector<LayerProfile>> ProfileLayers(const std::vector<LayerSpec>& layers,
                                                        const std::vector<Device>& devices,
                                                        const ModelSettings& settings, const ProfileOptions& options,
                                                        Clock* clock);

}  // namespace penstock
