#include "engine/exec/bubble_filling.h"

#include <utility>
#include <vector>

#include "engine/plan/planner.h"

namespace penstock {
namespace {

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
      turns_({.share = spec.inference_share,
              .max_wait_nanos = static_cast<int64_t>(spec.max_wait_seconds * 1e9),
              .between_steps = !spec.enabled}) {}

std::shared_ptr<RunProgress> BubbleFilling::BeginRun(std::shared_ptr<const Schedule> schedule, int64_t rows,
                                                     bool barrier, int64_t now) {
  rhythm_.Began(now);
  turns_.TrainingBegan(now);
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
