// auto: the best of 1f1b, the lag family and six greedy runs, for given costs and a given memory.

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/schedule/fuse_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/greedy.h"

namespace penstock {
namespace {

// Keeps the best list that it was shown and that fits; the earlier wins a tie.
class Contest {
 public:
  Contest(int live_limit, const ScheduleCosts& costs) : live_limit_(live_limit), costs_(costs) {}

  absl::Status Show(Schedule candidate) {
    // As it would run: with the backwards fused that need no split.
    PENSTOCK_ASSIGN_OR_RETURN(const Schedule fused, FuseWhereItPays(candidate, costs_));
    PENSTOCK_ASSIGN_OR_RETURN(const Simulation run, Simulate(fused, costs_));
    const std::vector<int64_t>& peaks = run.peaks.full;
    if (*std::max_element(peaks.begin(), peaks.end()) > live_limit_) return absl::OkStatus();
    const Score score{run.makespan, run.window, std::accumulate(peaks.begin(), peaks.end(), int64_t{0})};
    if (best_ && *score_ <= score) return absl::OkStatus();
    best_ = std::move(candidate);
    score_ = score;
    return absl::OkStatus();
  }

  Schedule Best() && {
    best_->kind = "auto";
    return *std::move(best_);
  }

 private:
  using Score = std::tuple<Ticks, Ticks, int64_t>;  // makespan, window, sum of peaks

  const int live_limit_;
  const ScheduleCosts& costs_;
  std::optional<Schedule> best_;
  std::optional<Score> score_;
};

}  // namespace

absl::StatusOr<Schedule> CostAware(int lanes, int micro_batches, int live_limit, const ScheduleCosts& costs) {
  Contest contest(live_limit, costs);
  PENSTOCK_RETURN_IF_ERROR(contest.Show(OneForwardOneBackward(lanes, micro_batches)));
  for (int lag = lanes - 1; lag < live_limit; ++lag) {
    PENSTOCK_RETURN_IF_ERROR(contest.Show(LaggingWeightGradients(lanes, micro_batches, lag)));
  }
  for (const bool input_first : {true, false}) {
    for (const int min_gap : {2, 1, 0}) {
      PENSTOCK_RETURN_IF_ERROR(
          contest.Show(PlayGreedily(lanes, micro_batches, live_limit, costs, {input_first, min_gap})));
    }
  }
  return std::move(contest).Best();  // a greedy run always fits
}

}  // namespace penstock
