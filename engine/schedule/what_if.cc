#include "engine/schedule/what_if.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/recompute_pass.h"

namespace penstock {
namespace {

double Units(Ticks ticks) { return static_cast<double>(ticks) / static_cast<double>(kTicksPerUnit); }

absl::Status CheckScale(std::string_view field, double scale) {
  if (std::isfinite(scale) && scale >= 0) return absl::OkStatus();
  return InvalidField(field, "must be a number, at least 0", absl::StrCat(scale));
}

// `cost` units, scaled, in whole ticks.
absl::StatusOr<Ticks> ToTicks(std::string_view field, double cost, double scale) {
  const double ticks = cost * scale * static_cast<double>(kTicksPerUnit);
  if (!(cost >= 0) || !(ticks <= static_cast<double>(kMaxCost))) {
    return InvalidField(field, absl::StrCat("must be 0 to ", Units(kMaxCost), " after scaling"), absl::StrCat(cost));
  }
  return std::llround(ticks);
}

absl::Status CheckOptions(const WhatIfOptions& options) {
  if (options.devices < 1 || options.devices > kMaxRanks) {
    return InvalidField("devices", absl::StrCat("must be 1 to ", kMaxRanks), absl::StrCat(options.devices));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckSizes(options.devices, options.devices, options.micro_batches));
  if (options.heavy_device && (*options.heavy_device < 0 || *options.heavy_device >= options.devices)) {
    return InvalidField("heavy_device", absl::StrCat("must be 0 to ", options.devices - 1),
                        absl::StrCat(*options.heavy_device));
  }
  if (options.heavy_scale && !options.heavy_device) {
    return InvalidField("heavy_scale", "needs heavy_device", absl::StrCat(*options.heavy_scale));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckScale("heavy_scale", options.heavy_scale.value_or(1)));
  return CheckScale("last_scale", options.last_scale);
}

absl::StatusOr<ScheduleCosts> CostsOf(const WhatIfOptions& options, const Schedule& schedule) {
  constexpr double kHeavy = 1.5;
  const std::vector<int> device_of = RankOfEachStage(schedule);
  ScheduleCosts costs;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    double scale = 1;
    if (device_of[stage] == options.heavy_device) scale *= options.heavy_scale.value_or(kHeavy);
    if (stage == schedule.stages - 1) scale *= options.last_scale;
    StageCosts& of_stage = costs.stages.emplace_back();
    PENSTOCK_ASSIGN_OR_RETURN(of_stage.forward, ToTicks("forward", options.forward, scale));
    PENSTOCK_ASSIGN_OR_RETURN(of_stage.input_gradient, ToTicks("input", options.input, scale));
    PENSTOCK_ASSIGN_OR_RETURN(of_stage.weight_gradient, ToTicks("weight", options.weight, scale));
    PENSTOCK_ASSIGN_OR_RETURN(of_stage.recompute,
                              ToTicks("recompute_cost", options.recompute_cost.value_or(options.forward), scale));
  }
  PENSTOCK_ASSIGN_OR_RETURN(costs.hop, ToTicks("hop", options.hop, 1));
  return costs;
}

}  // namespace

absl::StatusOr<WhatIfResult> WhatIf(const WhatIfOptions& options) {
  PENSTOCK_RETURN_IF_ERROR(CheckOptions(options));
  PENSTOCK_ASSIGN_OR_RETURN(const RecomputeMode recompute, ParseRecomputeMode(options.recompute));
  PENSTOCK_ASSIGN_OR_RETURN(
      Schedule schedule,
      Generate({.kind = options.kind, .ranks = options.devices, .microbatches = options.micro_batches}));
  schedule = InsertRecompute(std::move(schedule), recompute);
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleCosts costs, CostsOf(options, schedule));
  PENSTOCK_ASSIGN_OR_RETURN(Simulation simulation, Simulate(schedule, costs));

  WhatIfResult result;
  result.makespan = Units(simulation.makespan);
  result.ideal_time = Units(simulation.ideal);
  result.window = Units(simulation.window);
  result.overhead = simulation.Overhead();
  result.bubble = simulation.Bubble();
  result.peak_activations = simulation.peaks.MaxFullUnits();
  result.peak_stashed = simulation.peaks.MaxStashedUnits();
  for (int device = 0; device < options.devices; ++device) {
    result.peaks_per_device.push_back(simulation.peaks.FullUnits(device));
  }
  result.schedule = std::move(schedule);
  result.simulation = std::move(simulation);
  return result;
}

}  // namespace penstock
