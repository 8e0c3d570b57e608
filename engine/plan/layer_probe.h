#pragma once

// Measures one layer.

#include <map>

#include "engine/base/clock.h"
#include "engine/device/device_streams.h"
#include "engine/model/layer_registry.h"
#include "engine/plan/profile.h"
#include "engine/tensor/batch.h"

namespace penstock {

// What reaches a layer: values of the layers before it without their graph; a tensor requires grad if it did there.
struct Arrival {
  Batch values;
  std::map<SkipName, Value> skips;
};

// Runs the layer forward and backward on the calling thread, a first time to warm up, then as often as the options say;
// the medians count; with `halves`, after each run there is one with its backward in two halves. Bytes are what the
// device's allocator reports to LibTorch for this thread. Layer and values stand on the device of `streams`. Leaves in
// `arrival` what reaches the next layer.
//
// Fails:     throws INVALID_ARGUMENT / SPEC_INVALID "some parameter already has gradient", for that would grow, and
//            what the layer throws; it runs under RunTorch, with gradients on.
LayerProfile MeasureLayer(const NamedLayer& layer, Arrival& arrival, DeviceStreams& streams,
                          const ModelSettings& settings, const ProfileOptions& options, Clock* clock);

}  // namespace penstock
