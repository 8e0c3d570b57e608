#include "engine/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/optim/spec_error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

// A schedule, from the end of its warm-up on. `done` is the part of the steps from there to total_steps, 0 to 1; what
// `fall` makes of it falls from 1 to 0.
struct NamedSchedule {
  std::string_view name;
  double (*fall)(const LearningRateSpec& spec, double done);  // null: it has no end
};

double Cosine(const LearningRateSpec& /*spec*/, double done) { return 0.5 * (1 + std::cos(std::numbers::pi * done)); }
double Line(const LearningRateSpec& /*spec*/, double done) { return 1 - done; }
double Power(const LearningRateSpec& spec, double done) { return std::pow(1 - done, spec.power); }

constexpr std::string_view kStep = "step";
constexpr std::string_view kPolynomial = "polynomial";
constexpr NamedSchedule kSchedules[] = {
    {"constant", nullptr}, {"linear", Line}, {kPolynomial, Power}, {kStep, nullptr}, {"warmup_cosine", Cosine}};

const NamedSchedule* Find(const LearningRateSpec& spec) {
  const auto found = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                  [&](const NamedSchedule& known) { return known.name == spec.name; });
  return found == std::end(kSchedules) ? nullptr : found;
}

absl::Status Fault(const std::string& field, const std::string& problem, const std::string& value) {
  return OptimizerError(absl::StrCat("spec.optimizer.learning_rate_schedule.", field), problem, value);
}

// Fields that would say nothing.
absl::Status CheckUnused(const LearningRateSpec& spec, bool ends) {
  const LearningRateSpec unset;
  const std::string why = absl::StrCat("is not for ", spec.name);
  if (!ends && spec.total_steps != 0) return Fault("total_steps", why, absl::StrCat(spec.total_steps));
  if (!ends && spec.final_ratio != 0) return Fault("final_ratio", why, absl::StrCat(spec.final_ratio));
  if (spec.name != kStep && spec.step_size != 0) return Fault("step_size", why, absl::StrCat(spec.step_size));
  if (spec.name != kStep && spec.gamma != unset.gamma) return Fault("gamma", why, absl::StrCat(spec.gamma));
  if (spec.name != kPolynomial && spec.power != unset.power) return Fault("power", why, absl::StrCat(spec.power));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckLearningRate(const LearningRateSpec& spec) {
  const NamedSchedule* schedule = Find(spec);
  if (schedule == nullptr) {
    const auto name = [](std::string* out, const NamedSchedule& one) { out->append(one.name); };
    return Fault("name", absl::StrCat("is not known; known are ", absl::StrJoin(kSchedules, ", ", name)),
                 Shortened(spec.name));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckUnused(spec, schedule->fall != nullptr));
  if (spec.warmup_steps < 0) return Fault("warmup_steps", "must not be negative", absl::StrCat(spec.warmup_steps));
  if (schedule->fall != nullptr && spec.total_steps <= spec.warmup_steps) {
    return Fault("total_steps", absl::StrCat("must be above the ", spec.warmup_steps, " warm-up steps"),
                 absl::StrCat(spec.total_steps));
  }
  if (!(spec.final_ratio >= 0 && spec.final_ratio <= 1)) {
    return Fault("final_ratio", "must lie in [0, 1]", absl::StrCat(spec.final_ratio));
  }
  if (spec.name == kStep && spec.step_size < 1) {
    return Fault("step_size", "must be at least 1", absl::StrCat(spec.step_size));
  }
  if (!(spec.gamma > 0 && spec.gamma <= 1)) return Fault("gamma", "must lie in (0, 1]", absl::StrCat(spec.gamma));
  if (!(spec.power > 0 && spec.power <= 100)) return Fault("power", "must lie in (0, 100]", absl::StrCat(spec.power));
  return absl::OkStatus();
}

double LearningRateFactor(const LearningRateSpec& spec, int64_t step) {
  if (step < spec.warmup_steps) return static_cast<double>(step + 1) / static_cast<double>(spec.warmup_steps);
  const int64_t past = step - spec.warmup_steps;
  if (spec.name == kStep) return std::pow(spec.gamma, static_cast<double>(past / spec.step_size));
  const NamedSchedule* schedule = Find(spec);
  if (schedule == nullptr || schedule->fall == nullptr) return 1;
  const auto length = static_cast<double>(spec.total_steps - spec.warmup_steps);
  const double done = std::min(1.0, static_cast<double>(past) / length);
  return spec.final_ratio + (1 - spec.final_ratio) * schedule->fall(spec, done);
}

}  // namespace penstock
