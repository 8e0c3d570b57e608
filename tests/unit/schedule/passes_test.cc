// The passes that turn compute actions into what a stage worker interprets, and build.h, which runs them all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/optimizer_pass.h"
#include "engine/schedule/recompute_pass.h"

namespace penstock {
namespace {

TEST(RecomputePassTest, AlwaysPutsRDirectlyBeforeEveryBackward) {
  EXPECT_EQ(ToCsv(InsertRecompute(FillDrain(1, 2), RecomputeMode::kAlways)), "0F0,0F1,0R0,0B0,0R1,0B1\n");
}

TEST(RecomputePassTest, PIPE_33_DEF_1_ExceptLastSparesTheLastRealMicrobatch) {
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

TEST(RecomputePassTest, PIPE_27_CKPT_17_InferenceRecomputesNothing) {
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

TEST(CommPassTest, SCH_3_SurroundsComputeWithItsReceivesAndSends) {
  EXPECT_EQ(ToCsv(InsertCommunication(FillDrain(3, 1))),
            "0F0,0SEND_F0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n"
            "2RECV_F0,2F0,2B0,2SEND_B0\n");
}

TEST(CommPassTest, CKPT_1_RecomputationStandsBeforeTheWaitForTheGradient) {
  const Schedule schedule = InsertCommunication(InsertRecompute(FillDrain(2, 1), RecomputeMode::kAlways));
  EXPECT_EQ(ToCsv(schedule),
            "0F0,0SEND_F0,0R0,0RECV_B0,0B0\n"
            "1RECV_F0,1F0,1R0,1B0,1SEND_B0\n");
}

TEST(CommPassTest, NothingMovesBetweenStagesOfOneRank) {
  EXPECT_EQ(InsertCommunication(FillDrain(1, 3)), FillDrain(1, 3));
  // A V: stages 0 and 3 on rank 0, 1 and 2 on rank 1.
  const auto folded = ParseCsv("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n");
  EXPECT_EQ(ToCsv(InsertCommunication(*folded)),
            "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,0RECV_B0,0I0,0W0\n"
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2W0,1I0,1SEND_B0,1W0\n");
}

TEST(CommPassTest, MessagesNumberAsTheTableSays) {
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (const int ranks : {1, 2, 5}) {
      const Schedule schedule = InsertCommunication(*Generate({kind, ranks, 7}));
      int sends = 0, receives = 0;
      for (const auto& list : schedule.ranks) {
        for (const Action& action : list) {
          sends += IsSend(action.kind);
          receives += IsReceive(action.kind);
        }
      }
      EXPECT_EQ(sends, 2 * (ranks - 1) * 7);
      EXPECT_EQ(receives, sends);
    }
  }
}

TEST(OptimizerPassTest, EndsEachListWithTheStepsOfItsStages) {
  EXPECT_EQ(ToCsv(AppendOptimizer(FillDrain(2, 1), {0, 1})), "0F0,0B0,0OPT\n1F0,1B0,1OPT\n");
  EXPECT_EQ(ToCsv(AppendOptimizer(*ParseCsv("0F0,2F0\n1F0\n"), {0, 1, 0})), "0F0,2F0,0OPT,2OPT\n1F0,1OPT\n");
  EXPECT_EQ(ToCsv(AppendOptimizer(NoMicrobatches(2), {0, 1})), "0OPT\n1OPT\n");
}

TEST(BuildTest, EachPurposeHoldsWhatItNeeds) {
  const auto csv = [](BuildRequest request) {
    request.ranks = 2;
    request.microbatches = 1;
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

TEST(BuildTest, RefusesWhatCannotBeBuilt) {
  const auto field = [](const BuildRequest& request) {
    const auto schedule = BuildSchedule(request);
    return schedule.ok() ? "accepted" : ValuesOf(schedule.status())["field"];
  };
  EXPECT_EQ(field({.kind = "nonsense"}), "kind");
  EXPECT_EQ(field({.kind = "forward-only"}), "kind");
  EXPECT_EQ(field({.kind = "gpipe", .ranks = 0}), "ranks");
  EXPECT_EQ(field({.kind = "gpipe", .microbatches = 0}), "micro_batches");
  EXPECT_EQ(field({.kind = "gpipe", .purpose = SchedulePurpose::kOptimizerOnly, .microbatches = 0}), "accepted");
}

}  // namespace
}  // namespace penstock
