#include "engine/plan/skip_layout.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace penstock {
namespace {

int StageOf(const std::vector<int>& first_layers, int layer) {
  const auto after = std::upper_bound(first_layers.begin(), first_layers.end(), layer);
  return static_cast<int>(after - first_layers.begin()) - 1;
}

}  // namespace

std::vector<SkipRoute> ThroughStages(const std::vector<SkipRoute>& routes) {
  std::map<int, SkipRoute> hops;  // by the stage that they leave
  for (const SkipRoute& route : routes) {
    for (int stage = route.edge.from; stage < route.edge.to; ++stage) {
      SkipRoute& hop = hops[stage];
      hop.edge = {stage, stage + 1};
      hop.names.insert(hop.names.end(), route.names.begin(), route.names.end());
      hop.bytes += route.bytes;
    }
  }
  std::vector<SkipRoute> sorted;
  for (auto& [stage, hop] : hops) sorted.push_back(std::move(hop));
  return sorted;
}

std::vector<SkipRoute> LayOutSkips(const std::vector<SkipDeclaration>& skips, const std::vector<int>& first_layers) {
  std::map<SkipName, int> popped_by;
  for (size_t layer = 0; layer < skips.size(); ++layer) {
    for (const SkipName& name : skips[layer].pops) popped_by.emplace(name, static_cast<int>(layer));
  }
  std::map<std::tuple<int, int>, SkipRoute> routes;  // by (to, from)
  for (size_t layer = 0; layer < skips.size(); ++layer) {
    const int from = StageOf(first_layers, static_cast<int>(layer));
    for (const SkipName& name : skips[layer].stashes) {
      const auto popper = popped_by.find(name);
      if (popper == popped_by.end()) continue;
      const int to = StageOf(first_layers, popper->second);
      if (to <= from) continue;
      SkipRoute& route = routes[{to, from}];
      route.edge = {from, to};
      route.names.push_back(name);
    }
  }
  std::vector<SkipRoute> sorted;
  for (auto& [key, route] : routes) sorted.push_back(std::move(route));
  return sorted;
}

}  // namespace penstock
