#include "engine/optim/optimizer.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/optim/learning_rate.h"
#include "engine/optim/optimizer_kinds.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr char kSgd[] = "sgd";
constexpr char kAdamw[] = "adamw";

absl::Status UnknownName(const OptimizerSpec& spec) {
  return OptimizerError("spec.optimizer.name",
                        absl::StrCat("is not known; known are ", absl::StrJoin(OptimizerNames(), ", ")),
                        Shortened(spec.name));
}

// The rate at the top of the schedule. The specification was checked.
double PeakRate(const OptimizerSpec& spec) {
  if (spec.name == kSgd) {
    const absl::StatusOr<SgdSettings> settings = ReadSgd(spec.options);
    PENSTOCK_CHECK(settings.ok());
    return settings->learning_rate;
  }
  const absl::StatusOr<AdamwSettings> settings = ReadAdamw(spec.options);
  PENSTOCK_CHECK(settings.ok());
  return settings->learning_rate;
}

}  // namespace

absl::Status OptimizerError(const std::string& field, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat(field, ": ", problem, ", got ", value))
      .With("field", field)
      .With("value", value);
}

absl::Status CheckOptimizer(const OptimizerSpec& spec) {
  if (spec.name == kSgd) {
    PENSTOCK_RETURN_IF_ERROR(ReadSgd(spec.options).status());
  } else if (spec.name == kAdamw) {
    PENSTOCK_RETURN_IF_ERROR(ReadAdamw(spec.options).status());
  } else {
    return UnknownName(spec);
  }
  if (!std::isfinite(spec.clip_norm) || spec.clip_norm < 0) {
    return OptimizerError("spec.optimizer.clip_norm", "must be finite and not negative", absl::StrCat(spec.clip_norm));
  }
  return CheckLearningRate(spec.learning_rate_schedule);
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const OptimizerSpec& spec, NamedTensors parameters) {
  PENSTOCK_RETURN_IF_ERROR(CheckOptimizer(spec));
  std::unique_ptr<Optimizer> optimizer;
  if (spec.name == kSgd) {
    PENSTOCK_ASSIGN_OR_RETURN(const SgdSettings settings, ReadSgd(spec.options));
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { optimizer = MakeSgd(settings, std::move(parameters)); }));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const AdamwSettings settings, ReadAdamw(spec.options));
    PENSTOCK_RETURN_IF_ERROR(RunTorch([&] { optimizer = MakeAdamw(settings, std::move(parameters)); }));
  }
  return optimizer;
}

double OptimizerStateRatio(const OptimizerSpec& spec) {
  if (spec.name == kAdamw) return 2;
  const absl::StatusOr<SgdSettings> settings = ReadSgd(spec.options);
  return settings.ok() && settings->momentum != 0 ? 1 : 0;
}

double LearningRate(const OptimizerSpec& spec, int64_t step) {
  return PeakRate(spec) * LearningRateFactor(spec.learning_rate_schedule, step);
}

std::vector<std::string> OptimizerNames() { return {kAdamw, kSgd}; }

}  // namespace penstock
