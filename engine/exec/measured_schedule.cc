#include "engine/exec/measured_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/exec/action_labels.h"
#include "engine/plan/planner.h"
#include "engine/schedule/build.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

constexpr uint64_t kRecentRecords = 8192;  // of each lane: some steps of most pipelines
constexpr int kApply = 2;                  // the part of an optimizer step that changes weights

SchedulePurpose PurposeOf(TraceRun purpose) {
  switch (purpose) {
    case TraceRun::kContribution:
      return SchedulePurpose::kContribution;
    case TraceRun::kBackward:
      return SchedulePurpose::kBackwardOnly;
    default:
      return SchedulePurpose::kTrainingStep;
  }
}

// Nothing for a record that is of no action that computes.
std::optional<ActionKind> KindOf(TraceKind kind) {
  for (const ActionLabels& labels : kActionLabels) {
    if (labels.trace == kind && !IsCommunication(labels.kind)) return labels.kind;
  }
  return std::nullopt;
}

absl::StatusOr<ScheduleReport> Simulated(const Plan& plan, SchedulePurpose purpose, int micro_batches) {
  BuildRequest request = BuildRequestOf(plan);
  request.purpose = purpose;
  if (micro_batches > 0) request.micro_batches = micro_batches;
  PENSTOCK_ASSIGN_OR_RETURN(const Schedule lists, BuildSchedule(request));
  ScheduleCosts costs = request.costs;
  costs.optimizer_barrier = true;  // the norms of all stages come first
  PENSTOCK_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(lists, costs));
  ScheduleReport report;
  report.kind = plan.schedule.kind;
  report.stages = lists.stages;
  report.lanes = static_cast<int>(lists.lanes.size());
  report.micro_batches = lists.micro_batches;
  int64_t busy = 0;
  for (int lane = 0; lane < report.lanes; ++lane) {
    busy += simulation.times[lane].busy;
    for (const TimedAction& timed : simulation.lanes[lane]) {
      if (IsCommunication(timed.action.kind)) continue;
      report.actions.push_back(
          {.action = timed.action, .lane = lane, .planned_start = timed.start, .planned_end = timed.end});
    }
  }
  report.planned.makespan_nanos = simulation.makespan;
  if (simulation.makespan > 0) {
    report.planned.bubble = 1 - static_cast<double>(busy) / (static_cast<double>(simulation.makespan) * report.lanes);
  }
  return report;
}

absl::Status NotRetained(int64_t step, std::string_view problem) {
  return Error(absl::StatusCode::kOutOfRange, "STEP_NOT_RETAINED",
               absl::StrCat("step: ", absl::string_view(problem.data(), problem.size()), ", got ", step))
      .With("field", "step")
      .With("value", absl::StrCat(step));
}

absl::Status LanesMissing(int rank) {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST",
               absl::StrCat("rank ", rank, " has not said what its lanes did"))
      .With("rank", absl::StrCat(rank));
}

bool HasBackward(TraceRun purpose) {
  return purpose == TraceRun::kTrainStep || purpose == TraceRun::kContribution || purpose == TraceRun::kBackward;
}

// The run that is asked for; none if the capture does not have it.
std::optional<RunSpan> FindRun(const TraceCapture& capture, int64_t step, int64_t run) {
  std::optional<RunSpan> found;
  for (const RunSpan& one : RunsOf(capture)) {
    if (!HasBackward(one.purpose) || one.failed || one.lanes < static_cast<int>(capture.lanes.size())) continue;
    if (run > 0 ? one.run == run : step == 0 || one.step == step) found = one;
  }
  return found;
}

// Why there is no such run.
absl::Status ExplainMissing(const TraceCapture& capture, int64_t step) {
  int64_t newest = 0;
  for (const RunSpan& one : RunsOf(capture)) {
    if (HasBackward(one.purpose)) newest = std::max(newest, one.step);
  }
  if (newest == 0 && !capture.incomplete) return NotRetained(step, "no step has run yet");
  if (step > newest && newest > 0) return NotRetained(step, absl::StrCat("has not run yet, the last was ", newest));
  return NotRetained(step, "is not in the trace ring any more (--trace-ring-events)");
}

// Puts the times of a run into the report of its plan. False if records are missing.
bool AddMeasured(const TraceCapture& capture, const RunSpan& run, ScheduleReport* report) {
  std::vector<ScheduledAction> actions;
  int64_t busy = 0;
  int64_t end = 0;
  for (int lane = 0; lane < report->lanes; ++lane) {
    std::map<Action, ScheduledAction> planned;
    size_t steps = 0;  // of the optimizer, on this lane
    for (const ScheduledAction& one : report->actions) {
      if (one.lane == lane) planned.emplace(one.action, one);
    }
    size_t seen = 0;
    int64_t last_planned = 0;
    for (const TraceRecord& record : capture.lanes[lane].actions) {
      const std::optional<ActionKind> kind = KindOf(record.kind);
      if (record.run != run.run || !kind.has_value()) continue;
      const bool optimizer = kind == ActionKind::kOptimizer;
      const auto place = planned.find({*kind, record.stage, optimizer ? 0 : record.micro_batch});
      if (place == planned.end()) return false;
      (optimizer ? steps : seen) += 1;
      ScheduledAction one = place->second;
      // Norms come right behind the lane's last gradient; only their sum waits for the other lanes.
      if (optimizer && record.detail != kApply) one.planned_start = one.planned_end = last_planned;
      last_planned = one.planned_end;
      one.measured_start = record.begin_nanos - run.begin_nanos;
      one.measured_end = record.end_nanos - run.begin_nanos;
      busy += one.measured_end - one.measured_start;
      end = std::max(end, one.measured_end);
      actions.push_back(one);
    }
    const auto is_step = [](const auto& entry) { return entry.first.kind == ActionKind::kOptimizer; };
    const auto wanted_steps = static_cast<size_t>(std::count_if(planned.begin(), planned.end(), is_step));
    if (seen != planned.size() - wanted_steps || steps < wanted_steps) return false;
  }
  report->actions = std::move(actions);
  report->step = run.step;
  report->run = run.run;
  report->measured.emplace();
  report->measured->makespan_nanos = end;
  report->measured->bubble = 1 - static_cast<double>(busy) / (static_cast<double>(end) * report->lanes);
  return true;
}

void AddDeviations(ScheduleReport* report) {
  std::vector<ScheduleDeviation> all;
  const auto makespan = static_cast<double>(std::max<int64_t>(report->measured->makespan_nanos, 1));
  const auto add = [&](ScheduleDeviation::Kind kind, const ScheduledAction& where, int64_t planned, int64_t measured) {
    if (planned == measured) return;
    all.push_back({kind, where, planned, measured, static_cast<double>(measured - planned) / makespan});
  };
  const ScheduledAction* before = nullptr;
  for (const ScheduledAction& one : report->actions) {
    if (before != nullptr && before->lane != one.lane) before = nullptr;
    add(ScheduleDeviation::Kind::kDuration, one, one.planned_end - one.planned_start,
        one.measured_end - one.measured_start);
    add(ScheduleDeviation::Kind::kWait, one,
        std::max<int64_t>(one.planned_start - (before == nullptr ? 0 : before->planned_end), 0),
        one.measured_start - (before == nullptr ? 0 : before->measured_end));
    before = &one;
  }
  std::stable_sort(all.begin(), all.end(), [](const ScheduleDeviation& a, const ScheduleDeviation& b) {
    return std::fabs(a.share) > std::fabs(b.share);
  });
  if (all.size() > kMaxDeviations) all.resize(kMaxDeviations);
  report->deviations = std::move(all);
}

}  // namespace

absl::StatusOr<ScheduleReport> PlannedSchedule(const Plan& plan, int micro_batches) {
  return Simulated(plan, SchedulePurpose::kTrainingStep, micro_batches);
}

absl::StatusOr<ScheduleReport> MeasuredSchedule(const Plan& plan, const TraceCapture& capture, int64_t step,
                                                int64_t run) {
  for (const RankClock& rank : capture.ranks) {
    if (rank.missing) return LanesMissing(rank.rank);
  }
  const std::optional<RunSpan> span = FindRun(capture, step, run);
  if (!span.has_value()) return ExplainMissing(capture, step);
  PENSTOCK_ASSIGN_OR_RETURN(ScheduleReport report, Simulated(plan, PurposeOf(span->purpose), span->micro_batches));
  if (report.lanes != static_cast<int>(capture.lanes.size()) || !AddMeasured(capture, *span, &report)) {
    return ExplainMissing(capture, step);
  }
  AddDeviations(&report);
  return report;
}

absl::StatusOr<ScheduleReport> MeasuredSchedule(const Plan& plan, const PipelineMetrics& metrics, int64_t step,
                                                int64_t run) {
  // Mostly one of the last steps is wanted; the whole ring is read only if it must be.
  auto report = MeasuredSchedule(plan, CaptureActions(metrics, kRecentRecords), step, run);
  if (report.status().code() != absl::StatusCode::kOutOfRange) return report;
  const auto all = static_cast<uint64_t>(metrics.lane(0).trace.actions.capacity());
  return MeasuredSchedule(plan, CaptureActions(metrics, all), step, run);
}

}  // namespace penstock
