#include "engine/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/plan/partition.h"
#include "engine/schedule/build.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

constexpr int kMaxMicroBatches = 4096;

absl::Status Invalid(std::string_view field, const std::string& problem, const std::string& value) {
  const std::string name(field);
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", absl::StrCat(name, ": ", problem, ", got ", value))
      .With("field", name)
      .With("value", value);
}

absl::Status CheckSchedule(const ScheduleSpec& schedule) {
  absl::StatusOr<ScheduleKind> kind = FindScheduleKind(schedule.kind);
  if (!kind.ok() || !kind->trains) {
    std::vector<std::string> known;
    for (const ScheduleKind& one : ScheduleKinds()) {
      if (one.trains) known.emplace_back(one.name);
    }
    return Invalid("spec.schedule.kind", absl::StrCat("must be one of ", absl::StrJoin(known, ", ")), schedule.kind);
  }
  if (schedule.micro_batches < 1 || schedule.micro_batches > kMaxMicroBatches) {
    return Invalid("spec.schedule.micro_batches", absl::StrCat("must lie in [1, ", kMaxMicroBatches, "]"),
                   absl::StrCat(schedule.micro_batches));
  }
  return absl::OkStatus();
}

absl::Status CheckBalance(const std::vector<int>& balance, int layers) {
  const std::string text = absl::StrCat("[", absl::StrJoin(balance, ", "), "]");
  if (std::any_of(balance.begin(), balance.end(), [](int n) { return n < 1; })) {
    return Invalid("spec.cut.balance", "all balance numbers must be positive integer", text);
  }
  const int64_t sum = std::accumulate(balance.begin(), balance.end(), int64_t{0});
  if (sum != layers) {
    return Invalid("spec.cut.balance",
                   absl::StrCat("module and sum of balance have different length (module: ", layers,
                                ", sum of balance: ", sum, "); `penstock pipeline plan` finds one"),
                   text);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> FindBalance(const PlanRequest& request, const std::vector<LayerProfile>& profile) {
  const int layers = static_cast<int>(request.layers.size());
  if (!request.cut.balance.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckBalance(request.cut.balance, layers));
    const int stages = static_cast<int>(request.cut.balance.size());
    if (request.cut.stages != 0 && request.cut.stages != stages) {
      return Invalid("spec.cut.stages", absl::StrCat("contradicts the balance, which has ", stages, " stages"),
                     absl::StrCat(request.cut.stages));
    }
    return request.cut.balance;
  }
  if (request.cut.stages < 0)
    return Invalid("spec.cut.stages", "must not be negative", absl::StrCat(request.cut.stages));
  const int stages =
      request.cut.stages > 0 ? request.cut.stages : std::min(static_cast<int>(request.devices.size()), layers);
  const bool recompute = request.schedule.checkpoint != CheckpointMode::kNever;
  PartitionInput input;
  for (const LayerProfile& layer : profile) {
    input.costs.push_back(layer.forward_seconds * (recompute ? 2 : 1) + layer.backward_seconds);
    input.boundary_bytes.push_back(layer.output_bytes);
  }
  return PartitionExactly(input, stages);
}

Ticks Nanoseconds(double seconds) { return static_cast<Ticks>(std::llround(seconds * 1e9)); }

absl::Status CheckMemory(const Plan& plan, const std::vector<Device>& devices) {
  for (const Device& device : devices) {
    if (device.memory_limit_bytes == 0) continue;
    std::map<std::string, int64_t> classes;
    for (const StagePlan& stage : plan.stages) {
      if (stage.device != device.name) continue;
      classes["weights"] += stage.parameter_bytes;
      classes["gradients"] += stage.parameter_bytes;
      classes["optimizer state"] += stage.optimizer_bytes;
      classes["activations"] += stage.peak_activation_bytes;
    }
    int64_t needed = 0;
    auto largest = classes.begin();
    for (auto it = classes.begin(); it != classes.end(); ++it) {
      needed += it->second;
      if (it->second > largest->second) largest = it;
    }
    if (needed <= device.memory_limit_bytes) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "PLAN_DOES_NOT_FIT",
                 absl::StrCat("the plan needs ", needed, " bytes on ", device.name, ", whose limit is ",
                              device.memory_limit_bytes, "; the largest class is ", largest->first, " with ",
                              largest->second, " bytes"))
        .With("device", device.name)
        .With("field", "spec.model")
        .With("value", absl::StrCat(needed));
  }
  return absl::OkStatus();
}

// Weights, gradients and optimizer state against all devices together, before a single layer is made: a slip of the pen in a
// width must not cost the machine its memory.
absl::Status CheckStateFits(const PlanRequest& request) {
  double needed = 0;
  for (int64_t bytes : request.parameter_bytes) {
    needed += static_cast<double>(bytes) * (2 + request.optimizer_state_ratio);
  }
  double limit = 0;
  for (const Device& device : request.devices) {
    limit += device.memory_limit_bytes == 0 ? std::numeric_limits<double>::infinity()
                                            : static_cast<double>(device.memory_limit_bytes);
  }
  limit = std::min(limit, static_cast<double>(MachineMemoryBytes()));
  if (needed <= limit) return absl::OkStatus();
  const std::string value = absl::StrFormat("%.0f", needed);
  return Error(absl::StatusCode::kFailedPrecondition, "PLAN_DOES_NOT_FIT",
               absl::StrFormat(
                   "spec.model: weights, gradients and optimizer state need %s bytes, and %s may hold %.0f in "
                   "all; the largest class is %s",
                   value, request.devices.size() == 1 ? request.devices[0].name : "the devices", limit,
                   request.optimizer_state_ratio > 1 ? "optimizer state" : "weights"))
      .With("field", "spec.model")
      .With("value", value);
}

}  // namespace

RecomputeMode ToRecomputeMode(CheckpointMode mode) {
  switch (mode) {
    case CheckpointMode::kAlways:
      return RecomputeMode::kAlways;
    case CheckpointMode::kExceptLast:
      return RecomputeMode::kExceptLast;
    case CheckpointMode::kNever:
      return RecomputeMode::kNever;
  }
  return RecomputeMode::kNever;
}

std::string_view CheckpointModeName(CheckpointMode mode) { return ToString(ToRecomputeMode(mode)); }

absl::Status PredictPlan(Plan& plan) {
  const int stages = static_cast<int>(plan.stages.size());
  PENSTOCK_ASSIGN_OR_RETURN(Schedule lists, BuildSchedule({.kind = plan.schedule.kind,
                                                           .purpose = SchedulePurpose::kContribution,
                                                           .ranks = stages,
                                                           .microbatches = plan.schedule.micro_batches,
                                                           .recompute = ToRecomputeMode(plan.schedule.checkpoint)}));
  ScheduleCosts costs;
  for (const StagePlan& stage : plan.stages) {
    costs.stages.push_back({.forward = Nanoseconds(stage.forward_seconds),
                            .input_gradient = Nanoseconds(stage.backward_seconds),
                            .weight_gradient = 0,
                            .recompute = Nanoseconds(stage.recompute_seconds)});
  }
  PENSTOCK_ASSIGN_OR_RETURN(Simulation simulation, Simulate(lists, costs));
  plan.makespan_seconds = static_cast<double>(simulation.makespan) * 1e-9;
  Ticks busy = 0;
  for (const RankTimes& times : simulation.times) busy += times.busy;
  plan.predicted_bubble = simulation.makespan == 0
                              ? 0
                              : 1 - static_cast<double>(busy) / (static_cast<double>(simulation.makespan) * stages);
  plan.ideal_bubble = static_cast<double>(stages - 1) / (plan.schedule.micro_batches + stages - 1);
  for (int s = 0; s < stages; ++s) {
    StagePlan& stage = plan.stages[s];
    if (simulation.makespan > 0) {
      stage.predicted_bubble =
          1 - static_cast<double>(simulation.times[s].busy) / static_cast<double>(simulation.makespan);
    }
    const int64_t input_bytes = s == 0 ? 0 : stage.input_bytes;
    stage.peak_activation_bytes =
        simulation.peaks.full[s] * stage.stash_bytes + simulation.peaks.stashed[s] * input_bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> PlanFromProfile(const PlanRequest& request, const std::vector<LayerProfile>& profile) {
  PENSTOCK_RETURN_IF_ERROR(CheckSchedule(request.schedule));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<int> balance, FindBalance(request, profile));
  Plan plan;
  plan.schedule = request.schedule;
  int layer = 0;
  for (size_t s = 0; s < balance.size(); ++s) {
    StagePlan stage;
    stage.first_layer = layer;
    stage.device = request.devices[s % request.devices.size()].name;
    stage.input_bytes = layer == 0 ? 0 : profile[layer - 1].output_bytes;
    for (int i = 0; i < balance[s]; ++i, ++layer) {
      stage.layers.push_back(request.layers[layer].name);
      stage.forward_seconds += profile[layer].forward_seconds;
      stage.backward_seconds += profile[layer].backward_seconds;
      stage.parameter_bytes += profile[layer].parameter_bytes;
      stage.stash_bytes += profile[layer].stash_bytes;
    }
    stage.recompute_seconds = stage.forward_seconds;
    stage.optimizer_bytes =
        static_cast<int64_t>(static_cast<double>(stage.parameter_bytes) * request.optimizer_state_ratio);
    plan.stages.push_back(std::move(stage));
  }
  PENSTOCK_RETURN_IF_ERROR(PredictPlan(plan));
  PENSTOCK_RETURN_IF_ERROR(CheckMemory(plan, request.devices));
  return plan;
}

absl::StatusOr<Plan> MakePlan(const PlanRequest& request, const ProfileOptions& options, Clock* clock) {
  // What needs no measurement is refused before anything is measured.
  PENSTOCK_RETURN_IF_ERROR(CheckSchedule(request.schedule));
  if (!request.cut.balance.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckBalance(request.cut.balance, static_cast<int>(request.layers.size())));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckStateFits(request));
  std::vector<Device> used(
      request.devices.begin(),
      request.devices.begin() + static_cast<std::ptrdiff_t>(std::min(request.devices.size(), request.layers.size())));
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<LayerProfile> profile, ProfileLayers(request.layers, used, options, clock));
  return PlanFromProfile(request, profile);
}

}  // namespace penstock
