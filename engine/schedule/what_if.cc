#include "engine/schedule/what_if.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/failure.h"
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

absl::Status CheckScales(const WhatIfOptions& options, int devices) {
  if (options.heavy_device && (*options.heavy_device < 0 || *options.heavy_device >= devices)) {
    return InvalidField("heavy_device", absl::StrCat("must be 0 to ", devices - 1),
                        absl::StrCat(*options.heavy_device));
  }
  if (options.heavy_scale && !options.heavy_device) {
    return InvalidField("heavy_scale", "needs heavy_device", absl::StrCat(*options.heavy_scale));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckScale("heavy_scale", options.heavy_scale.value_or(1)));
  return CheckScale("last_scale", options.last_scale);
}

// The costs of stages that share `devices`, stage s on device_of[s].
absl::StatusOr<ScheduleCosts> CostsOf(const WhatIfOptions& options, int devices, const std::vector<int>& device_of) {
  constexpr double kHeavy = 1.5;
  PENSTOCK_RETURN_IF_ERROR(CheckScales(options, devices));
  const int stages = static_cast<int>(device_of.size());
  ScheduleCosts costs;
  for (int stage = 0; stage < stages; ++stage) {
    double scale = static_cast<double>(devices) / stages;
    if (device_of[stage] == options.heavy_device) scale *= options.heavy_scale.value_or(kHeavy);
    if (stage == stages - 1) scale *= options.last_scale;
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

absl::StatusOr<WhatIfResult> Answer(Schedule schedule, const ScheduleCosts& costs) {
  PENSTOCK_ASSIGN_OR_RETURN(Simulation simulation, Simulate(schedule, costs));
  WhatIfResult result;
  result.makespan = Units(simulation.makespan);
  result.ideal_time = Units(simulation.ideal);
  result.window = Units(simulation.window);
  result.overhead = simulation.Overhead();
  result.bubble = simulation.Bubble();
  result.peak_activations = simulation.peaks.MaxFullUnits();
  result.peak_stashed = simulation.peaks.MaxStashedUnits();
  for (size_t device = 0; device < schedule.lanes.size(); ++device) {
    result.peaks_per_device.push_back(simulation.peaks.FullUnits(static_cast<int>(device)));
  }
  result.schedule = std::move(schedule);
  result.simulation = std::move(simulation);
  return result;
}

// A failure of a field that the question calls by another name.
absl::Status InOurNames(absl::Status status) {
  for (const auto& [theirs, ours] : {std::pair("lanes", "devices"), std::pair("live_limit", "limit")}) {
    const auto values = ValuesOf(status);
    const auto field = values.find("field");
    if (field == values.end() || field->second != theirs) continue;
    std::string problem(status.message());
    if (problem.starts_with(absl::StrCat(theirs, ": "))) problem.replace(0, std::string_view(theirs).size(), ours);
    return Error(status.code(), ReasonOf(status), problem).With("field", ours).With("value", values.at("value"));
  }
  return status;
}

}  // namespace

absl::StatusOr<WhatIfResult> WhatIf(const WhatIfOptions& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, FindScheduleKind(options.kind));
  PENSTOCK_ASSIGN_OR_RETURN(const RecomputeMode recompute, ParseRecomputeMode(options.recompute));
  ScheduleRequest request{.kind = options.kind,
                          .lanes = options.devices,
                          .micro_batches = options.micro_batches,
                          .chunks = options.chunks.value_or(kind.usual_chunks),
                          .lag = options.lag,
                          .live_limit = options.limit};
  if (const absl::Status fits = CheckRequest(request); !fits.ok()) return InOurNames(fits);
  PENSTOCK_ASSIGN_OR_RETURN(
      request.costs, CostsOf(options, request.lanes, LanesOfStages(kind.placement, request.lanes, request.chunks)));
  PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, Generate(request));
  return Answer(InsertRecompute(std::move(schedule), recompute), request.costs);
}

absl::StatusOr<WhatIfResult> WhatIf(Schedule schedule, const WhatIfOptions& costs) {
  PENSTOCK_RETURN_IF_ERROR(CheckShape(schedule));
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleCosts own,
                            CostsOf(costs, static_cast<int>(schedule.lanes.size()), LaneOfEachStage(schedule)));
  return Answer(std::move(schedule), own);
}

}  // namespace penstock
