#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/optim/optimizer_spec.h"

namespace penstock {

// Fails: SPEC_INVALID naming a field of spec.optimizer.learning_rate_schedule and its value.
absl::Status CheckLearningRate(const LearningRateSpec& spec);

// The factor by which step `step` (0 is the first) multiplies the peak rate: (step + 1) / warmup_steps in the warm-up;
// then, `t` steps after it of the `T` to total_steps, with r = final_ratio, as PyTorch's schedulers:
//
//   constant        1
//   warmup_cosine   r + (1 - r) * (1 + cos(pi * t / T)) / 2    CosineAnnealingLR
//   linear          r + (1 - r) * (1 - t / T)                  LinearLR(start_factor=1, end_factor=r)
//   polynomial      r + (1 - r) * (1 - t / T)^power            PolynomialLR, where r is 0
//   step            gamma^floor(t / step_size)                 StepLR
//
// From total_steps on it stays as it is there.
double LearningRateFactor(const LearningRateSpec& spec, int64_t step);

}  // namespace penstock
