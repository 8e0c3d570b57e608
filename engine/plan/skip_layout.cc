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
