#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/optim/optimizer_spec.h"

namespace penstock {

// Fails: SPEC_INVALID naming a field of spec.optimizer.learning_rate_schedule and its value.
absl::Status CheckLearningRate(const LearningRateSpec& spec);

// The factor by which step `step` (0 is the first) multiplies the peak rate.
double LearningRateFactor(const LearningRateSpec& spec, int64_t step);

}  // namespace penstock
