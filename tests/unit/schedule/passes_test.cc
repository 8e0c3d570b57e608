// The passes that turn compute actions into what a stage worker interprets, and build.h, which runs them all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/fuse_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/optimizer_pass.h"
#include "engine/schedule/recompute_pass.h"
#include "tests/support/recompute_late.h"

namespace penstock {
namespace {

TEST(RecomputePassTest, AlwaysPutsRDirectlyBeforeEveryBackward) {
  EXPECT_EQ(ToCsv(InsertRecompute(FillDrain(1, 2), RecomputeMode::kAlways)), "0F0,0F1,0R0,0B0,0R1,0B1\n");
}

TEST(RecomputePassTest, ExceptLastSparesTheLastRealMicroBatch) {
  EXPECT_EQ(ToCsv(InsertRecompute(FillDrain(1, 2), RecomputeMode::kExceptLast)), "0F0,0F1,0R0,0B0,0B1\n");
  EXPECT_EQ(ToCsv(InsertRecompute(FillDrain(1, 1), RecomputeMode::kExceptLast)), "0F0,0B0\n");
}

TEST(RecomputePassTest, NeverChangesNothing) {
  EXPECT_EQ(InsertRecompute(FillDrain(2, 3), RecomputeMode::kNever), FillDrain(2, 3));
}

TEST(RecomputePassTest, SkipAdjacentSparesABackwardRightAfterItsForward) {
  EXPECT_EQ(ToCsv(InsertRecompute(OneForwardOneBackward(2, 2), RecomputeMode::kSkipAdjacent)),
            "0F0,0F1,0R0,0B0,0R1,0B1\n"
            "1F0,1B0,1F1,1B1\n");
}

TEST(RecomputePassTest, StandsBeforeASplitBackwardToo) {
  const auto split = ParseCsv("0F0,0I0,0W0\n");
  EXPECT_EQ(ToCsv(InsertRecompute(*split, RecomputeMode::kAlways)), "0F0,0R0,0I0,0W0\n");
}

TEST(RecomputePassTest, InferenceRecomputesNothing) {
  EXPECT_EQ(InsertRecompute(ForwardOnly(2, 3), RecomputeMode::kAlways), ForwardOnly(2, 3));
}

TEST(RecomputePassTest, ModesReadAndPrint) {
  for (const RecomputeMode mode :
       {RecomputeMode::kNever, RecomputeMode::kExceptLast, RecomputeMode::kAlways, RecomputeMode::kSkipAdjacent}) {
    EXPECT_EQ(*ParseRecomputeMode(ToString(mode)), mode);
  }
  EXPECT_EQ(*ParseRecomputeMode("except-last"), RecomputeMode::kExceptLast);
  EXPECT_EQ(*ParseRecomputeMode("skip adjacent"), RecomputeMode::kSkipAdjacent);
  const auto unknown = ParseRecomputeMode("sometimes");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(ValuesOf(unknown.status()).at("field"), "recompute");
  EXPECT_EQ(ValuesOf(unknown.status()).at("value"), "sometimes");
}

TEST(RecomputePassTest, LateWaitsForTheGradient) {
  const Schedule early = InsertCommunication(InsertRecompute(FillDrain(2, 1), RecomputeMode::kAlways));
  EXPECT_EQ(ToCsv(testing::RecomputeLate(early)),
            "0F0,0SEND_F0,0RECV_B0,0R0,0B0\n"
            "1RECV_F0,1F0,1R0,1B0,1SEND_B0\n");
  const Schedule skip = InsertCommunication(InsertRecompute(FillDrain(3, 1), RecomputeMode::kAlways), {{0, 2}});
  EXPECT_EQ(ToCsv(testing::RecomputeLate(skip)).substr(0, 52), "0F0,0SEND_F0,0SEND_F0@2,0RECV_B0,0RECV_B0@2,0R0,0B0\n");
}

TEST(FusePassTest, MakesOneOfAnInputGradientAndItsOwnWeightGradientBesideIt) {
  const auto fused = [](std::string_view csv, FuseMode mode) { return ToCsv(FuseBackward(*ParseCsv(csv), mode)); };
  EXPECT_EQ(fused("0F0,0I0,0W0\n", FuseMode::kFree), "0F0,0B0\n");
  EXPECT_EQ(fused("0F0,0F1,0I0,0I1,0W0,0W1\n", FuseMode::kAll), "0F0,0F1,0I0,0I1,0W0,0W1\n");
  EXPECT_EQ(fused("0F0,1F0,1I0,0I0,1W0,0W0\n", FuseMode::kAll), "0F0,1F0,1I0,0I0,1W0,0W0\n");
  EXPECT_EQ(fused("0F0,0I0,0W0\n1F0,1I0,1W0\n", FuseMode::kAll), "0F0,0B0\n1F0,1B0\n");
}

TEST(FusePassTest, IsFreeWhereNoOtherLaneWaits) {
  const auto free = [](std::string_view csv) { return ToCsv(FuseBackward(*ParseCsv(csv), FuseMode::kFree)); };
  EXPECT_EQ(free("0F0,0I0,0W0\n1F0,1I0,1W0\n"), "0F0,0B0\n1F0,1I0,1W0\n");
  // In a V, the stage behind the turn hands its gradient to its own lane.
  EXPECT_EQ(free("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n"), "0F0,3F0,3I0,3W0,0B0\n1F0,2F0,2B0,1I0,1W0\n");
}

TEST(FusePassTest, PaysWhereTheSimulatorSaysSo) {
  const Schedule split = ZeroBubbleV(4, 8);
  ScheduleCosts costs{.stages = std::vector<StageCosts>(8)};
  const Schedule free = FuseBackward(split, FuseMode::kFree);
  EXPECT_EQ(*FuseWhereItPays(split, {}), free);
  EXPECT_EQ(*FuseWhereItPays(split, costs), free);
  for (StageCosts& stage : costs.stages) stage.backward = 2 * kTicksPerUnit;  // no gain: the V needs its split
  EXPECT_EQ(*FuseWhereItPays(split, costs), free);
  for (StageCosts& stage : costs.stages) stage.backward = kTicksPerUnit;  // a split costs twice as much
  EXPECT_EQ(*FuseWhereItPays(split, costs), FuseBackward(split, FuseMode::kAll));
}

TEST(FusePassTest, PaysWhereItCostsNothing) {
  // Lane 0's backward ends when lane 1's split one does, and so it does when that is fused.
  const ScheduleCosts costs{.stages = std::vector<StageCosts>(2, {.backward = kTicksPerUnit})};
  EXPECT_EQ(ToCsv(*FuseWhereItPays(LaggingWeightGradients(2, 1, 1), costs)), "0F0,0B0\n1F0,1B0\n");
}

TEST(CommPassTest, SurroundsComputeWithItsReceivesAndSends) {
  EXPECT_EQ(ToCsv(InsertCommunication(FillDrain(3, 1))),
            "0F0,0SEND_F0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n"
            "2RECV_F0,2F0,2B0,2SEND_B0\n");
}

TEST(CommPassTest, RecomputationStandsBeforeTheWaitForTheGradient) {
  const Schedule schedule = InsertCommunication(InsertRecompute(FillDrain(2, 1), RecomputeMode::kAlways));
  EXPECT_EQ(ToCsv(schedule),
            "0F0,0SEND_F0,0R0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,1R0,1B0,1SEND_B0\n");
}

TEST(CommPassTest, NothingMovesBetweenStagesOfOneRank) {
  EXPECT_EQ(InsertCommunication(FillDrain(1, 3)), FillDrain(1, 3));
  // A V: stages 0 and 3 on lane 0, 1 and 2 on lane 1.
  const auto folded = ParseCsv("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n");
  EXPECT_EQ(ToCsv(InsertCommunication(*folded)),
            "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,0RECV_B0,0I0,0W0\n"
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2W0,1I0,1SEND_B0,1W0\n");
}

TEST(CommPassTest, MessagesNumberAsTheTableSays) {
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (const int lanes : {1, 2, 5}) {
      const Schedule schedule = InsertCommunication(*Generate({kind, lanes, 7}));
      int sends = 0, receives = 0;
      for (const auto& list : schedule.lanes) {
        for (const Action& action : list) {
          sends += IsSend(action.kind);
          receives += IsReceive(action.kind);
        }
      }
      EXPECT_EQ(sends, 2 * (lanes - 1) * 7);
      EXPECT_EQ(receives, sends);
    }
  }
}

TEST(OptimizerPassTest, EndsEachListWithTheStepsOfItsStages) {
  EXPECT_EQ(ToCsv(AppendOptimizer(FillDrain(2, 1), {0, 1})), "0F0,0B0,0OPT\n1F0,1B0,1OPT\n");
  EXPECT_EQ(ToCsv(AppendOptimizer(*ParseCsv("0F0,2F0\n1F0\n"), {0, 1, 0})), "0F0,2F0,0OPT,2OPT\n1F0,1OPT\n");
  EXPECT_EQ(ToCsv(AppendOptimizer(NoMicroBatches(2), {0, 1})), "0OPT\n1OPT\n");
}

TEST(BuildTest, EachPurposeHoldsWhatItNeeds) {
  const auto csv = [](BuildRequest request) {
    request.lanes = 2;
    request.micro_batches = 1;
    const auto schedule = BuildSchedule(request);
    return schedule.ok() ? ToCsv(*schedule) : schedule.status().ToString();
  };
  EXPECT_EQ(csv({.kind = "gpipe"}),
            "0F0,0SEND_F0,0RECV_B0,0B0,0OPT\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1OPT\n");
  EXPECT_EQ(csv({.kind = "gpipe", .purpose = SchedulePurpose::kContribution}),
            "0F0,0SEND_F0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,1B0,1SEND_B0\n");
  EXPECT_EQ(csv({.kind = "gpipe", .purpose = SchedulePurpose::kForwardOnly, .recompute = RecomputeMode::kAlways}),
            "0F0,0SEND_F0\n"
            "1RECV_F0,1F0\n");
  EXPECT_EQ(csv({.kind = "gpipe", .purpose = SchedulePurpose::kBackwardOnly, .recompute = RecomputeMode::kAlways}),
            "0R0,0RECV_B0,0B0\n"
            "1R0,1B0,1SEND_B0\n");
  EXPECT_EQ(csv({.kind = "gpipe", .purpose = SchedulePurpose::kOptimizerOnly}), "0OPT\n1OPT\n");
}

TEST(BuildTest, PlacementFollowsTheKindForEveryPurpose) {
  const auto csv = [](SchedulePurpose purpose, RecomputeMode recompute = RecomputeMode::kNever) {
    const auto schedule = BuildSchedule({.kind = "dualpipe-v",
                                         .purpose = purpose,
                                         .lanes = 2,
                                         .chunks = 2,
                                         .micro_batches = 1,
                                         .recompute = recompute});
    return schedule.ok() ? ToCsv(*schedule) : std::string(schedule.status().message());
  };
  // The rule needs four micro-batches; runs without a forward and a backward take any number.
  EXPECT_EQ(csv(SchedulePurpose::kContribution),
            "micro_batches: must be at least 4 for kind dualpipe-v with 2 lanes, got 1");
  EXPECT_EQ(csv(SchedulePurpose::kForwardOnly), "0F0,0SEND_F0,3RECV_F0,3F0\n1RECV_F0,1F0,2F0,2SEND_F0\n");
  EXPECT_EQ(csv(SchedulePurpose::kBackwardOnly, RecomputeMode::kAlways),
            "3R0,3B0,3SEND_B0,0R0,0RECV_B0,0B0\n2R0,2RECV_B0,2B0,1R0,1B0,1SEND_B0\n");
  EXPECT_EQ(csv(SchedulePurpose::kOptimizerOnly), "0OPT,3OPT\n1OPT,2OPT\n");
}

TEST(BuildTest, FusesWhatIsNotWorthSplittingAtItsCosts) {
  BuildRequest request{.kind = "zbv", .lanes = 2, .chunks = 2, .micro_batches = 4};
  const auto halves = [&] {
    const std::string csv = ToCsv(*BuildSchedule(request));
    return std::count(csv.begin(), csv.end(), 'I');
  };
  EXPECT_EQ(halves(), 9);
  request.costs.stages.assign(4, {.backward = kTicksPerUnit});
  EXPECT_EQ(halves(), 3);  // those whose weight gradients stand apart
  request.costs.stages.pop_back();
  EXPECT_EQ(ValuesOf(BuildSchedule(request).status())["field"], "costs");
}

TEST(BuildTest, RefusesWhatCannotBeBuilt) {
  const auto field = [](const BuildRequest& request) {
    const auto schedule = BuildSchedule(request);
    return schedule.ok() ? "accepted" : ValuesOf(schedule.status())["field"];
  };
  EXPECT_EQ(field({.kind = "nonsense"}), "kind");
  EXPECT_EQ(field({.kind = "forward-only"}), "kind");
  EXPECT_EQ(field({.kind = "zbv"}), "chunks");
  EXPECT_EQ(field({.kind = "zbv", .purpose = SchedulePurpose::kForwardOnly}), "chunks");
  EXPECT_EQ(field({.kind = "1f1b", .purpose = SchedulePurpose::kOptimizerOnly, .chunks = 2}), "chunks");
  EXPECT_EQ(field({.kind = "forward-only", .purpose = SchedulePurpose::kBackwardOnly}), "kind");
  EXPECT_EQ(field({.kind = "lag"}), "lag");
  EXPECT_EQ(field({.kind = "auto", .live_limit = 0}), "live_limit");
  EXPECT_EQ(field({.kind = "dualpipe-v", .lanes = 2, .chunks = 2, .micro_batches = 3}), "micro_batches");
  EXPECT_EQ(field({.kind = "dualpipe-v", .lanes = 2, .chunks = 2, .micro_batches = 3, .planned_micro_batches = 4}),
            "accepted");
  EXPECT_EQ(field({.kind = "gpipe", .micro_batches = 0, .planned_micro_batches = 4}), "micro_batches");
  EXPECT_EQ(field({.kind = "gpipe", .lanes = 0}), "lanes");
  EXPECT_EQ(field({.kind = "gpipe", .micro_batches = 0}), "micro_batches");
  EXPECT_EQ(field({.kind = "gpipe", .purpose = SchedulePurpose::kOptimizerOnly, .micro_batches = 0}), "accepted");
}

}  // namespace
}  // namespace penstock
