#include "engine/plan/planning.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "engine/base/error.h"

namespace penstock {
namespace {

struct PhaseFacts {
  std::string_view name;
  double end = 0;  // the share of the budget at which it must be over; the next one begins there at the latest
};

// By phase. What measures gets most: a plan from poor costs is a poor plan.
constexpr std::array<PhaseFacts, 7> kPhases = {{{"waiting", 0},
                                                {"loading", 0},
                                                {"measuring", 0.4},
                                                {"searching", 0.5},
                                                {"confirming", 0.75},
                                                {"rehearsing", 0.9},
                                                {"building", 1}}};

const PhaseFacts& FactsOf(PlanPhase phase) { return kPhases.at(static_cast<size_t>(phase)); }

double BeginOf(PlanPhase phase) {
  return phase == PlanPhase::kWaiting ? 0 : kPhases.at(static_cast<size_t>(phase) - 1).end;
}

}  // namespace

std::string_view PlanPhaseName(PlanPhase phase) { return FactsOf(phase).name; }

Planning::Planning(Clock* clock, double budget_seconds, std::function<bool()> unwanted)
    : clock_(clock),
      budget_seconds_(budget_seconds),
      unwanted_(std::move(unwanted)),
      asked_nanos_(clock->NowNanos()),
      begin_nanos_(asked_nanos_) {}

void Planning::Enter(PlanPhase phase, int64_t parts) {
  absl::MutexLock lock(&mu_);
  if (phase <= phase_) return;
  if (phase_ < PlanPhase::kMeasuring) begin_nanos_ = clock_->NowNanos();
  phase_ = phase;
  parts_ = std::max<int64_t>(1, parts);
  done_ = 0;
}

void Planning::PartDone() {
  absl::MutexLock lock(&mu_);
  done_ = std::min(done_ + 1, parts_);
}

double Planning::SecondsLeft() const {
  absl::MutexLock lock(&mu_);
  if (phase_ < PlanPhase::kMeasuring) return budget_seconds_;
  const double used = static_cast<double>(clock_->NowNanos() - begin_nanos_) * 1e-9;
  return std::max(0.0, budget_seconds_ * FactsOf(phase_).end - used);
}

absl::Status Planning::CheckWanted() const {
  if (!unwanted_ || !unwanted_()) return absl::OkStatus();
  return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the plan was given up, for nobody waits for it");
}

PlanProgress Planning::progress() const {
  absl::MutexLock lock(&mu_);
  const double begin = BeginOf(phase_);
  const double share = static_cast<double>(done_) / static_cast<double>(parts_);
  return {.phase = phase_,
          .done = begin + (FactsOf(phase_).end - begin) * share,
          .elapsed_seconds = static_cast<double>(clock_->NowNanos() - asked_nanos_) * 1e-9,
          .budget_seconds = budget_seconds_};
}

Planning* EndlessPlanning() {
  static auto* endless = new Planning(RealClock(), std::numeric_limits<double>::infinity());
  return endless;
}

}  // namespace penstock
