#include "engine/schedule/lower_bound.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/schedule/generators.h"

namespace penstock {
namespace {

constexpr Ticks kUnit = kTicksPerUnit;

Ticks Bound(const ScheduleRequest& request, ScheduleCosts costs, RecomputeMode mode = RecomputeMode::kNever) {
  costs.stages.resize(request.lanes * request.chunks);
  return LowerBound(request, costs, mode);
}

TEST(LowerBoundTest, IsTheSentenceOfTheNotesForSplitBackwards) {
  // max over r of the forwards and hops before r, plus m(F + I + W) of r.
  ScheduleCosts costs;
  costs.hop = 5;
  costs.stages = {{.forward = 10, .input_gradient = 20, .weight_gradient = 30},
                  {.forward = 11, .input_gradient = 21, .weight_gradient = 31},
                  {.forward = 9, .input_gradient = 19, .weight_gradient = 29}};
  EXPECT_EQ(LowerBound({.kind = "zb-h1", .lanes = 3, .micro_batches = 7}, costs), 10 + 5 + 7 * (11 + 21 + 31));
  costs.stages[2].weight_gradient = 40;
  EXPECT_EQ(LowerBound({.kind = "zb-h1", .lanes = 3, .micro_batches = 7}, costs), 10 + 5 + 11 + 5 + 7 * (9 + 19 + 40));
}

TEST(LowerBoundTest, AWholeBackwardHasToTravelBack) {
  EXPECT_EQ(Bound({.kind = "1f1b", .lanes = 4, .micro_batches = 8}, {}), 33 * kUnit);
  EXPECT_EQ(Bound({.kind = "zb-h1", .lanes = 4, .micro_batches = 8}, {}), 27 * kUnit);
  EXPECT_EQ(Bound({.kind = "1f1b", .lanes = 4, .micro_batches = 8}, {.stages = {}, .hop = 100}), 33 * kUnit + 6 * 100);
}

TEST(LowerBoundTest, ALinkIsPartOfTheWay) {
  const ScheduleRequest request = {.kind = "1f1b", .lanes = 4, .micro_batches = 8};
  ScheduleCosts costs;
  costs.edges[{1, 2}] = {.transfer = 70, .latency = 30};
  EXPECT_EQ(Bound(request, costs), 33 * kUnit + 2 * 100);
  costs.edges[{0, 2}] = {.transfer = 1000};  // of skips, which others may wait for less long
  EXPECT_EQ(Bound(request, costs), 33 * kUnit + 2 * 100);
}

TEST(LowerBoundTest, ForwardsEndAtTheLastStage) {
  EXPECT_EQ(Bound({.kind = "forward-only", .lanes = 4, .micro_batches = 8}, {}), 11 * kUnit);
  EXPECT_EQ(Bound({.kind = "forward-only", .lanes = 4, .micro_batches = 1}, {.stages = {}, .hop = 10}), 4 * kUnit + 30);
}

TEST(LowerBoundTest, OneMicroBatchGoesThereAndBack) {
  EXPECT_EQ(Bound({.kind = "gpipe", .lanes = 4, .micro_batches = 1}, {}), 12 * kUnit);
  EXPECT_EQ(Bound({.kind = "zbv", .lanes = 4, .micro_batches = 1, .chunks = 2}, {}), 17 * kUnit);  // 8 F, 8 I, one W
  // The turn of the V costs no hop.
  EXPECT_EQ(Bound({.kind = "zbv", .lanes = 4, .micro_batches = 1, .chunks = 2}, {.stages = {}, .hop = 1}),
            17 * kUnit + 12);
  EXPECT_EQ(Bound({.kind = "interleaved-zb", .lanes = 4, .micro_batches = 1, .chunks = 2}, {.stages = {}, .hop = 1}),
            17 * kUnit + 14);
  EXPECT_EQ(Bound({.kind = "1f1b", .lanes = 1, .micro_batches = 1}, {}), 3 * kUnit);
}

TEST(LowerBoundTest, AFusedBackwardCountsAtItsOwnCost) {
  const ScheduleCosts costs{.stages = {{.forward = 10, .input_gradient = 20, .weight_gradient = 30, .backward = 40}}};
  EXPECT_EQ(LowerBound({.kind = "gpipe", .lanes = 1, .micro_batches = 3}, costs), 3 * 50);
  EXPECT_EQ(LowerBound({.kind = "zb-h1", .lanes = 1, .micro_batches = 3}, costs), 3 * 50);  // it may fuse
}

TEST(LowerBoundTest, RecomputationCountsWhereItIsCertain) {
  const ScheduleRequest request{.kind = "gpipe", .lanes = 4, .micro_batches = 8};
  EXPECT_EQ(Bound(request, {}, RecomputeMode::kAlways), 41 * kUnit);
  EXPECT_EQ(Bound(request, {}, RecomputeMode::kExceptLast), 40 * kUnit);
  EXPECT_EQ(Bound(request, {}, RecomputeMode::kSkipAdjacent), 33 * kUnit);
}

}  // namespace
}  // namespace penstock
