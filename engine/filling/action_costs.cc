#include "engine/filling/action_costs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace penstock {
namespace {

constexpr size_t kMaxKept = 64;  // sizes of micro-batches, and lists: with one more, all are forgotten

bool FarApart(Ticks a, Ticks b) { return std::abs(a - b) * 50 > std::max(a, b); }

bool FarApart(const ScheduleCosts& a, const ScheduleCosts& b) {
  for (size_t s = 0; s < a.stages.size(); ++s) {
    const StageCosts& one = a.stages[s];
    const StageCosts& other = b.stages[s];
    if (FarApart(one.forward, other.forward) || FarApart(one.input_gradient, other.input_gradient) ||
        FarApart(one.weight_gradient, other.weight_gradient) || FarApart(one.recompute, other.recompute) ||
        FarApart(one.optimizer, other.optimizer) || FarApart(one.backward.value_or(0), other.backward.value_or(0))) {
      return true;
    }
  }
  return false;
}

}  // namespace

void TrainingCosts::Learn(int64_t rows, const std::map<std::pair<int, ActionKind>, RunProgress::Total>& totals) {
  absl::MutexLock lock(&mu_);
  if (by_rows_.size() >= kMaxKept && by_rows_.count(rows) == 0) by_rows_.clear();
  const bool first = by_rows_.count(rows) == 0;
  ScheduleCosts& costs = by_rows_.try_emplace(rows, calibrated_).first->second;
  const auto move = [first](Ticks& cost, Ticks mean) { cost = first ? mean : cost + (mean - cost) / 4; };
  for (const auto& [key, total] : totals) {
    const auto& [stage, kind] = key;
    if (total.count == 0) continue;
    const Ticks mean = std::clamp<Ticks>(total.nanos / total.count, 0, kMaxCost);
    StageCosts& of_stage = costs.stages.at(stage);
    if (kind == ActionKind::kBackward) {
      move(*of_stage.backward, mean);
    } else if (const auto cost = InfoOf(kind).cost; cost != nullptr) {
      move(of_stage.*cost, mean);
    }
  }
}

ScheduleCosts TrainingCosts::Costs(int64_t rows) const {
  absl::MutexLock lock(&mu_);
  const auto found = by_rows_.find(rows);
  return found == by_rows_.end() ? calibrated_ : found->second;
}

std::shared_ptr<const RunForecast> TrainingCosts::Forecast(const std::shared_ptr<const Schedule>& schedule,
                                                           int64_t rows, bool barrier) {
  ScheduleCosts costs = Costs(rows);
  costs.optimizer_barrier = barrier;
  {
    absl::MutexLock lock(&mu_);
    const auto found = forecasts_.find({schedule.get(), rows});
    if (found != forecasts_.end() && !FarApart(found->second.costs, costs)) return found->second.forecast;
  }
  absl::StatusOr<RunForecast> made = MakeForecast(*schedule, costs);
  auto forecast = made.ok() ? std::make_shared<const RunForecast>(*std::move(made)) : nullptr;
  absl::MutexLock lock(&mu_);
  if (forecasts_.size() >= kMaxKept) forecasts_.clear();
  forecasts_[{schedule.get(), rows}] = {schedule, std::move(costs), forecast};
  return forecast;
}

void InferenceCosts::Observe(StageIndex stage, int64_t rows, int64_t nanos) {
  absl::MutexLock lock(&mu_);
  if (seen_.size() >= kMaxKept * forward_.size()) seen_.clear();
  const auto [entry, is_new] = seen_.try_emplace({stage.value(), rows});
  const auto took = static_cast<double>(nanos);
  Seen& seen = entry->second;
  if (is_new) {
    seen = {.mean = took, .deviation = 0};
    return;
  }
  seen.deviation += (std::abs(took - seen.mean) - seen.deviation) / 8;
  seen.mean += (took - seen.mean) / 8;
}

int64_t InferenceCosts::MeanLocked(int stage, int64_t rows, double deviations) const {
  const auto found = seen_.find({stage, rows});
  if (found != seen_.end()) {
    return static_cast<int64_t>(found->second.mean + deviations * found->second.deviation);
  }
  const int64_t forward = forward_.at(stage);
  if (forward == 0) return kNever;
  const double scale = rows_ == 0 ? 1 : static_cast<double>(rows) / static_cast<double>(rows_);
  return static_cast<int64_t>(static_cast<double>(forward) * std::max(1.0, scale));
}

int64_t InferenceCosts::Expected(StageIndex stage, int64_t rows) const {
  absl::MutexLock lock(&mu_);
  return MeanLocked(stage.value(), rows, 1);
}

int64_t InferenceCosts::MinToEnd(StageIndex stage, int64_t rows, int behind) const {
  absl::MutexLock lock(&mu_);
  int64_t sum = 0;
  const int last = static_cast<int>(forward_.size()) - 1;
  for (int s = stage.value(); s <= last; ++s) {
    const int64_t mean = MeanLocked(s, rows, 0);
    if (mean == kNever) return 0;
    sum += s == last ? mean * (1 + behind) : mean;
  }
  return sum;
}

int64_t InferenceCosts::Work(const std::vector<int64_t>& rows) const {
  absl::MutexLock lock(&mu_);
  int64_t sum = 0;
  for (int s = 0; s < static_cast<int>(forward_.size()); ++s) {
    for (const int64_t of_micro_batch : rows) {
      const int64_t mean = MeanLocked(s, of_micro_batch, 0);
      if (mean == kNever) return 0;
      sum += mean;
    }
  }
  return sum;
}

}  // namespace penstock
