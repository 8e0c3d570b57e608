// What the ancestors (torchgpipe and its forks) promise of schedules, on action lists. The names begin with the row.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/schedule/build.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* kTrainingKinds[] = {"gpipe", "1f1b"};

Schedule Built(const BuildRequest& request) {
  auto lists = BuildSchedule(request);
  EXPECT_TRUE(lists.ok()) << lists.status();
  return lists.ok() ? *std::move(lists) : Schedule();
}

// The micro-batches of the actions of that kind on one lane, in list order.
std::vector<int> MicroBatchesOf(const std::vector<Action>& list, ActionKind kind) {
  std::vector<int> found;
  for (const Action& action : list) {
    if (action.kind == kind) found.push_back(action.micro_batch);
  }
  return found;
}

std::vector<int> UpTo(int count) {
  std::vector<int> all(count);
  for (int i = 0; i < count; ++i) all[i] = i;
  return all;
}

int PositionOf(const std::vector<Action>& list, const Action& action) {
  return static_cast<int>(std::find(list.begin(), list.end(), action) - list.begin());
}

TEST(AncestorScheduleTest, BackwardsRunOneAtATimeInAscendingOrder) {
  for (const char* kind : kTrainingKinds) {
    for (int lanes = 1; lanes <= 5; ++lanes) {
      const Schedule lists = Built({.kind = kind, .lanes = lanes, .micro_batches = 6});
      for (const auto& list : lists.lanes) EXPECT_EQ(MicroBatchesOf(list, ActionKind::kBackward), UpTo(6)) << kind;
    }
  }
}

// Fill-drain holds every micro-batch; 1F1B holds what the pipeline's depth asks for, however many there are.
TEST(AncestorScheduleTest, ActivationMemoryGrowsWithMicroBatchesOnlyInFillDrain) {
  for (const int micro_batches : {4, 8, 64, 512}) {
    const PeakActivations fill_drain = ComputePeaks(FillDrain(4, micro_batches));
    EXPECT_THAT(fill_drain.full, ElementsAre(micro_batches, micro_batches, micro_batches, micro_batches));
    EXPECT_THAT(ComputePeaks(OneForwardOneBackward(4, micro_batches)).full, ElementsAre(4, 3, 2, 1));
  }
}

// The ancestors' clock ends when its slowest stage has ended. Here a fast stage runs ahead of a slow one.
TEST(AncestorScheduleTest, NoLockstep) {
  ScheduleCosts costs{.stages = std::vector<StageCosts>(2)};
  costs.stages[1].forward = 10 * kTicksPerUnit;
  for (const Schedule& schedule : {FillDrain(2, 3), ForwardOnly(2, 3)}) {
    const auto simulation = Simulate(schedule, costs);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(simulation->lanes[0][i].start, i * kTicksPerUnit);
      EXPECT_EQ(simulation->lanes[1][i].start, (1 + 10 * i) * kTicksPerUnit);
    }
  }
}

// "ij" is micro-batch i on stage j. Stage 1 is slow in the second run; the order of starts stays the same.
TEST(AncestorScheduleTest, PipelineForwardLockstep) {
  for (const Ticks slow : {kTicksPerUnit, 100 * kTicksPerUnit}) {
    ScheduleCosts costs{.stages = std::vector<StageCosts>(2)};
    costs.stages[1].forward = slow;
    const auto simulation = Simulate(FillDrain(2, 3), costs);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    std::vector<std::pair<Ticks, std::string>> starts;
    for (const auto& list : simulation->lanes) {
      for (const auto& [action, start, end] : list) {
        if (action.kind != ActionKind::kForward) continue;
        starts.emplace_back(start, absl::StrCat(action.micro_batch, action.stage));
      }
    }
    std::stable_sort(starts.begin(), starts.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> order;
    for (const auto& [start, pair] : starts) order.push_back(pair);
    EXPECT_THAT(order, ElementsAre("00", "10", "01", "20", "11", "21"));
  }
}

TEST(AncestorCheckpointTest, TwoMicroBatchesHaveTwoOneOrNoCheckpoint) {
  const auto recomputations = [](const char* kind, RecomputeMode mode) {
    std::vector<size_t> per_stage;
    for (const auto& list : Built({.kind = kind, .lanes = 3, .micro_batches = 2, .recompute = mode}).lanes) {
      per_stage.push_back(MicroBatchesOf(list, ActionKind::kRecompute).size());
    }
    return per_stage;
  };
  for (const char* kind : kTrainingKinds) {
    EXPECT_THAT(recomputations(kind, RecomputeMode::kAlways), ElementsAre(2, 2, 2));
    EXPECT_THAT(recomputations(kind, RecomputeMode::kExceptLast), ElementsAre(1, 1, 1));
    EXPECT_THAT(recomputations(kind, RecomputeMode::kNever), ElementsAre(0, 0, 0));
  }
}

// Micro-batch i is recomputed if and only if i < stop, on every stage; stop comes from the real number m.
TEST(AncestorCheckpointTest, StopIsOfTheRealMicroBatches) {
  const auto recomputed = [](const BuildRequest& request) {
    std::vector<std::vector<int>> per_stage;
    for (const auto& list : Built(request).lanes) per_stage.push_back(MicroBatchesOf(list, ActionKind::kRecompute));
    return per_stage;
  };
  for (const char* kind : kTrainingKinds) {
    for (int m = 1; m <= 6; ++m) {
      BuildRequest request{.kind = kind, .lanes = 3, .micro_batches = m, .recompute = RecomputeMode::kAlways};
      EXPECT_THAT(recomputed(request), Each(UpTo(m)));
      request.recompute = RecomputeMode::kExceptLast;
      EXPECT_THAT(recomputed(request), Each(UpTo(m - 1)));
      request.recompute = RecomputeMode::kNever;
      EXPECT_THAT(recomputed(request), Each(IsEmpty()));
      request.purpose = SchedulePurpose::kForwardOnly;
      request.recompute = RecomputeMode::kAlways;
      EXPECT_THAT(recomputed(request), Each(IsEmpty()));
    }
  }
}

// R needs the forward only, so it stands before every wait for a gradient: a lane that would be idle recomputes.
TEST(AncestorCheckpointTest, RecomputationRunsWhileTheGradientIsOnItsWay) {
  const std::vector<SkipEdge> skips = {{0, 2}, {1, 3}};
  for (const char* kind : kTrainingKinds) {
    const Schedule lists =
        Built({.kind = kind, .lanes = 4, .micro_batches = 5, .recompute = RecomputeMode::kAlways, .skips = skips});
    ASSERT_EQ(lists.lanes.size(), 4u);
    for (int stage = 0; stage < 4; ++stage) {
      const auto& list = lists.lanes[stage];
      int waits = 0;
      for (const Action& action : list) {
        if (action.kind != ActionKind::kReceiveBackward) continue;
        ++waits;
        EXPECT_LT(PositionOf(list, {ActionKind::kRecompute, stage, action.micro_batch}), PositionOf(list, action));
      }
      EXPECT_EQ(waits, 5 * ((stage < 3 ? 1 : 0) + (stage < 2 ? 1 : 0)));
    }
  }
  // One micro-batch, two stages: 0R0 runs beside 1F0 and costs no time; only 1R0 does.
  const ScheduleCosts costs{.stages = std::vector<StageCosts>(2)};
  BuildRequest request{.kind = "gpipe", .lanes = 2, .micro_batches = 1, .recompute = RecomputeMode::kAlways};
  const auto simulation = Simulate(Built(request), costs);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_EQ(simulation->makespan, 7 * kTicksPerUnit);
  request.recompute = RecomputeMode::kNever;
  EXPECT_EQ(Simulate(Built(request), costs)->makespan, 6 * kTicksPerUnit);
}

// The ancestors' two lanes, a then b, are micro-batches 0 and 1, in ascending order here.
TEST(AncestorCheckpointTest, AtMostOneRecomputedGraphPerStage) {
  const Schedule two = Built({.kind = "gpipe",
                              .purpose = SchedulePurpose::kContribution,
                              .lanes = 1,
                              .micro_batches = 2,
                              .recompute = RecomputeMode::kAlways});
  EXPECT_EQ(ToCsv(two), "0F0,0F1,0R0,0B0,0R1,0B1\n");
  for (const char* kind : kTrainingKinds) {
    for (int lanes = 1; lanes <= 4; ++lanes) {
      const Schedule lists =
          Built({.kind = kind, .lanes = lanes, .micro_batches = 6, .recompute = RecomputeMode::kAlways});
      for (const auto& list : lists.lanes) {
        std::vector<int> order;  // of R and B
        int alive = 0;
        for (const Action& action : list) {
          if (action.kind == ActionKind::kRecompute) ++alive;
          if (action.kind == ActionKind::kBackward) --alive;
          EXPECT_GE(alive, 0);
          EXPECT_LE(alive, 1);
          if (action.kind == ActionKind::kRecompute || action.kind == ActionKind::kBackward) {
            order.push_back(action.micro_batch);
          }
        }
        EXPECT_THAT(order, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5));
      }
    }
  }
}

}  // namespace
}  // namespace penstock
