#include "engine/plan/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"
#include "engine/plan/balance.h"
#include "engine/plan/candidate.h"
#include "engine/plan/lanes.h"
#include "engine/plan/layer_costs.h"
#include "engine/plan/memory.h"
#include "engine/plan/partition.h"
#include "engine/plan/spec_error.h"
#include "engine/plan/stage_links.h"

namespace penstock {
namespace {

constexpr char kAdvice[] = "; `penstock pipeline plan` finds one";

std::string ListText(const std::vector<int>& numbers) { return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]"); }

absl::Status CheckBalance(const PlanRequest& request) {
  const std::vector<int>& balance = request.cut.balance;
  const std::string text = ListText(balance);
  const int64_t sum = std::accumulate(balance.begin(), balance.end(), int64_t{0});
  if (sum != static_cast<int64_t>(request.layers.size())) {
    return RefuseSpec("spec.cut.balance",
                      absl::StrCat("module and sum of balance have different length (module: ", request.layers.size(),
                                   ", sum of balance: ", sum, ")", kAdvice),
                      text);
  }
  if (std::any_of(balance.begin(), balance.end(), [](int n) { return n < 1; })) {
    return RefuseSpec("spec.cut.balance",
                      absl::StrCat("all balance numbers must be positive integer (balance: ", text, ")", kAdvice),
                      text);
  }
  const int stages = static_cast<int>(balance.size());
  if (request.cut.stages != 0 && request.cut.stages != stages) {
    return RefuseSpec("spec.cut.stages", absl::StrCat("contradicts the balance, which has ", stages, " stages"),
                      absl::StrCat(request.cut.stages));
  }
  PENSTOCK_RETURN_IF_ERROR(LanesOfStages(request.schedule, stages).status());
  const int lanes = stages / request.schedule.chunks;
  if (request.devices_named && static_cast<int>(request.devices.size()) < lanes) {
    const auto append = [](std::string* out, const Device& device) { absl::StrAppend(out, device.name); };
    return RefuseSpec("spec.devices",
                      absl::StrCat("too few devices to hold given partitions (devices: ", request.devices.size(),
                                   ", partitions: ", lanes, "); a device may be named several times"),
                      absl::StrCat("[", absl::StrJoin(request.devices, ", ", append), "]"),
                      absl::StatusCode::kOutOfRange);
  }
  return absl::OkStatus();
}

// The ranks go with a balance, which was checked; `why` gets a sentence about ranks that are not needed.
absl::Status CheckRanks(const CutSpec& cut, std::vector<std::string>& why) {
  const std::string text = ListText(cut.ranks);
  if (cut.balance.empty()) {
    return RefuseSpec("spec.cut.balance", absl::StrCat("balance is required where ranks are given", kAdvice),
                      "nothing");
  }
  int next = 0;
  for (int rank : cut.ranks) {
    if (rank < 0 || rank < next - 1 || rank > next) {
      return RefuseSpec("spec.cut.ranks", "must begin with 0 and go on with the same rank or the next one", text);
    }
    next = rank + 1;
  }
  const size_t stages = cut.balance.size();
  if (cut.ranks.size() < stages) {
    return RefuseSpec("spec.cut.ranks",
                      absl::StrCat("too few ranks to hold given partitions (ranks: ", cut.ranks.size(),
                                   ", partitions: ", stages, ")"),
                      text, absl::StatusCode::kOutOfRange);
  }
  if (cut.ranks.size() > stages) {
    const std::vector<int> unused(cut.ranks.begin() + static_cast<std::ptrdiff_t>(stages), cut.ranks.end());
    why.push_back(absl::StrCat("More ranks than partitions, some ranks unused: ", ListText(unused), "."));
  }
  return absl::OkStatus();
}

// Stages of so many layers; a stage stands where its layers or those of its lane say, else on the next device in turn.
absl::StatusOr<std::vector<DeviceStage>> PlaceStages(const PlanRequest& request, const std::vector<std::string>& named,
                                                     const std::vector<int>& balance) {
  std::vector<DeviceStage> stages;
  int layer = 0;
  for (size_t s = 0; s < balance.size(); ++s) {
    std::set<std::string> names;
    for (int i = layer; i < layer + balance[s]; ++i) {
      if (!named[i].empty()) names.insert(named[i] == kPlainCpu ? kPlainCpuDevice : named[i]);
    }
    if (names.size() > 1) {
      return RefuseSpec("spec.cut.balance",
                        absl::StrCat("puts layers of ", absl::StrJoin(names, " and "), " on stage ", s),
                        ListText(balance));
    }
    stages.push_back({layer, names.empty() ? "" : *names.begin()});
    layer += balance[s];
  }
  PENSTOCK_RETURN_IF_ERROR(PlaceOnLanes(request, stages));
  return stages;
}

std::string CostText(const CutSpec& cut, double cost) {
  return cut.cost == CutSpec::Cost::kTime ? absl::StrFormat("%.3f ms", cost * 1e-3)
                                          : absl::StrFormat("%.0f bytes", cost);
}

std::string MeasuredReason(const PlanRequest& request, const std::vector<double>& costs,
                           const std::vector<int>& balance) {
  double largest = 0;
  auto next = costs.begin();
  for (int length : balance) {
    largest = std::max(largest, std::accumulate(next, next + length, 0.0));
    next += length;
  }
  const bool time = request.cut.cost == CutSpec::Cost::kTime;
  const bool exact = request.cut.method == CutSpec::Method::kExact;
  const bool recompute = request.schedule.checkpoint != CheckpointMode::kNever;
  const std::string weighed =
      time ? absl::StrCat("measured time (forward", recompute ? ", recomputation" : "", " and backward)")
           : absl::StrFormat("size (measured stash and %g times the parameters)", request.cut.parameter_scale);
  return absl::StrCat(
      exact ? "The exact cut by " : "The cut by block_partition of ", weighed, " puts ", absl::StrJoin(balance, ", "),
      " layers on ", balance.size(), " stages, ",
      request.cut.stages > 0        ? "as many as were asked for"
      : request.schedule.imported   ? "as many as the imported schedule has"
      : request.schedule.chunks > 1 ? absl::StrCat(request.schedule.chunks, " per device")
                                    : "one per device",
      ": the most expensive has ", CostText(request.cut, largest), ", the mean is ",
      CostText(request.cut, std::accumulate(costs.begin(), costs.end(), 0.0) / static_cast<double>(balance.size())),
      ".");
}

// Those of `names` that are handed on.
std::vector<StraightValue> StraightOf(const std::vector<HandedValue>& handed, const std::vector<SkipName>& names) {
  std::vector<StraightValue> straight;
  for (size_t i = 0; i < names.size(); ++i) {
    for (const HandedValue& value : handed) {
      if (value.name == names[i]) straight.push_back({.item = static_cast<int>(i), .position = value.position});
    }
  }
  return straight;
}

bool Has(const std::vector<HandedValue>& handed, const SkipName& name) {
  return std::any_of(handed.begin(), handed.end(), [&](const HandedValue& value) { return value.name == name; });
}

bool GoesStraight(const PlanRequest& request, const SkipName& name) {
  return Has(request.handed.inputs, name) || Has(request.handed.outputs, name);
}

PartitionInput InputOf(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                       const std::vector<double>& costs, int stages, bool within_limits) {
  PartitionInput input;
  input.costs = costs;
  for (const LayerProfile& layer : profile) input.boundary_bytes.push_back(layer.output_bytes);
  for (size_t popper = 0; popper < request.skips.size(); ++popper) {
    for (const SkipName& name : request.skips[popper].pops) {
      for (size_t stasher = 0; stasher < popper; ++stasher) {
        const auto known = profile[stasher].skip_bytes.find(name);
        if (known == profile[stasher].skip_bytes.end() || GoesStraight(request, name)) continue;
        input.skips.push_back({static_cast<int>(stasher), static_cast<int>(popper), known->second});
      }
    }
  }
  // There and, as a gradient, back.
  if (request.cut.cost == CutSpec::Cost::kTime && request.bytes_per_second > 0) {
    input.cost_per_byte = 2 * 1e6 / request.bytes_per_second;
  }
  if (within_limits) input.fits = FitsOnDevice(request, profile, stages);
  return input;
}

// How much of the time that bytes take on a link may count as a cost of the stage that they enter: nothing, one way, or
// both. Which is right depends on how much of it the schedule hides.
constexpr double kShares[] = {0, 1, 2};

// The exact cut; of those with different shares the one whose step is predicted to be the shortest, the earlier of equals.
absl::StatusOr<std::vector<int>> CutOverLinks(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                                              PartitionInput input, int stages) {
  const auto cost = request.cut.cost == CutSpec::Cost::kTime ? CostOfEntering(request, stages) : nullptr;
  if (cost == nullptr) return PartitionExactly(input, stages);
  const LayerCosts costs(profile);
  std::vector<int> best;
  Ticks shortest = std::numeric_limits<Ticks>::max();
  for (const double share : kShares) {
    input.cost_of_entering = [&cost, share](int stage, int64_t bytes) { return share * cost(stage, bytes); };
    PENSTOCK_ASSIGN_OR_RETURN(std::vector<int> balance, PartitionExactly(input, stages));
    const CostBalance cut = {.balance = balance};
    int64_t work = 0;
    const auto predicted = PredictChoice({.request = request, .costs = costs, .cut = cut}, shortest, work);
    const bool better = predicted.ok() && predicted->has_value();
    if (better) shortest = (*predicted)->makespan;
    if (better || best.empty()) best = std::move(balance);
  }
  return best;
}

}  // namespace

std::vector<double> CutCosts(const PlanRequest& request, const std::vector<LayerProfile>& profile) {
  const bool recompute = request.schedule.checkpoint != CheckpointMode::kNever;
  std::vector<double> costs;
  for (const LayerProfile& layer : profile) {
    if (request.cut.cost == CutSpec::Cost::kTime) {
      if (!layer.measured) {
        costs.push_back(1);
        continue;
      }
      costs.push_back(1e6 * (layer.forward_seconds * (recompute ? 2 : 1) + layer.backward_seconds));
    } else {
      costs.push_back(static_cast<double>(layer.stash_bytes) +
                      static_cast<double>(layer.parameter_bytes) * request.cut.parameter_scale);
    }
  }
  return costs;
}

std::vector<SkipRoute> RoutesOf(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                                const std::vector<int>& first_layers) {
  std::vector<SkipRoute> routes = LayOutSkips(request.skips, first_layers);
  for (SkipRoute& route : routes) {
    route.inputs = StraightOf(request.handed.inputs, route.names);
    route.outputs = StraightOf(request.handed.outputs, route.names);
    for (const LayerProfile& layer : profile) {
      for (const SkipName& name : route.names) {
        const auto known = layer.skip_bytes.find(name);
        if (known == layer.skip_bytes.end()) continue;
        if (!GoesStraight(request, name)) route.bytes += known->second;
        if (Has(request.handed.inputs, name)) route.held_bytes += known->second;
      }
    }
  }
  return routes;
}

absl::StatusOr<Cut> GivenCut(const PlanRequest& request) {
  if (!std::isfinite(request.cut.parameter_scale) || request.cut.parameter_scale < 0) {
    return RefuseSpec("spec.cut.parameter_scale", "must be finite and at least 0",
                      absl::StrCat(request.cut.parameter_scale));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> named, DevicesOfLayers(request.layers, request.devices));
  Cut cut;
  if (!request.cut.balance.empty()) {
    PENSTOCK_RETURN_IF_ERROR(CheckBalance(request));
    PENSTOCK_ASSIGN_OR_RETURN(cut.stages, PlaceStages(request, named, request.cut.balance));
    cut.why.push_back(absl::StrCat("The balance ", absl::StrJoin(request.cut.balance, ", "), " was given."));
    if (!request.cut.ranks.empty()) PENSTOCK_RETURN_IF_ERROR(CheckRanks(request.cut, cut.why));
    return cut;
  }
  if (!request.cut.ranks.empty()) return CheckRanks(request.cut, cut.why);
  if (request.cut.stages < 0) {
    return RefuseSpec("spec.cut.stages", "must not be negative", absl::StrCat(request.cut.stages));
  }
  const auto names_device = [](const std::string& name) { return !name.empty(); };
  const auto namers = std::count_if(named.begin(), named.end(), names_device);
  if (namers > 0) {
    if (request.cut.stages != 0) {
      return RefuseSpec("spec.cut.stages", "must be 0 where layers name their devices, for these decide",
                        absl::StrCat(request.cut.stages));
    }
    cut.stages = CutByDevices(named);
    PENSTOCK_RETURN_IF_ERROR(PlaceOnLanes(request, cut.stages));
    cut.why.push_back(absl::StrCat("The devices that ", namers, " of ", named.size(), " layers name make ",
                                   cut.stages.size(), " stages."));
    return cut;
  }
  if (request.cut.stages > static_cast<int>(request.layers.size())) {
    return PartitionExactly({.costs = std::vector<double>(request.layers.size()), .boundary_bytes = {}},
                            request.cut.stages)
        .status();
  }
  PENSTOCK_RETURN_IF_ERROR(StagesByCost(request).status());
  return cut;
}

absl::StatusOr<CostBalance> BalanceByCost(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                                          int stages, bool within_limits) {
  const std::vector<double> costs = CutCosts(request, profile);
  CostBalance found;
  if (request.cut.method == CutSpec::Method::kBlockPartition) {
    PENSTOCK_ASSIGN_OR_RETURN(found.balance, BlockPartition(costs, stages));
    return found;
  }
  PartitionInput input = InputOf(request, profile, costs, stages, within_limits);
  PENSTOCK_ASSIGN_OR_RETURN(found.balance, CutOverLinks(request, profile, input, stages));
  if (input.fits == nullptr) return found;
  input.fits = nullptr;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<int> unlimited, CutOverLinks(request, profile, input, stages));
  found.limits_decide = found.balance != unlimited;
  return found;
}

absl::StatusOr<Cut> CutByCost(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                              const CostBalance& found) {
  Cut cut;
  const std::vector<std::string> unnamed(request.layers.size());
  PENSTOCK_ASSIGN_OR_RETURN(cut.stages, PlaceStages(request, unnamed, found.balance));
  const bool measured = std::all_of(profile.begin(), profile.end(), [](const LayerProfile& p) { return p.measured; });
  if (measured) {
    cut.why.push_back(MeasuredReason(request, CutCosts(request, profile), found.balance));
  } else {
    cut.why.push_back(absl::StrCat(
        request.limits.planning_seconds > 0 ? "The model does not say what it takes" : "planning_seconds is 0",
        ", so nothing was measured; ",
        request.cut.cost == CutSpec::Cost::kTime ? "every layer counts the same" : "only parameters count", ": ",
        absl::StrJoin(found.balance, ", "), " layers."));
  }
  if (found.moved) cut.why.push_back("Boundaries were moved by a layer, for the predicted step is shorter so.");
  if (found.limits_decide) cut.why.push_back("The devices' memory limits do not allow the cut by cost alone.");
  return cut;
}

absl::StatusOr<Cut> FindCut(const PlanRequest& request, const std::vector<LayerProfile>& profile) {
  PENSTOCK_ASSIGN_OR_RETURN(Cut cut, GivenCut(request));
  if (!cut.stages.empty()) return cut;
  PENSTOCK_ASSIGN_OR_RETURN(const int stages, StagesByCost(request));
  PENSTOCK_ASSIGN_OR_RETURN(const CostBalance found, BalanceByCost(request, profile, stages, /*within_limits=*/true));
  return CutByCost(request, profile, found);
}

}  // namespace penstock
