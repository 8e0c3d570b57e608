#include "engine/schedule/virtual_time.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {

absl::Status CheckCosts(const ScheduleCosts& costs, int stages) {
  if (static_cast<int>(costs.stages.size()) != stages) {
    return InvalidField("costs", absl::StrCat("must be one per stage, ", stages), absl::StrCat(costs.stages.size()));
  }
  const auto check = [](std::string_view name, Ticks cost) {
    if (cost >= 0 && cost <= kMaxCost) return absl::OkStatus();
    return InvalidField(name, absl::StrCat("must be 0 to ", kMaxCost, " ticks"), absl::StrCat(cost));
  };
  for (const StageCosts& stage : costs.stages) {
    PENSTOCK_RETURN_IF_ERROR(check("costs.forward", stage.forward));
    PENSTOCK_RETURN_IF_ERROR(check("costs.input_gradient", stage.input_gradient));
    PENSTOCK_RETURN_IF_ERROR(check("costs.weight_gradient", stage.weight_gradient));
    PENSTOCK_RETURN_IF_ERROR(check("costs.backward", stage.backward.value_or(0)));
    PENSTOCK_RETURN_IF_ERROR(check("costs.recompute", stage.recompute));
    PENSTOCK_RETURN_IF_ERROR(check("costs.optimizer", stage.optimizer));
  }
  return check("costs.hop", costs.hop);
}

}  // namespace penstock
