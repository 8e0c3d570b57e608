// What lanes hold at most while they run, against what the lists promise.

#include "tests/unit/exec/held_activations.h"

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner.h"
#include "engine/schedule/peak.h"
#include "tests/unit/exec/function_layers.h"
#include "tests/unit/exec/schedule_cases.h"

namespace penstock::testing {

void PrintTo(const HeldPeak& peak, std::ostream* out) { *out << peak.full << " full, " << peak.stashed << " stashed"; }

namespace {

ContributionRequest MiniBatch(int micro_batches) {
  ContributionRequest request =
      Contribution(at::randn({2 * micro_batches, kCaseWidth}), at::randn({2 * micro_batches, kCaseWidth}));
  request.micro_batches = micro_batches;
  return request;
}

std::vector<HeldPeak> Promised(const Pipeline& pipeline, SchedulePurpose purpose, int micro_batches) {
  BuildRequest request = BuildRequestOf(pipeline.plan());
  request.purpose = purpose;
  request.micro_batches = micro_batches;
  const auto lists = BuildSchedule(request);
  EXPECT_TRUE(lists.ok()) << lists.status();
  if (!lists.ok()) return {};
  const PeakActivations peaks = ComputePeaks(*lists);
  std::vector<HeldPeak> promised;
  for (size_t lane = 0; lane < peaks.full.size(); ++lane) promised.push_back({peaks.full[lane], peaks.stashed[lane]});
  return promised;
}

TEST(HeldActivations, EveryKindAndModeHoldsAtMostWhatItsListsSay) {
  PipeWorld world;
  HeldActivations held;
  world.watch_passes = held.Watcher();
  int checked = 0;
  for (const ScheduleCase& one : ScheduleCases(4, 3)) {
    for (const CheckpointMode mode : kAllModes) {
      auto pipeline = world.Make(SpecOf(one, one.min_micro_batches, mode));
      for (const int more : {0, 2, 5}) {
        const int m = one.min_micro_batches + more;
        SCOPED_TRACE(absl::StrCat(Describe(one), ", ", std::string(CheckpointModeName(mode)), ", m = ", m));
        held.Begin(LaneCount(pipeline->plan()));
        const auto outcome = pipeline->TrainStep(MiniBatch(m), {});
        ASSERT_TRUE(outcome.ok()) << outcome.status();
        EXPECT_EQ(held.peaks(), Promised(*pipeline, SchedulePurpose::kTrainingStep, m));
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 500);
}

TEST(HeldActivations, ABackwardApartBeginsWithWhatItsForwardHasKept) {
  PipeWorld world;
  HeldActivations held;
  world.watch_passes = held.Watcher();
  for (const ScheduleCase& one : ScheduleCases(2, 2)) {
    for (const CheckpointMode mode : kAllModes) {
      SCOPED_TRACE(absl::StrCat(Describe(one), ", ", std::string(CheckpointModeName(mode))));
      constexpr int kMicroBatches = 4;
      auto pipeline = world.Make(SpecOf(one, kMicroBatches, mode));
      ForwardRequest request = Ask(MiniBatch(kMicroBatches).inputs);
      const auto forward = pipeline->Forward(request);
      ASSERT_TRUE(forward.ok()) << forward.status();
      held.Begin(LaneCount(pipeline->plan()));
      const auto outcome = pipeline->Backward(
          forward->graph, {{forward->outputs[0].name, at::randn({2 * kMicroBatches, kCaseWidth})}}, false);
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_EQ(held.peaks(), Promised(*pipeline, SchedulePurpose::kBackwardOnly, kMicroBatches));
    }
  }
}

}  // namespace
}  // namespace penstock::testing
