#pragma once

// What actions of one pipeline cost: as calibrated at first, then as they were seen to take.

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/filling/run_forecast.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// Forecasts training runs from what earlier ones took.
//
// Model:     per rows of a micro-batch, the costs of every stage: calibrated, and with each run a quarter of the way to
//            its means. Only times of actions count, never waits, so that inference which holds training up does not
//            make the next gap look longer. Forecasts are kept until a cost has moved by more than a fiftieth.
// Threads:   any method from any thread.
class TrainingCosts {
 public:
  explicit TrainingCosts(ScheduleCosts calibrated) : calibrated_(std::move(calibrated)) {}

  void Learn(int64_t rows, const std::map<std::pair<int, ActionKind>, RunProgress::Total>& totals)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null if the lists can't be simulated. `barrier` as ScheduleCosts.
  std::shared_ptr<const RunForecast> Forecast(const std::shared_ptr<const Schedule>& schedule, int64_t rows,
                                              bool barrier) ABSL_LOCKS_EXCLUDED(mu_);
  ScheduleCosts Costs(int64_t rows) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::shared_ptr<const Schedule> schedule;  // keeps the key's address its own
    ScheduleCosts costs;                       // that the forecast was made from
    std::shared_ptr<const RunForecast> forecast;
  };
  const ScheduleCosts calibrated_;

  mutable absl::Mutex mu_;
  std::map<int64_t, ScheduleCosts> by_rows_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<const Schedule*, int64_t>, Entry> forecasts_ ABSL_GUARDED_BY(mu_);
};

// Expects what inference actions take.
//
// Model:     per stage and rows of a micro-batch, a running mean of what they took and of how far they were from it.
//            The expectation is the mean plus that deviation. Rows that were not seen yet are scaled from the
//            calibrated forward, and never expected to be faster than that for fewer rows.
// Threads:   any method from any thread.
// Units:     nanoseconds; kNever if nothing is known.
class InferenceCosts {
 public:
  // `forward` by stage, for `rows` rows; 0: not known.
  InferenceCosts(std::vector<int64_t> forward, int64_t rows) : forward_(std::move(forward)), rows_(rows) {}

  void Observe(StageIndex stage, int64_t rows, int64_t nanos) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t Expected(StageIndex stage, int64_t rows) const ABSL_LOCKS_EXCLUDED(mu_);
  // From the begin of an action of `stage` to the end of its run, at the least: this micro-batch through all later
  // stages, and `behind` more through the last one.
  int64_t MinToEnd(StageIndex stage, int64_t rows, int behind) const ABSL_LOCKS_EXCLUDED(mu_);
  // All actions of a run whose micro-batches have these rows, on all stages together. Both: 0 if nothing is known.
  int64_t Work(const std::vector<int64_t>& rows) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Seen {
    double mean = 0;
    double deviation = 0;
  };
  int64_t MeanLocked(int stage, int64_t rows, double deviations) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::vector<int64_t> forward_;
  const int64_t rows_;

  mutable absl::Mutex mu_;
  std::map<std::pair<int, int64_t>, Seen> seen_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
