#include "engine/filling/step_rhythm.h"

#include <algorithm>
#include <cmath>

#include "engine/filling/run_forecast.h"

namespace penstock {
namespace {

constexpr double kMinPatience = 2e5;
constexpr double kMaxPatience = 2e7;

}  // namespace

void StepRhythm::Began(int64_t now) {
  absl::MutexLock lock(&mu_);
  running_ = true;
  if (!has_ended_) return;
  const auto pause = static_cast<double>(now - ended_);
  if (!known_) {
    known_ = true;
    mean_ = pause;
    return;
  }
  deviation_ += (std::abs(pause - mean_) - deviation_) / 4;
  mean_ += (pause - mean_) / 4;
}

void StepRhythm::Ended(int64_t now) {
  absl::MutexLock lock(&mu_);
  running_ = false;
  has_ended_ = true;
  ended_ = now;
}

int64_t StepRhythm::GivenUpLocked() const {
  if (running_ || !known_) return kNever;
  const double patience = std::clamp(mean_ / 2 + 4 * deviation_, kMinPatience, kMaxPatience);
  return ended_ + static_cast<int64_t>(mean_ + patience);
}

int64_t StepRhythm::GivenUpAt() const {
  absl::MutexLock lock(&mu_);
  return GivenUpLocked();
}

int64_t StepRhythm::ExpectedStart(int64_t now) const {
  absl::MutexLock lock(&mu_);
  if (now >= GivenUpLocked()) return kNever;
  if (running_ || !known_) return kNever;
  return std::max(now, ended_ + static_cast<int64_t>(std::max(0.0, mean_ - deviation_)));
}

}  // namespace penstock
