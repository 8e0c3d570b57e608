#include "engine/schedule/virtual_time.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {

const EdgeCosts* ScheduleCosts::EdgeBetween(int stage, int other) const {
  if (edges.empty()) return nullptr;
  const auto found = edges.find(std::minmax(stage, other));
  return found == edges.end() ? nullptr : &found->second;
}

Ticks ScheduleCosts::HopBetween(int stage, int other) const {
  const EdgeCosts* edge = EdgeBetween(stage, other);
  return hop + (edge == nullptr ? 0 : edge->transfer + edge->latency);
}

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
  for (const auto& [ends, edge] : costs.edges) {
    const auto [from, to] = ends;
    if (from < 0 || from >= to || to >= stages) {
      return InvalidField("costs.edges",
                          absl::StrCat("must be between two of ", stages, " stages, the lower one first"),
                          absl::StrCat(from, "-", to));
    }
    PENSTOCK_RETURN_IF_ERROR(check("costs.edges.transfer", edge.transfer));
    PENSTOCK_RETURN_IF_ERROR(check("costs.edges.latency", edge.latency));
  }
  return check("costs.hop", costs.hop);
}

}  // namespace penstock
