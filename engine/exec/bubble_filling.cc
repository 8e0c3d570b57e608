#include "engine/exec/bubble_filling.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/plan/planner.h"

namespace penstock {
namespace {

constexpr int64_t kLeastMaxWait = 100'000'000;

int64_t MaxWait(const BubbleFillingSpec& spec, const Plan& plan) {
  if (spec.max_wait_seconds > 0) return static_cast<int64_t>(spec.max_wait_seconds * 1e9);
  return std::max(kLeastMaxWait, static_cast<int64_t>(plan.makespan_seconds * 4e9));
}

std::vector<int64_t> Forwards(const Plan& plan) {
  std::vector<int64_t> nanos;
  for (const StageCosts& costs : CostsOf(plan).stages) nanos.push_back(costs.forward);
  return nanos;
}

}  // namespace

BubbleFilling::BubbleFilling(const BubbleFillingSpec& spec, const Plan& plan, Foresight foresight)
    : spec_(spec),
      foresight_(foresight),
      training_costs_(CostsOf(plan)),
      inference_costs_(Forwards(plan), plan.micro_batch_rows),
      turns_(spec.inference_share, MaxWait(spec, plan)) {}

std::shared_ptr<RunProgress> BubbleFilling::BeginRun(std::shared_ptr<const Schedule> schedule, int64_t rows,
                                                     bool barrier, int64_t now) {
  rhythm_.Began(now);
  if (!foresight_.gaps) return nullptr;
  auto progress = std::make_shared<RunProgress>(
      schedule, now, [this, schedule, rows, barrier] { return training_costs_.Forecast(schedule, rows, barrier); });
  absl::MutexLock lock(&mu_);
  open_ = progress;
  return progress;
}

void BubbleFilling::EndRun(const RunProgress* progress, int64_t rows, int64_t now) {
  rhythm_.Ended(now);
  if (progress != nullptr) training_costs_.Learn(rows, progress->Totals());
  absl::MutexLock lock(&mu_);
  open_ = nullptr;
}

int64_t BubbleFilling::WeightsChange(int64_t now) const {
  std::shared_ptr<RunProgress> open;
  {
    absl::MutexLock lock(&mu_);
    open = open_;
  }
  return open == nullptr ? kNever : open->ExpectedWeightsChange(now);
}

}  // namespace penstock
