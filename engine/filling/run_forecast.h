#pragma once

// When the actions of one training run will begin: the simulator's forecast, moved by how late the run is.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/simulate.h"

namespace penstock {

// A time that does not come.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What a run's lists take if nothing is late. Immutable.
//
// Units:     nanoseconds from the run's start; kNever behind a list's last compute action.
struct RunForecast {
  struct Span {
    int64_t start = kNever;
    int64_t end = kNever;
  };
  std::vector<std::vector<Span>> lanes;  // by position: of the compute action there, or else the next behind it
  int64_t weights_change = kNever;       // start of the first OPT
};

// Fails:     as Simulate.
absl::StatusOr<RunForecast> MakeForecast(const Schedule& schedule, const ScheduleCosts& costs);

// Follows one training run and says when each of its lanes will have work again.
//
// Model:     where every lane is: in an action since when, or before one. A working lane is late by the time from its
//            action's forecast start to its real one, and once the forecast end has passed, by the time since then. The
//            run is as late as the least late of the working lanes: while none is earlier than that, nothing that is to
//            come can begin before its forecast plus this lateness (as long as actions take what they are believed to).
//            Where no lane works, the one whose action is next in the forecast begins now. So a gap is rather said too
//            short than too long. The first lane that asks makes the forecast, one with nothing else to do;
//            nobody waits for it.
// Threads:   any method from any thread.
// Fails:     without a forecast every gap is empty.
class RunProgress {
 public:
  using Forecaster = std::function<std::shared_ptr<const RunForecast>()>;
  // `forecaster` may return null; it is called at most once, without a lock that anything else needs.
  RunProgress(std::shared_ptr<const Schedule> schedule, int64_t begin_nanos, Forecaster forecaster);

  // A lane begins the compute action at `position` of its list; has ended it; has left the run.
  void Begin(LaneIndex lane, size_t position, int64_t now) ABSL_LOCKS_EXCLUDED(mu_);
  void End(LaneIndex lane, int64_t now) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(LaneIndex lane) ABSL_LOCKS_EXCLUDED(mu_);

  // When the next compute action of a waiting lane will begin, not before `now`; kNever if its list is done.
  int64_t ExpectedStart(LaneIndex lane, int64_t now) ABSL_LOCKS_EXCLUDED(mu_, forecast_mu_);
  // When the weights will change, not before `now`; kNever if they won't.
  int64_t ExpectedWeightsChange(int64_t now) ABSL_LOCKS_EXCLUDED(mu_, forecast_mu_);

  // What the actions that have ended took, by (stage, kind): total and number.
  struct Total {
    int64_t nanos = 0;
    int64_t count = 0;
  };
  std::map<std::pair<int, ActionKind>, Total> Totals() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct LaneAt {
    enum class Doing { kWaits, kWorks, kLeft };
    Doing doing = Doing::kWaits;
    size_t position = 0;  // of the action it is in, or else the first that it has not begun
    int64_t began = 0;
  };
  const RunForecast* Forecast() ABSL_LOCKS_EXCLUDED(mu_, forecast_mu_);  // null: not known, or being made
  int64_t Lateness(const RunForecast& forecast, int64_t now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<const Schedule> schedule_;
  const int64_t begin_;

  absl::Mutex forecast_mu_;  // held while the forecast is made
  Forecaster forecaster_ ABSL_GUARDED_BY(forecast_mu_);
  std::shared_ptr<const RunForecast> made_ ABSL_GUARDED_BY(forecast_mu_);
  std::atomic<const RunForecast*> forecast_ = nullptr;  // what was made, if anything

  mutable absl::Mutex mu_;
  std::vector<LaneAt> lanes_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<int, ActionKind>, Total> totals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
