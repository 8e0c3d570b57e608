#pragma once

// A step as the planner foresaw it beside the step as it ran: action by action, and where they differ most.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/observe/metrics.h"
#include "engine/observe/trace_capture.h"
#include "engine/plan/plan.h"
#include "engine/schedule/action.h"

namespace penstock {

// One compute action or one part of an optimizer step.
//
// Units:     nanoseconds since the step's begin: the planned one starts at 0, the measured one when its lanes got their
//            lists.
struct ScheduledAction {
  Action action;
  int lane = 0;
  int64_t planned_start = 0;
  int64_t planned_end = 0;
  int64_t measured_start = 0;  // both 0 if nothing was measured
  int64_t measured_end = 0;
};

struct ScheduleTotals {
  int64_t makespan_nanos = 0;
  double bubble = 0;  // 1 - busy time of all lanes / (makespan times lanes)
};

// Something that took longer, or shorter, than planned.
struct ScheduleDeviation {
  enum class Kind {
    kDuration,  // the action itself
    kWait,      // what its lane did nothing for, before it
  };
  Kind kind = Kind::kDuration;
  ScheduledAction where;
  int64_t planned_nanos = 0;
  int64_t measured_nanos = 0;
  double share = 0;  // of the difference, in the measured makespan; negative where it was shorter
};

struct ScheduleReport {
  std::string kind;
  int stages = 0;
  int lanes = 0;
  int micro_batches = 0;
  int64_t step = 0;  // 0: planned only
  int64_t run = 0;
  std::vector<ScheduledAction> actions;  // lane 0 first, each lane in the order of its list
  ScheduleTotals planned;
  std::optional<ScheduleTotals> measured;
  std::vector<ScheduleDeviation> deviations;  // largest first, at most kMaxDeviations
};
inline constexpr size_t kMaxDeviations = 20;

// The training step of a plan, simulated with its costs. `micro_batches` 0: as the plan says. An optimizer step is
// planned to take no time: it has not been measured yet.
//
// Fails:     as BuildSchedule for that many micro-batches.
absl::StatusOr<ScheduleReport> PlannedSchedule(const Plan& plan, int micro_batches);

// The last run that computed gradients for optimizer step `step`, as Outcome.step counts (0: the last step that ended),
// as a capture of all lanes has it, beside its plan. `run` above 0 asks for that run instead.
//
// Fails:     OUT_OF_RANGE / STEP_NOT_RETAINED, saying whether no step has run yet, this one has not, or its records
//            were overwritten; UNAVAILABLE / RANK_LOST where the capture is without the lanes of a rank.
absl::StatusOr<ScheduleReport> MeasuredSchedule(const Plan& plan, const TraceCapture& capture, int64_t step,
                                                int64_t run = 0);

// The same as the lanes' trace rings have it, which are all of this process.
absl::StatusOr<ScheduleReport> MeasuredSchedule(const Plan& plan, const PipelineMetrics& metrics, int64_t step,
                                                int64_t run = 0);

}  // namespace penstock
