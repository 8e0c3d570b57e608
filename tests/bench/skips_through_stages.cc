#include "tests/bench/skips_through_stages.h"

#include <map>
#include <utility>

namespace penstock::bench {

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

}  // namespace penstock::bench
