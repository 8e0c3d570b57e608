#include "engine/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/plan/cut.h"
#include "engine/plan/lanes.h"
#include "engine/plan/memory.h"
#include "engine/plan/search_space.h"
#include "engine/plan/spec_error.h"
#include "engine/plan/stage_links.h"
#include "engine/schedule/build.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

// Several sizes of micro-batch together take about as long as one alone may.
constexpr int kRepeatsPerSize = 3;
constexpr int64_t kBudgetNanosPerLayer = 100'000'000;
constexpr int64_t kMaxNanosPerSize =
    2'000'000'000;  // of all layers; larger sizes that would take longer are not measured

Ticks Nanoseconds(double seconds) { return static_cast<Ticks>(std::llround(seconds * 1e9)); }

std::vector<int> FirstLayers(const Plan& plan) {
  std::vector<int> first_layers;
  for (const StagePlan& stage : plan.stages) first_layers.push_back(stage.first_layer);
  return first_layers;
}

std::string SkipText(const SkipName& name) {
  return name.skip_namespace.empty() ? name.name : absl::StrCat(name.skip_namespace, "/", name.name);
}

bool GoesStraight(const SkipRoute& route, int item) {
  const auto is_it = [item](const StraightValue& value) { return value.item == item; };
  return std::any_of(route.inputs.begin(), route.inputs.end(), is_it) ||
         std::any_of(route.outputs.begin(), route.outputs.end(), is_it);
}

void AddStraight(const SkipRoute& route, Plan& plan) {
  if (!route.inputs.empty()) {
    plan.why.push_back(
        absl::StrCat("Inputs of the model that go straight to stage ", route.edge.to, ": ", route.inputs.size(), "."));
  }
  if (!route.outputs.empty()) {
    plan.why.push_back(
        absl::StrCat("Outputs of the model that leave from stage ", route.edge.from, ": ", route.outputs.size(), "."));
  }
}

// The skips that cross, with their bytes, as input of the stages that pop them too.
void AddSkips(const PlanRequest& request, const std::vector<LayerProfile>& profile, Plan& plan) {
  plan.skips = RoutesOf(request, profile, FirstLayers(plan));
  for (const SkipRoute& route : plan.skips) {
    const auto append = [](std::string* out, const SkipName& name) { out->append(SkipText(name)); };
    plan.stages[route.edge.to].input_bytes += route.bytes + route.held_bytes;
    AddStraight(route, plan);
    std::vector<SkipName> names = route.names;
    for (size_t i = names.size(); i-- > 0;) {
      if (GoesStraight(route, static_cast<int>(i))) names.erase(names.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (names.empty()) continue;
    plan.why.push_back(absl::StrCat("Skip ", absl::StrJoin(names, ", ", append), " goes straight from stage ",
                                    route.edge.from, " to stage ", route.edge.to, ", ", route.bytes,
                                    " bytes per micro-batch of the measurement."));
  }
}

StagePlan MakeStage(const PlanRequest& request, const std::vector<LayerProfile>& profile, const DeviceStage& from,
                    int end) {
  StagePlan stage;
  stage.first_layer = from.first_layer;
  stage.device = from.device;
  stage.input_bytes = from.first_layer == 0 ? 0 : profile[from.first_layer - 1].output_bytes;
  for (int layer = from.first_layer; layer < end; ++layer) {
    stage.layers.push_back(request.layers[layer].name);
    stage.forward_seconds += profile[layer].forward_seconds;
    stage.backward_seconds += profile[layer].backward_seconds;
    stage.input_gradient_seconds += profile[layer].input_gradient_seconds;
    stage.weight_gradient_seconds += profile[layer].weight_gradient_seconds;
    stage.parameter_bytes += profile[layer].parameter_bytes;
    stage.stash_bytes += profile[layer].stash_bytes;
  }
  stage.recompute_seconds = stage.forward_seconds;
  stage.optimizer_bytes =
      static_cast<int64_t>(static_cast<double>(stage.parameter_bytes) * request.optimizer_state_ratio);
  return stage;
}

// The devices that stages may come to stand on: layers are measured there. Each once, also where one of this process
// stands in for those of other ranks.
std::vector<Device> DevicesToMeasureOn(const PlanRequest& request, const Cut& cut) {
  std::set<std::string> names;
  if (cut.stages.empty()) {
    const size_t stages = request.cut.stages > 0 ? request.cut.stages : request.layers.size();
    const size_t lanes = std::max<size_t>(1, stages / request.schedule.chunks);
    for (size_t i = 0; i < std::min(request.devices.size(), lanes); ++i) names.insert(request.devices[i].name);
  }
  for (const DeviceStage& stage : cut.stages) names.insert(stage.device);
  std::vector<Device> used;
  for (const Device& device : request.devices) {
    const auto same = [&device](const Device& one) { return one.kind == device.kind && one.index == device.index; };
    if (names.erase(device.name) > 0 && std::none_of(used.begin(), used.end(), same)) used.push_back(device);
  }
  return used;
}

}  // namespace

absl::Status CheckSchedule(const ScheduleSpec& schedule) {
  if (schedule.micro_batches < 1) {
    return RefuseSpec("spec.schedule.micro_batches", "number of micro-batches must be a positive integer",
                      absl::StrCat(schedule.micro_batches));
  }
  if (schedule.micro_batches > kMaxPlannedMicroBatches) {
    return RefuseSpec("spec.schedule.micro_batches", absl::StrCat("must lie in [1, ", kMaxPlannedMicroBatches, "]"),
                      absl::StrCat(schedule.micro_batches));
  }
  if (schedule.imported != nullptr) return absl::OkStatus();
  const absl::StatusOr<ScheduleKind> kind = FindScheduleKind(schedule.kind);
  if (kind.ok() && kind->trains) return absl::OkStatus();
  std::vector<std::string> known;
  for (const ScheduleKind& one : ScheduleKinds()) {
    if (one.trains) known.emplace_back(one.name);
  }
  return RefuseSpec("spec.schedule.kind", absl::StrCat("must be one of ", absl::StrJoin(known, ", ")), schedule.kind);
}

RecomputeMode ToRecomputeMode(CheckpointMode mode) {
  switch (mode) {
    case CheckpointMode::kAlways:
      return RecomputeMode::kAlways;
    case CheckpointMode::kExceptLast:
      return RecomputeMode::kExceptLast;
    case CheckpointMode::kNever:
      return RecomputeMode::kNever;
    case CheckpointMode::kSkipAdjacent:
      return RecomputeMode::kSkipAdjacent;
  }
  return RecomputeMode::kNever;
}

std::string_view CheckpointModeName(CheckpointMode mode) { return ToString(ToRecomputeMode(mode)); }

int LaneCount(const Plan& plan) {
  int lanes = 0;
  for (const StagePlan& stage : plan.stages) lanes = std::max(lanes, stage.lane + 1);
  return lanes;
}

ScheduleCosts CostsOf(const Plan& plan) {
  ScheduleCosts costs;
  costs.hop = Nanoseconds(plan.hop_seconds);
  costs.edges = EdgesOf(plan.transfers);
  for (const StagePlan& stage : plan.stages) {
    const Ticks backward = Nanoseconds(stage.backward_seconds);
    const Ticks weight = Nanoseconds(stage.weight_gradient_seconds);
    const bool halves = weight > 0 || stage.input_gradient_seconds > 0;  // else nobody has measured them
    costs.stages.push_back({.forward = Nanoseconds(stage.forward_seconds),
                            .input_gradient = halves ? Nanoseconds(stage.input_gradient_seconds) : backward / 2,
                            .weight_gradient = halves ? weight : backward - backward / 2,
                            .recompute = Nanoseconds(stage.recompute_seconds),
                            .backward = backward});
  }
  return costs;
}

BuildRequest BuildRequestOf(const ScheduleSpec& schedule, int stages) {
  return {.kind = schedule.kind,
          .purpose = SchedulePurpose::kContribution,
          .lanes = stages / schedule.chunks,
          .chunks = schedule.chunks,
          .lag = schedule.lag,
          .live_limit = schedule.live_limit,
          .imported = schedule.imported,
          .micro_batches = schedule.micro_batches,
          .planned_micro_batches = schedule.micro_batches,
          .recompute = ToRecomputeMode(schedule.checkpoint)};
}

BuildRequest BuildRequestOf(const Plan& plan) {
  BuildRequest request = BuildRequestOf(plan.schedule, static_cast<int>(plan.stages.size()));
  const bool measured = std::any_of(plan.stages.begin(), plan.stages.end(),
                                    [](const StagePlan& stage) { return stage.backward_seconds > 0; });
  if (measured) request.costs = CostsOf(plan);
  for (const SkipRoute& route : plan.skips) request.skips.push_back(route.edge);
  return request;
}

bool SplitsBackward(const Plan& plan) {
  if (plan.schedule.kind == "auto") return true;
  const absl::StatusOr<Schedule> lists = BuildSchedule(BuildRequestOf(plan));
  if (!lists.ok()) return false;  // PredictPlan says why
  for (const std::vector<Action>& lane : lists->lanes) {
    for (const Action& action : lane) {
      if (action.kind == ActionKind::kInputGradient) return true;
    }
  }
  return false;
}

absl::Status PredictPlan(Plan& plan) {
  const int stages = static_cast<int>(plan.stages.size());
  const int lanes = LaneCount(plan);
  const BuildRequest request = BuildRequestOf(plan);
  const absl::StatusOr<Schedule> lists = BuildSchedule(request);
  if (!lists.ok()) return OfSpecSchedule(lists.status());
  PENSTOCK_ASSIGN_OR_RETURN(Simulation simulation, Simulate(*lists, CostsOf(plan)));
  plan.makespan_seconds = static_cast<double>(simulation.makespan) * 1e-9;
  Ticks busy = 0;
  for (const LaneTimes& times : simulation.times) busy += times.busy;
  plan.predicted_bubble =
      simulation.makespan == 0 ? 0 : 1 - static_cast<double>(busy) / (static_cast<double>(simulation.makespan) * lanes);
  plan.ideal_bubble = static_cast<double>(lanes - 1) / (plan.schedule.chunks * plan.schedule.micro_batches + lanes - 1);
  const PeakActivations peaks = ComputePeaks(ListsByStage(*lists));
  for (int s = 0; s < stages; ++s) {
    StagePlan& stage = plan.stages[s];
    if (simulation.makespan > 0) {
      stage.predicted_bubble =
          1 - static_cast<double>(simulation.times[stage.lane].busy) / static_cast<double>(simulation.makespan);
    }
    const int64_t input_bytes = s == 0 ? 0 : stage.input_bytes;
    stage.peak_activation_bytes = peaks.full[s] * stage.stash_bytes + peaks.stashed[s] * input_bytes;
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<Plan> AssemblePlan(const PlanRequest& request, const std::vector<LayerProfile>& profile, Cut cut) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int> lane_of,
                            LanesOfStages(request.schedule, static_cast<int>(cut.stages.size())));
  Plan plan;
  plan.schedule = request.schedule;
  plan.why = std::move(cut.why);
  const std::vector<double> costs = CutCosts(request, profile);
  for (size_t s = 0; s < cut.stages.size(); ++s) {
    const bool last = s + 1 == cut.stages.size();
    const int end = last ? static_cast<int>(request.layers.size()) : cut.stages[s + 1].first_layer;
    plan.stages.push_back(MakeStage(request, profile, cut.stages[s], end));
    plan.stages.back().lane = lane_of[s];
    plan.stages.back().rank = RankOfStage(request, cut.stages[s].device, s);
    for (int i = cut.stages[s].first_layer; i < end; ++i) {
      const LayerProfile& layer = profile[i];
      plan.layers.push_back({.name = request.layers[i].name,
                             .stage = static_cast<int>(s),
                             .forward_seconds = layer.forward_seconds,
                             .backward_seconds = layer.backward_seconds,
                             .input_gradient_seconds = layer.input_gradient_seconds,
                             .weight_gradient_seconds = layer.weight_gradient_seconds,
                             .stash_bytes = layer.stash_bytes,
                             .parameter_bytes = layer.parameter_bytes,
                             .output_bytes = layer.output_bytes,
                             .cost = costs[i]});
    }
  }
  AddSkips(request, profile, plan);
  AddRanks(request, profile, plan);
  if (request.bytes_per_second > 0) {
    int64_t bytes = 0;
    for (const StagePlan& stage : plan.stages) bytes = std::max(bytes, stage.input_bytes);
    plan.hop_seconds = static_cast<double>(bytes) / request.bytes_per_second;
  }
  PENSTOCK_RETURN_IF_ERROR(PredictPlan(plan));
  PENSTOCK_RETURN_IF_ERROR(CheckMemory(plan, request.devices));
  AddUndo(request.devices, plan);
  return plan;
}

}  // namespace

absl::StatusOr<Plan> PlanFromProfile(const PlanRequest& request, const std::vector<LayerProfile>& profile) {
  PENSTOCK_RETURN_IF_ERROR(CheckSchedule(request.schedule));
  PENSTOCK_ASSIGN_OR_RETURN(Cut cut, FindCut(request, profile));
  return AssemblePlan(request, profile, std::move(cut));
}

absl::StatusOr<Plan> PlanOf(const PlanRequest& request, const SizeProfile& profile, const PlanCandidate& candidate) {
  PlanRequest decided = request;
  decided.schedule = candidate.schedule;
  decided.limits.open = {};
  const std::vector<LayerProfile> costs = profile.At(candidate.micro_batch_rows);
  PENSTOCK_ASSIGN_OR_RETURN(Cut cut, GivenCut(decided));
  if (cut.stages.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(cut, CutByCost(decided, costs, candidate.cut));
  }
  PENSTOCK_ASSIGN_OR_RETURN(Plan plan, AssemblePlan(decided, costs, std::move(cut)));
  plan.micro_batch_rows = candidate.micro_batch_rows;
  return plan;
}

absl::StatusOr<SizeProfile> ProfileSizes(const PlanRequest& request, const ProfileOptions& options, Clock* clock) {
  // What needs no measurement is refused before anything is measured.
  PENSTOCK_RETURN_IF_ERROR(CheckSchedule(request.schedule));
  PENSTOCK_RETURN_IF_ERROR(CheckLimits(request.limits));
  PENSTOCK_ASSIGN_OR_RETURN(const Cut given, GivenCut(request));
  PENSTOCK_RETURN_IF_ERROR(CheckStateFits(request));
  const std::vector<int64_t> sizes = RowsToMeasure(request, options.rows);
  ProfileOptions one = options;
  one.halves = MayChooseSplit(request);
  if (sizes.size() > 1) {
    one.repeats = std::min(one.repeats, kRepeatsPerSize);
    const auto layers = static_cast<int64_t>(request.layers.size());
    one.budget_nanos = std::min({one.budget_nanos, kBudgetNanosPerLayer, kMaxNanosPerSize / layers});
  }
  const std::vector<Device> devices = DevicesToMeasureOn(request, given);
  options.planning->Enter(PlanPhase::kMeasuring, std::ssize(sizes) * std::ssize(devices) * std::ssize(request.layers));
  SizeProfile profile;
  int64_t last_rows = 0;
  int64_t took = 0;  // by the size before
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i > 0 && options.planning->OutOfTime()) break;
    one.rows = sizes[i];
    const bool dear = i > 0 && took * sizes[i] / last_rows > kMaxNanosPerSize;
    if (dear && i > 1) break;                                // the line through the others goes on
    if (dear) one.rows = std::min(one.rows, 2 * last_rows);  // a line needs two
    const int64_t begin = clock->NowNanos();
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<LayerProfile> layers,
                              ProfileLayers(request.layers, devices, request.settings, one, clock));
    took = clock->NowNanos() - begin;
    last_rows = one.rows;
    profile.Add(one.rows, std::move(layers));
    if (dear) break;
  }
  if (sizes.size() > 1 && profile.rows().size() == 1) profile.Extend(sizes.back());
  return profile;
}

absl::StatusOr<PlanSearch> PlanBySearch(const PlanRequest& request, const SizeProfile& profile, Planning* planning,
                                        const PlanTrials& trials) {
  const auto out_of_time = [planning] { return planning->OutOfTime(); };
  // What a trial returns, and that it is over.
  const auto counted = [planning](auto result) {
    planning->PartDone();
    return result;
  };
  planning->Enter(PlanPhase::kSearching, 1);
  PENSTOCK_ASSIGN_OR_RETURN(PlanSearch search, SearchPlans(request, profile, {.out_of_time = out_of_time}));
  if (trials.measure && search.candidates.size() > 1) {
    planning->Enter(PlanPhase::kConfirming, kMaxMeasured);
    const MeasureStages measure = [&](Plan plan) { return counted(trials.measure(std::move(plan))); };
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<Plan> plans, ConfirmBest(request, profile, measure, out_of_time, search));
    if (trials.run) {
      planning->Enter(PlanPhase::kRehearsing, int64_t{kRehearsals} * kMaxRehearsed);
      const RunSteps run = [&](const Plan& plan, const OutOfTime& over) { return counted(trials.run(plan, over)); };
      RehearseBest(run, planning->SecondsLeft(), out_of_time, plans, search);
    }
    if (!plans.empty()) search.plan = std::move(plans.front());
  }
  PENSTOCK_RETURN_IF_ERROR(planning->CheckWanted());
  if (search.candidates.empty()) return search;
  if (!search.plan.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(search.plan, PlanOf(request, profile, search.candidates.front()));
  }
  if (search.considered > 1) search.plan->why.push_back(search.Reason());
  return search;
}

absl::StatusOr<Plan> MakePlan(const PlanRequest& request, const ProfileOptions& options, Clock* clock,
                              const PlanTrials& trials) {
  PENSTOCK_ASSIGN_OR_RETURN(const SizeProfile profile, ProfileSizes(request, options, clock));
  if (request.limits.open.any()) {
    PENSTOCK_ASSIGN_OR_RETURN(PlanSearch search, PlanBySearch(request, profile, options.planning, trials));
    if (!search.plan.has_value()) return search.WhyNone();
    if (search.plan->micro_batch_rows == 0) search.plan->micro_batch_rows = options.rows;
    return *std::move(search.plan);
  }
  const int64_t rows = MicroBatchRows(request.limits, request.schedule.micro_batches);
  PENSTOCK_ASSIGN_OR_RETURN(Plan plan, PlanFromProfile(request, profile.At(rows > 0 ? rows : options.rows)));
  plan.micro_batch_rows = rows > 0 ? rows : options.rows;
  return plan;
}

}  // namespace penstock
