#include "engine/plan/rehearse.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/log.h"

namespace penstock {
namespace {

struct Rehearsed {
  PlanCandidate candidate;
  Plan plan;
  std::vector<double> seconds;
  absl::Status status;
};

// How many of the first are worth so many rounds.
size_t CountWorthwhile(const PlanSearch& search, size_t plans, int rounds, double max_seconds) {
  size_t count = 0;
  double seconds = 0;
  while (count < std::min<size_t>(plans, kMaxRehearsed)) {
    const double step = search.candidates[count].makespan_seconds;
    seconds += step * rounds * (1 + kRehearsalSteps);
    if (step > search.candidates.front().makespan_seconds * kWorthRehearsing || seconds > max_seconds) break;
    ++count;
  }
  return count;
}

// Returns whether there was time for all of them.
bool RunRound(const RunSteps& run, const OutOfTime& out_of_time, bool backwards, std::vector<Rehearsed>& those) {
  std::vector<std::vector<double>> seconds(those.size());
  for (size_t k = 0; k < those.size(); ++k) {
    const size_t i = backwards ? those.size() - 1 - k : k;
    if (!those[i].status.ok()) continue;
    if (out_of_time && out_of_time()) return false;
    absl::StatusOr<std::vector<double>> steps = run(those[i].plan, out_of_time);
    if (out_of_time && out_of_time()) return false;  // it may have ended early
    those[i].status = steps.status();
    if (steps.ok()) seconds[i] = *std::move(steps);
  }
  for (size_t i = 0; i < those.size(); ++i) {
    those[i].seconds.insert(those[i].seconds.end(), seconds[i].begin(), seconds[i].end());
  }
  return true;
}

std::optional<double> Median(std::vector<double> seconds) {
  if (seconds.empty()) return std::nullopt;
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

void RehearseBest(const RunSteps& run, double max_seconds, const OutOfTime& out_of_time, std::vector<Plan>& plans,
                  PlanSearch& search) {
  int rounds = kRehearsals;
  size_t count = CountWorthwhile(search, plans.size(), rounds, max_seconds);
  if (count < 2) count = CountWorthwhile(search, plans.size(), rounds = 1, max_seconds);
  if (count < 2) return;
  std::vector<Rehearsed> those;
  for (size_t i = 0; i < count; ++i) {
    those.push_back({std::move(search.candidates[i]), std::move(plans[i]), {}, absl::OkStatus()});
  }
  for (int round = 0; round < rounds; ++round) {
    if (RunRound(run, out_of_time, /*backwards=*/round % 2 == 1, those)) continue;
    search.complete = false;
    break;
  }
  search.candidates.erase(search.candidates.begin(), search.candidates.begin() + static_cast<std::ptrdiff_t>(count));
  plans.erase(plans.begin(), plans.begin() + static_cast<std::ptrdiff_t>(count));
  for (Rehearsed& one : those) {
    if (one.status.ok()) {
      one.candidate.rehearsed_seconds = Median(std::move(one.seconds));
    } else {
      LogWarning("a plan could not be rehearsed",
                 {{"plan", DescribeSchedule(one.candidate.schedule)}, {"error", std::string(one.status.message())}});
    }
  }
  // Without an entry, for the time was up in the first round or it can't be run, a plan is as it was, behind those that
  // ran.
  std::stable_sort(those.begin(), those.end(), [](const Rehearsed& a, const Rehearsed& b) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    return a.candidate.rehearsed_seconds.value_or(kNever) < b.candidate.rehearsed_seconds.value_or(kNever);
  });
  for (size_t i = those.size(); i-- > 0;) {
    search.candidates.insert(search.candidates.begin(), std::move(those[i].candidate));
    plans.insert(plans.begin(), std::move(those[i].plan));
  }
}

}  // namespace penstock
