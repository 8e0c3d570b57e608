#include "engine/observe/rank_clocks.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>
#include <vector>

namespace penstock {
namespace {

constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

// Upper bounds of how far one clock is ahead of another. Number 0 is the clock of this process.
class ClockBounds {
 public:
  explicit ClockBounds(size_t clocks) : clocks_(clocks), bounds_(clocks * clocks, kUnbounded) {
    for (size_t i = 0; i < clocks; ++i) At(i, i) = 0;
  }

  void Bound(size_t clock, size_t behind, int64_t nanos) { At(clock, behind) = std::min(At(clock, behind), nanos); }

  // Makes each bound as tight as all together are, by Floyd and Warshall. Returns whether they agree.
  bool Close() {
    for (size_t via = 0; via < clocks_; ++via) {
      for (size_t i = 0; i < clocks_; ++i) {
        for (size_t j = 0; j < clocks_; ++j) {
          if (At(i, via) != kUnbounded && At(via, j) != kUnbounded) Bound(i, j, At(i, via) + At(via, j));
        }
      }
    }
    for (size_t i = 0; i < clocks_; ++i) {
      if (At(i, i) < 0) return false;
    }
    return true;
  }

  // How far a clock is ahead of number 0: from, to.
  std::pair<int64_t, int64_t> Ahead(size_t clock) const { return {-bounds_[clock], bounds_[clock * clocks_]}; }

 private:
  int64_t& At(size_t i, size_t j) { return bounds_[i * clocks_ + j]; }

  const size_t clocks_;
  std::vector<int64_t> bounds_;  // row: the clock; column: the one that it is ahead of
};

// Calls `visit(clock, record)` for the actions of all traces.
template <typename Visit>
void ForEachAction(const TraceCapture& own, const std::vector<RankPart*>& parts, const Visit& visit) {
  const auto all = [&visit](size_t clock, const std::vector<LaneCapture>& lanes) {
    for (const LaneCapture& lane : lanes) {
      for (const TraceRecord& record : lane.actions) visit(clock, record);
    }
  };
  all(0, own.lanes);
  for (size_t i = 0; i < parts.size(); ++i) all(i + 1, parts[i]->trace.lanes);
}

}  // namespace

void NarrowClocks(const TraceCapture& own, std::map<Rank, RankPart>* others) {
  std::vector<RankPart*> parts;
  for (auto& [rank, part] : *others) {
    if (!part.clock.missing) parts.push_back(&part);
  }
  ClockBounds bounds(parts.size() + 1);
  for (size_t i = 0; i < parts.size(); ++i) {
    const RankClock& clock = parts[i]->clock;
    bounds.Bound(i + 1, 0, clock.ahead_nanos + clock.uncertainty_nanos);
    bounds.Bound(0, i + 1, clock.uncertainty_nanos - clock.ahead_nanos);
  }
  std::unordered_map<uint64_t, std::pair<size_t, int64_t>> sent;  // by correlation: whose, when
  ForEachAction(own, parts, [&sent](size_t clock, const TraceRecord& record) {
    if (IsSend(record.kind)) sent.try_emplace(record.correlation, clock, record.begin_nanos);
  });
  ForEachAction(own, parts, [&](size_t clock, const TraceRecord& record) {
    if (!IsReceive(record.kind)) return;
    const auto send = sent.find(record.correlation);
    if (send == sent.end() || send->second.first == clock) return;
    bounds.Bound(clock, send->second.first, record.begin_nanos - send->second.second);
  });
  if (!bounds.Close()) return;
  const ClockBounds known = bounds;
  for (size_t i = 0; i < parts.size(); ++i) {
    // Each takes the middle of what those before have left it, so that the offsets agree with each other too.
    const auto [from, to] = bounds.Ahead(i + 1);
    const int64_t ahead = std::midpoint(from, to);
    const auto [least, most] = known.Ahead(i + 1);
    parts[i]->clock.ahead_nanos = ahead;
    parts[i]->clock.uncertainty_nanos = std::max(ahead - least, most - ahead);
    bounds.Bound(i + 1, 0, ahead);
    bounds.Bound(0, i + 1, -ahead);
    bounds.Close();
  }
}

}  // namespace penstock
