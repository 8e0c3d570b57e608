#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/clock.h"
#include "engine/device/device.h"
#include "engine/exec/stage.h"
#include "engine/model/model_spec.h"
#include "engine/plan/plan.h"
#include "engine/plan/profile.h"

namespace penstock {

// Measures what each stage costs where it stands, and predicts again from that.
//
// Layers measured one by one are enough to cut a model, but their weights stay in the cache; a stage streams all of its
// weights and gradients through memory for every micro-batch. So every device runs its stages forward and backward,
// with the loss on the last, while the other devices do the same, and the medians replace the plan's costs. A
// recomputation costs a forward. The halves of a backward are measured too, in turn with the whole, but only if the
// plan's schedule splits any: they take as long as the whole once more, so they are measured only if needed.
//
// `devices` has one entry per stage. The stages' gradients are cleared afterwards; weights are not touched.
// Fails:     what a stage throws; WORK_CANCELLED as options.planning says; the plan is as before then.
absl::Status CalibrateStages(const std::vector<std::unique_ptr<Stage>>& stages, const std::vector<Device>& devices,
                             const std::vector<TensorSignature>& inputs, const LossContext& loss,
                             const ProfileOptions& options, int64_t open_dimension, Clock* clock, Plan& plan);

}  // namespace penstock
