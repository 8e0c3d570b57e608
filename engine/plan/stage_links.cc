#include "engine/plan/stage_links.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/plan/cut.h"
#include "engine/plan/lanes.h"

namespace penstock {
namespace {

// Null: nothing is known of it.
const Link* Find(const std::vector<Link>& links, Rank a, Rank b) {
  const auto is_it = [&](const Link& link) { return link.one == std::min(a, b) && link.other == std::max(a, b); };
  const auto found = std::find_if(links.begin(), links.end(), is_it);
  return found == links.end() ? nullptr : &*found;
}

double SecondsOf(const Link& link, int64_t bytes) {
  return link.bytes_per_second > 0 ? static_cast<double>(bytes) / link.bytes_per_second : 0;
}

Ticks TicksOf(double seconds) {
  return static_cast<Ticks>(std::llround(std::min(seconds * 1e9, static_cast<double>(kMaxCost))));
}

std::string Describe(const Link& link) {
  const std::string name = absl::StrCat("The link between ranks ", link.one.value(), " and ", link.other.value());
  if (!link.measured) {
    return absl::StrCat(name, " could not be measured (", link.problem, "); it counts as one that takes no time.");
  }
  return absl::StrFormat("%s was measured: %.3f ms and %.1f MB/s.", name, link.latency_seconds * 1e3,
                         link.bytes_per_second * 1e-6);
}

}  // namespace

Rank RankOfStage(const PlanRequest& request, const std::string& device, size_t stage) {
  for (const Device& one : request.devices) {
    if (one.name == device && one.rank != Rank(0)) return one.rank;
  }
  return stage < request.cut.ranks.size() ? Rank(request.cut.ranks[stage]) : Rank(0);
}

std::vector<Rank> RanksOfStages(const PlanRequest& request, int stages) {
  if (request.links.empty()) return {};
  std::vector<DeviceStage> places;
  for (int stage = 0; stage < stages; ++stage) places.push_back({stage, ""});
  if (!PlaceOnLanes(request, places).ok()) return {};
  std::vector<Rank> ranks;
  for (const DeviceStage& place : places) ranks.push_back(RankOfStage(request, place.device, ranks.size()));
  return ranks;
}

std::vector<StageTransfer> TransfersOf(const PlanRequest& request, const std::vector<LayerProfile>& profile,
                                       const std::vector<int>& first_layers, const std::vector<Rank>& ranks) {
  std::vector<StageTransfer> transfers;
  if (request.links.empty() || ranks.size() != first_layers.size()) return transfers;
  std::map<std::pair<int, int>, int64_t> bytes;
  for (size_t s = 1; s < first_layers.size(); ++s) {
    const int stage = static_cast<int>(s);
    bytes[{stage - 1, stage}] = profile[first_layers[s] - 1].output_bytes;
  }
  for (const SkipRoute& route : RoutesOf(request, profile, first_layers)) {
    bytes[{route.edge.from, route.edge.to}] += route.bytes;
  }
  for (const auto& [ends, count] : bytes) {
    const auto [from, to] = ends;
    if (ranks[from] == ranks[to]) continue;
    StageTransfer& transfer = transfers.emplace_back();
    transfer.from = from;
    transfer.to = to;
    transfer.bytes = count;
    const Link* link = Find(request.links, ranks[from], ranks[to]);
    if (link == nullptr || !link->measured) continue;
    transfer.latency_seconds = link->latency_seconds;
    transfer.transfer_seconds = SecondsOf(*link, count);
  }
  return transfers;
}

std::map<std::pair<int, int>, EdgeCosts> EdgesOf(const std::vector<StageTransfer>& transfers) {
  std::map<std::pair<int, int>, EdgeCosts> edges;
  for (const StageTransfer& one : transfers) {
    edges[{one.from, one.to}] = {.transfer = TicksOf(one.transfer_seconds), .latency = TicksOf(one.latency_seconds)};
  }
  return edges;
}

std::function<double(int stage, int64_t bytes)> CostOfEntering(const PlanRequest& request, int stages) {
  const std::vector<Rank> ranks = RanksOfStages(request, stages);
  std::vector<Link> before(ranks.size());  // each stage; one that takes no time where there is none
  bool any = false;
  for (size_t s = 1; s < ranks.size(); ++s) {
    const Link* link = ranks[s - 1] == ranks[s] ? nullptr : Find(request.links, ranks[s - 1], ranks[s]);
    if (link == nullptr || !link->measured) continue;
    before[s] = *link;
    any = true;
  }
  if (!any) return nullptr;
  return [before = std::move(before)](int stage, int64_t bytes) {
    const Link& link = before[stage];
    return 1e6 * (link.latency_seconds + SecondsOf(link, bytes));
  };
}

void AddRanks(const PlanRequest& request, const std::vector<LayerProfile>& profile, Plan& plan) {
  std::vector<int> first_layers;
  std::vector<Rank> ranks;
  std::set<int> others;
  for (const StagePlan& stage : plan.stages) {
    first_layers.push_back(stage.first_layer);
    ranks.push_back(stage.rank);
    if (stage.rank != Rank(0)) others.insert(stage.rank.value());
  }
  plan.transfers = TransfersOf(request, profile, first_layers, ranks);
  std::set<std::pair<Rank, Rank>> used;
  for (const StageTransfer& one : plan.transfers) used.insert(std::minmax(ranks[one.from], ranks[one.to]));
  for (const auto& [one, other] : used) {
    const Link* known = Find(request.links, one, other);
    plan.links.push_back(known != nullptr ? *known
                                          : Link{.one = one, .other = other, .problem = "nothing is known of it"});
    plan.why.push_back(Describe(plan.links.back()));
  }
  const bool measured =
      std::all_of(profile.begin(), profile.end(), [](const LayerProfile& one) { return one.measured; });
  if (others.empty() || !measured) return;
  plan.why.push_back(absl::StrCat("Layers were measured on devices of rank 0, in the stead of those of ",
                                  others.size() == 1 ? "rank " : "ranks ", absl::StrJoin(others, ", "), "."));
}

}  // namespace penstock
