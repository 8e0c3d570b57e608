// Promises over all small sizes and random costs, with a fixed seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "engine/schedule/build.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

constexpr int kMostRanks = 8;
constexpr int kMostMicrobatches = 40;
constexpr RecomputeMode kModes[] = {RecomputeMode::kNever, RecomputeMode::kExceptLast, RecomputeMode::kAlways,
                                    RecomputeMode::kSkipAdjacent};

// Calls visit(kind, ranks, micro-batches) for every kind and every small size.
template <typename Visit>
void ForEachCase(const Visit& visit) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      for (int microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
        SCOPED_TRACE(std::string(kind.name) + " P" + std::to_string(ranks) + " m" + std::to_string(microbatches));
        visit(kind, ranks, microbatches);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

StageCosts RandomCosts(std::mt19937* random) {
  std::uniform_int_distribution<Ticks> cost(0, 3 * kTicksPerUnit);
  return {.forward = cost(*random),
          .input_gradient = cost(*random),
          .weight_gradient = cost(*random),
          .recompute = cost(*random),
          .optimizer = cost(*random)};
}

ScheduleCosts RandomCosts(int stages, std::mt19937* random) {
  ScheduleCosts costs;
  for (int stage = 0; stage < stages; ++stage) costs.stages.push_back(RandomCosts(random));
  costs.hop = std::uniform_int_distribution<Ticks>(0, kTicksPerUnit)(*random);
  costs.optimizer_barrier = (*random)() % 2 == 0;
  return costs;
}

Ticks TotalCost(const StageCosts& costs, ActionKind kind) {
  if (kind == ActionKind::kForward) return costs.forward;
  if (kind == ActionKind::kBackward) return costs.input_gradient + costs.weight_gradient;
  if (kind == ActionKind::kRecompute) return costs.recompute;
  return kind == ActionKind::kOptimizer ? costs.optimizer : 0;
}

// Every training step verifies, also with one credit per edge, and simulates to its end: no rank overlaps, everything
// runs, all time is accounted for, and nothing beats the lower bound.
TEST(SchedulePropertyTest, TrainingStepsVerifyAndEnd) {
  std::mt19937 random(20'240'229);
  ForEachCase([&](const ScheduleKind& kind, int ranks, int microbatches) {
    if (!kind.trains) return;
    const RecomputeMode mode = kModes[random() % std::size(kModes)];
    const auto schedule = BuildSchedule(
        {.kind = std::string(kind.name), .ranks = ranks, .microbatches = microbatches, .recompute = mode});
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    ASSERT_TRUE(Verify(*schedule, {.credits = 1}).ok());
    const ScheduleCosts costs = RandomCosts(ranks, &random);
    const auto simulation = Simulate(*schedule, costs);
    ASSERT_TRUE(simulation.ok()) << simulation.status();

    Ticks before = 0;  // until the first activation can arrive
    for (int rank = 0; rank < ranks; ++rank) {
      const StageCosts& stage = costs.stages[rank];
      const RankTimes& times = simulation->times[rank];
      const Ticks work = stage.forward + stage.input_gradient + stage.weight_gradient;
      EXPECT_GE(simulation->makespan, before + microbatches * work);
      EXPECT_EQ(
          times.busy + times.fill + times.wait_activation + times.wait_gradient + times.wait_barrier + times.drain,
          simulation->makespan);
      Ticks busy = 0, clock = 0;
      for (size_t position = 0; position < schedule->ranks[rank].size(); ++position) {
        const TimedAction& timed = simulation->ranks[rank][position];
        EXPECT_EQ(timed.action, schedule->ranks[rank][position]);
        EXPECT_GE(timed.start, clock);
        EXPECT_EQ(timed.end - timed.start, TotalCost(stage, timed.action.kind));
        clock = timed.end;
        busy += timed.end - timed.start;
      }
      EXPECT_EQ(times.busy, busy);
      before += stage.forward + costs.hop;
    }
    EXPECT_LE(simulation->ideal, simulation->window);
    EXPECT_LE(simulation->window, simulation->makespan);
  });
}

// With equal stages and free links both training kinds take (m + P - 1)(F + B), inference (m + P - 1) F.
TEST(SchedulePropertyTest, EqualCostsMatchTheClosedForm) {
  std::mt19937 random(7);
  ForEachCase([&](const ScheduleKind& kind, int ranks, int microbatches) {
    const StageCosts stage = RandomCosts(&random);
    const auto simulation =
        Simulate(kind.generate(ranks, microbatches), {.stages = std::vector<StageCosts>(ranks, stage)});
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    const Ticks backward = kind.trains ? stage.input_gradient + stage.weight_gradient : 0;
    EXPECT_EQ(simulation->makespan, (microbatches + ranks - 1) * (stage.forward + backward));
    EXPECT_EQ(simulation->ideal, microbatches * (stage.forward + backward));
  });
}

TEST(SchedulePropertyTest, ASY_32_DEF_3_PeaksMatchTheFormula) {
  ForEachCase([&](const ScheduleKind& kind, int ranks, int microbatches) {
    const PeakActivations peaks = ComputePeaks(kind.generate(ranks, microbatches));
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t expected = 1;
      if (kind.name == "gpipe") expected = microbatches;
      if (kind.name == "1f1b") expected = std::min(microbatches, ranks - rank);
      EXPECT_EQ(peaks.full[rank], expected);
      EXPECT_EQ(peaks.stashed[rank], 0);
    }
  });
}

TEST(SchedulePropertyTest, CommunicationChangesNoTime) {
  std::mt19937 random(99);
  ForEachCase([&](const ScheduleKind& kind, int ranks, int microbatches) {
    const ScheduleCosts costs = RandomCosts(ranks, &random);
    const Schedule schedule = InsertRecompute(kind.generate(ranks, microbatches), kModes[random() % std::size(kModes)]);
    const auto compute = Simulate(schedule, costs);
    const auto complete = Simulate(InsertCommunication(schedule), costs);
    ASSERT_TRUE(compute.ok() && complete.ok());
    EXPECT_EQ(compute->makespan, complete->makespan);
    EXPECT_EQ(compute->window, complete->window);
    EXPECT_EQ(compute->peaks.full, complete->peaks.full);
  });
}

TEST(SchedulePropertyTest, PartsOfAStepVerify) {
  for (const SchedulePurpose purpose : {SchedulePurpose::kForwardOnly, SchedulePurpose::kBackwardOnly,
                                        SchedulePurpose::kOptimizerOnly, SchedulePurpose::kContribution}) {
    for (const RecomputeMode mode : kModes) {
      for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        const auto schedule = BuildSchedule(
            {.kind = "1f1b", .purpose = purpose, .ranks = ranks, .microbatches = 3 * ranks, .recompute = mode});
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        EXPECT_TRUE(Simulate(*schedule, {.stages = std::vector<StageCosts>(ranks)}).ok());
      }
    }
  }
}

}  // namespace
}  // namespace penstock
