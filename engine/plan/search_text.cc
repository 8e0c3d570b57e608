// How a search is told to people: why nothing was found, why the best was chosen, and what a schedule is called.

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/error.h"
#include "engine/plan/planner.h"
#include "engine/plan/search.h"
#include "engine/plan/spec_error.h"

namespace penstock {

absl::Status PlanSearch::WhyNone() const {
  const RefusedPlan* least = nullptr;
  int64_t min_bytes = 0;
  for (const RefusedPlan& one : refused) {
    if (ReasonOf(one.why) != "PLAN_DOES_NOT_FIT") continue;
    const int64_t bytes = std::stoll(ValuesOf(one.why)["value"]);
    if (least != nullptr && bytes >= min_bytes) continue;
    least = &one;
    min_bytes = bytes;
  }
  if (least == nullptr && !refused.empty()) least = &refused.front();
  if (least != nullptr) return least->why;
  return RefuseSpec("spec.schedule", "nothing is left to choose from", "nothing");
}

std::string PlanSearch::Reason() const {
  const PlanCandidate& best = candidates.front();
  std::string text = absl::StrCat(
      "Of ", considered, " schedules considered, ", DescribeSchedule(best.schedule),
      best.rehearsed_seconds ? ", was the fastest of those that were run: " : ", is predicted to be the best: ",
      absl::StrFormat("%.3f ms", best.rehearsed_seconds.value_or(best.makespan_seconds) * 1e3));
  if (best.micro_batch_rows > 0) absl::StrAppend(&text, " with ", best.micro_batch_rows, " rows per micro-batch");
  if (candidates.size() > 1) {
    const PlanCandidate& next = candidates[1];
    absl::StrAppend(&text, "; next is ", DescribeSchedule(next.schedule),
                    absl::StrFormat(" with %.3f ms", next.rehearsed_seconds.value_or(next.makespan_seconds) * 1e3),
                    best.rehearsed_seconds && !next.rehearsed_seconds ? ", predicted" : "");
  }
  return text + ".";
}

std::string DescribeSchedule(const ScheduleSpec& schedule) {
  std::string text = schedule.kind;
  if (schedule.chunks > 1) absl::StrAppend(&text, " with ", schedule.chunks, " chunks");
  if (schedule.lag.has_value()) absl::StrAppend(&text, " with lag ", *schedule.lag);
  if (schedule.live_limit.has_value()) absl::StrAppend(&text, " with live limit ", *schedule.live_limit);
  return absl::StrCat(text, ", ", schedule.micro_batches,
                      schedule.micro_batches == 1 ? " micro-batch" : " micro-batches", ", checkpoint ",
                      std::string(CheckpointModeName(schedule.checkpoint)));
}

}  // namespace penstock
