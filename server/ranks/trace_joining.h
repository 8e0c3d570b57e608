#pragma once

// A trace that waits for the other ranks' parts.

#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/observe/rank_trace.h"

namespace penstock {

// Collects parts, and gives the joint trace away when the last one is there.
//
// Threads:   any method from any thread. `done` is called once, by the thread that brings the last part, without a lock.
// Lifecycle: made with the ranks that will give a part; Give() for each, the first one counts; GiveUp() when it has
//            waited long enough.
class TraceJoining {
 public:
  using Done = std::function<void(TraceCapture)>;

  TraceJoining(TraceCapture own, std::map<Rank, RankClock> ranks, Done done);

  // The span that a rank is asked for, by its clock.
  std::pair<int64_t, int64_t> SpanOf(Rank rank) const;
  // An error, or what can't be true, is logged; then the rank is missing.
  void Give(Rank rank, absl::StatusOr<RankTrace> trace) ABSL_LOCKS_EXCLUDED(mu_);
  // Those that have given nothing yet are missing.
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const TraceCapture own_;
  const std::map<Rank, RankClock> ranks_;
  const Done done_;

  absl::Mutex mu_;
  std::map<Rank, RankPart> parts_ ABSL_GUARDED_BY(mu_);
  bool done_called_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
