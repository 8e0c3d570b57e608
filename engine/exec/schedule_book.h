#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/plan/plan.h"
#include "engine/schedule/build.h"

namespace penstock {

// The verified lists of one pipeline by purpose and real number of micro-batches, built when first asked for.
//
// Threads:   any method from any thread.
class ScheduleBook {
 public:
  // `late_recompute`: R stands after the receipt of its gradient; for comparison only.
  ScheduleBook(ScheduleSpec spec, int stages, std::vector<SkipEdge> skips, bool late_recompute)
      : spec_(std::move(spec)), stages_(stages), skips_(std::move(skips)), late_recompute_(late_recompute) {}

  absl::StatusOr<std::shared_ptr<const Schedule>> Find(SchedulePurpose purpose, int microbatches)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const ScheduleSpec spec_;
  const int stages_;
  const std::vector<SkipEdge> skips_;
  const bool late_recompute_;
  absl::Mutex mu_;
  std::map<std::pair<SchedulePurpose, int>, std::shared_ptr<const Schedule>> lists_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
