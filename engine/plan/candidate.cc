#include "engine/plan/candidate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/plan/lanes.h"
#include "engine/plan/planner.h"
#include "engine/plan/spec_error.h"
#include "engine/plan/stage_links.h"
#include "engine/schedule/fuse_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/lower_bound.h"

namespace penstock {
namespace {

constexpr int kSplitSimulations = 3;  // that one schedule with halves takes: it is tried with fused halves too
constexpr int kAutoSimulations = 40;

std::vector<int> FirstLayersOf(const std::vector<int>& balance) {
  std::vector<int> first(balance.size(), 0);
  for (size_t s = 1; s < balance.size(); ++s) first[s] = first[s - 1] + balance[s - 1];
  return first;
}

// What the stages of a choice take.
struct StagesOfChoice {
  std::vector<int> first_layers;
  ScheduleCosts times;
  std::vector<StageBytes> bytes;
};

StagesOfChoice PredictStages(const PlanChoice& choice) {
  StagesOfChoice stages{.first_layers = FirstLayersOf(choice.cut.balance), .times = {}, .bytes = {}};
  int64_t max_bytes = 0;  // that go from one to the next
  for (size_t s = 0; s < choice.cut.balance.size(); ++s) {
    const int begin = stages.first_layers[s];
    const int end = begin + choice.cut.balance[s];
    stages.times.stages.push_back(choice.costs.Of(begin, end));
    stages.bytes.push_back(choice.costs.BytesOf(begin, end, choice.request.optimizer_state_ratio));
    max_bytes = std::max(max_bytes, stages.bytes.back().input);
  }
  if (choice.request.bytes_per_second > 0) {
    stages.times.hop = std::llround(static_cast<double>(max_bytes) / choice.request.bytes_per_second * 1e9);
  }
  return stages;
}

ScheduleRequest GeneratorRequest(const BuildRequest& build, const ScheduleCosts& times) {
  return {.kind = build.kind,
          .lanes = build.lanes,
          .micro_batches = build.micro_batches,
          .chunks = build.chunks,
          .lag = build.lag,
          .live_limit = build.live_limit,
          .costs = times,
          .imported = build.imported};
}

int64_t SimulatedActions(const ScheduleSpec& schedule, const ScheduleKind& kind, size_t stages) {
  const int simulations = schedule.kind == "auto" ? kAutoSimulations : kind.splits ? kSplitSimulations : 1;
  return int64_t{3} * static_cast<int64_t>(stages) * schedule.micro_batches * simulations;
}

double BubbleOf(const Simulation& simulation) {
  if (simulation.makespan == 0) return 0;
  Ticks busy = 0;
  for (const LaneTimes& lane : simulation.times) busy += lane.busy;
  return 1 - static_cast<double>(busy) /
                 (static_cast<double>(simulation.makespan) * static_cast<double>(simulation.times.size()));
}

// The device of each stage, by name.
absl::StatusOr<std::vector<std::string>> DevicesOfStages(const PlanChoice& choice,
                                                         const std::vector<int>& first_layers) {
  std::vector<DeviceStage> places;
  for (const int first : first_layers) places.push_back({first, ""});
  if (choice.cut_is_given) {
    PENSTOCK_ASSIGN_OR_RETURN(const Cut given, GivenCut(choice.request));
    places = given.stages;
  } else {
    PENSTOCK_RETURN_IF_ERROR(PlaceOnLanes(choice.request, places));
  }
  std::vector<std::string> devices;
  for (const DeviceStage& place : places) devices.push_back(place.device);
  return devices;
}

// What the stages' messages take from rank to rank.
absl::Status WeighLinks(const PlanChoice& choice, StagesOfChoice& stages) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> devices, DevicesOfStages(choice, stages.first_layers));
  std::vector<Rank> ranks;
  for (const std::string& device : devices) ranks.push_back(RankOfStage(choice.request, device, ranks.size()));
  stages.times.edges = EdgesOf(TransfersOf(choice.request, choice.costs.layers(), stages.first_layers, ranks));
  return absl::OkStatus();
}

}  // namespace

int64_t PlanCandidate::peak_bytes() const {
  int64_t peak = 0;
  for (const DeviceNeed& need : memory) peak = std::max(peak, need.buffers.total());
  return peak;
}

absl::StatusOr<std::optional<PredictedPlan>> PredictChoice(const PlanChoice& choice, Ticks limit, int64_t& work) {
  const ScheduleSpec& schedule = choice.request.schedule;
  const int stage_count = static_cast<int>(choice.cut.balance.size());
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int> lane_of, LanesOfStages(schedule, stage_count));
  StagesOfChoice stages = PredictStages(choice);
  const BuildRequest build = BuildRequestOf(schedule, stage_count);
  ScheduleRequest generated = GeneratorRequest(build, stages.times);
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleKind kind, KindOf(generated));
  if (absl::Status possible = CheckRequest(generated); !possible.ok()) return OfSpecSchedule(possible);
  if (!choice.request.links.empty()) {
    PENSTOCK_RETURN_IF_ERROR(WeighLinks(choice, stages));
    generated.costs = stages.times;
  }
  if (LowerBound(generated, stages.times, build.recompute) >= limit) return std::optional<PredictedPlan>();
  work += SimulatedActions(schedule, kind, choice.cut.balance.size());
  PENSTOCK_ASSIGN_OR_RETURN(Schedule lists, Generate(generated));
  PENSTOCK_ASSIGN_OR_RETURN(lists, FuseWhereItPays(std::move(lists), stages.times));
  lists = InsertRecompute(std::move(lists), build.recompute);
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(lists, stages.times));
  if (simulation.makespan >= limit) return std::optional<PredictedPlan>();

  const std::vector<SkipRoute> skips = RoutesOf(choice.request, choice.costs.layers(), stages.first_layers);
  PredictedPlan predicted;
  predicted.makespan = simulation.makespan;
  PlanCandidate& candidate = predicted.candidate;
  candidate.schedule = schedule;
  candidate.micro_batch_rows = choice.micro_batch_rows;
  candidate.cut = choice.cut;
  candidate.makespan_seconds = static_cast<double>(simulation.makespan) * 1e-9;
  candidate.bubble = BubbleOf(simulation);
  candidate.messages = MessageCount(lane_of, skips, schedule.micro_batches);
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> devices, DevicesOfStages(choice, stages.first_layers));
  std::vector<std::string> device_of(simulation.times.size());  // by lane
  for (size_t s = 0; s < devices.size(); ++s) device_of[lane_of[s]] = devices[s];
  const std::vector<BufferBytes> lane_bytes = LaneMemory(lists, simulation, stages.bytes, skips);
  candidate.memory = NeedOfDevices(device_of, lane_bytes, choice.request.devices);
  PENSTOCK_RETURN_IF_ERROR(CheckNeeds(candidate.memory));
  return std::optional<PredictedPlan>(std::move(predicted));
}

}  // namespace penstock
