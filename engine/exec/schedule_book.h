#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/schedule/build.h"

namespace penstock {

// Which passes keep only their input after the forward, for the lists have an R for them: [stage][micro-batch].
using Checkpointed = std::vector<std::vector<bool>>;

// The lists of a run, and what follows from them.
struct ListsOfRun {
  std::shared_ptr<const Schedule> schedule;
  std::shared_ptr<const Checkpointed> checkpointed;
};

// The verified lists of one pipeline by purpose and real number of micro-batches, built when first asked for.
//
// Threads:   any method from any thread.
class ScheduleBook {
 public:
  // Everything but purpose and micro-batches comes from `request`. `late_recompute`: R stands after the receipt of its
  // gradient; for comparison only.
  ScheduleBook(BuildRequest request, bool late_recompute)
      : request_(std::move(request)), late_recompute_(late_recompute) {}

  // Fails:     as BuildSchedule: an imported schedule may have fewer micro-batches than a call asks for.
  absl::StatusOr<ListsOfRun> Find(SchedulePurpose purpose, int microbatches) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const BuildRequest request_;
  const bool late_recompute_;
  absl::Mutex mu_;
  std::map<std::pair<SchedulePurpose, int>, ListsOfRun> lists_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
