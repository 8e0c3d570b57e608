#include "engine/schedule/skips.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

std::string EdgeText(const SkipEdge& edge) { return absl::StrCat(edge.from, "->", edge.to); }

}  // namespace

absl::Status CheckSkips(const std::vector<SkipEdge>& skips, int stages, int micro_batches) {
  const int64_t most = kMaxCells / std::max(1, micro_batches);
  if (static_cast<int64_t>(skips.size()) > most) {
    return InvalidField("skips", absl::StrCat("must be at most ", most, " with ", micro_batches, " micro-batches"),
                        absl::StrCat(skips.size()));
  }
  for (const SkipEdge& edge : skips) {
    if (edge.from >= 0 && edge.from < edge.to && edge.to < stages) continue;
    return InvalidField("skips", absl::StrCat("must lead from a stage to a later one of stages 0 to ", stages - 1),
                        EdgeText(edge));
  }
  std::vector<SkipEdge> sorted = skips;
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    return InvalidField("skips", "must not hold an edge twice", EdgeText(*twice));
  }
  return absl::OkStatus();
}

SkipEdge EdgeOf(const Action& communication) {
  const bool starts_here =
      communication.kind == ActionKind::kSendForward || communication.kind == ActionKind::kReceiveBackward;
  return starts_here ? SkipEdge{communication.stage, communication.peer}
                     : SkipEdge{communication.peer, communication.stage};
}

std::vector<SkipEdge> SkipsInLists(const Schedule& schedule) {
  absl::flat_hash_set<std::pair<int, int>> found;
  for (const auto& list : schedule.lanes) {
    for (const Action& action : list) {
      if (action.peer < 0) continue;
      const SkipEdge edge = EdgeOf(action);
      found.insert({edge.from, edge.to});
    }
  }
  std::vector<SkipEdge> edges;
  for (const auto& [from, to] : found) edges.push_back({from, to});
  std::sort(edges.begin(), edges.end());
  return edges;
}

CrossingSkips::CrossingSkips(std::vector<SkipEdge> skips, const std::vector<int>& lane_of)
    : edges_(std::move(skips)), sources_(lane_of.size()), destinations_(lane_of.size()) {
  std::erase_if(edges_, [&](const SkipEdge& edge) {
    return lane_of[edge.from] < 0 || lane_of[edge.to] < 0 || lane_of[edge.from] == lane_of[edge.to];
  });
  std::sort(edges_.begin(), edges_.end());
  for (const SkipEdge& edge : edges_) {
    sources_[edge.to].push_back(edge.from);
    destinations_[edge.from].push_back(edge.to);
  }
}

}  // namespace penstock
