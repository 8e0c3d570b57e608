// Skip connections: which are accepted, where their messages stand, and how the verifier and the simulator see them.

#include "engine/schedule/skips.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr VerifyOptions kContribution = {.purpose = SchedulePurpose::kContribution};

// "invariant action@lane/position: cause", or "ok".
std::string Failure(const std::string& csv, const std::vector<SkipEdge>& skips,
                    const VerifyOptions& options = kContribution) {
  const auto schedule = ParseCsv(csv);
  if (!schedule.ok()) return std::string(schedule.status().message());
  const auto peaks = Verify(*schedule, options, skips);
  if (peaks.ok()) return "ok";
  const std::string message(peaks.status().message());
  auto values = ValuesOf(peaks.status());
  const size_t cause = message.find('\n') + 3;
  return values["invariant"] + " " + values["action"] + "@" + values["lane"] + "/" + values["position"] + ": " +
         message.substr(cause, message.find('\n', cause) - cause);
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return text.replace(text.find(from), from.size(), to);
}

// Three stages, one micro-batch, a skip past the middle one.
constexpr char kPastTheMiddle[] =
    "0F0,0SEND_F0,0SEND_F0@2,0RECV_B0,0RECV_B0@2,0B0\n"
    "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0\n"
    "2RECV_F0,2RECV_F0@0,2F0,2B0,2SEND_B0,2SEND_B0@0\n";

TEST(CheckSkipsTest, RefusesWhatIsNoEdgeByName) {
  EXPECT_TRUE(CheckSkips({}, 1, 1).ok());
  EXPECT_TRUE(CheckSkips({{1, 2}, {0, 2}, {0, 1}}, 3, 4).ok());
  for (const auto& [skips, value] :
       std::vector<std::pair<std::vector<SkipEdge>, std::string>>{{{{-1, 1}}, "-1->1"},
                                                                  {{{0, 1}, {1, 1}}, "1->1"},
                                                                  {{{2, 0}}, "2->0"},
                                                                  {{{0, 3}}, "0->3"},
                                                                  {{{0, 2}, {0, 1}, {0, 2}}, "0->2"}}) {
    const absl::Status status = CheckSkips(skips, 3, 4);
    EXPECT_EQ(ReasonOf(status), "FIELD_INVALID") << value;
    EXPECT_EQ(ValuesOf(status)["field"], "skips");
    EXPECT_EQ(ValuesOf(status)["value"], value);
    const auto built = BuildSchedule({.kind = "gpipe", .lanes = 3, .micro_batches = 4, .skips = skips});
    EXPECT_EQ(built.status(), status);
    EXPECT_EQ(Verify(FillDrain(3, 4), {.with_communication = false}, skips).status(), status);
  }
}

TEST(CheckSkipsTest, BoundsTheNumberOfMessages) {
  std::vector<SkipEdge> skips;
  for (int from = 0; from < 17; ++from) skips.push_back({from, 17});
  EXPECT_TRUE(CheckSkips(skips, 18, kMaxCells / 17).ok());
  EXPECT_EQ(ValuesOf(CheckSkips(skips, 18, kMaxMicroBatches))["value"], "17");
}

TEST(SkipCommPassTest, SendsStraightPastTheStagesBetween) {
  EXPECT_EQ(ToCsv(InsertCommunication(FillDrain(3, 1), {{0, 2}})), kPastTheMiddle);
}

TEST(SkipCommPassTest, TheNeighbourComesFirstThenPeersAscending) {
  EXPECT_EQ(ToCsv(InsertCommunication(FillDrain(3, 1), {{1, 2}, {0, 2}, {0, 1}})),
            "0F0,0SEND_F0,0SEND_F0@1,0SEND_F0@2,0RECV_B0,0RECV_B0@1,0RECV_B0@2,0B0\n"
            "1RECV_F0,1RECV_F0@0,1F0,1SEND_F0,1SEND_F0@2,1RECV_B0,1RECV_B0@2,1B0,1SEND_B0,1SEND_B0@0\n"
            "2RECV_F0,2RECV_F0@0,2RECV_F0@1,2F0,2B0,2SEND_B0,2SEND_B0@0,2SEND_B0@1\n");
}

TEST(SkipCommPassTest, InferenceSendsForwardOnly) {
  EXPECT_EQ(ToCsv(InsertCommunication(ForwardOnly(3, 1), {{0, 2}})),
            "0F0,0SEND_F0,0SEND_F0@2\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2RECV_F0@0,2F0\n");
  EXPECT_EQ(ToCsv(InsertCommunication(BackwardOnly(3, 1), {{0, 2}})),
            "0RECV_B0,0RECV_B0@2,0B0\n1RECV_B0,1B0,1SEND_B0\n2B0,2SEND_B0,2SEND_B0@0\n");
}

TEST(SkipCommPassTest, StagesOfOneLaneNeedNoMessage) {
  // A V: stages 0 and 3 on lane 0, 1 and 2 on lane 1; the split backward sends after I.
  const auto folded = ParseCsv("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n");
  const Schedule lists = InsertCommunication(*folded, {{0, 3}, {1, 2}, {0, 2}});
  EXPECT_EQ(ToCsv(lists),
            "0F0,0SEND_F0,0SEND_F0@2,3RECV_F0,3F0,3I0,3SEND_B0,3W0,0RECV_B0,0RECV_B0@2,0I0,0W0\n"
            "1RECV_F0,1F0,2RECV_F0@0,2F0,2SEND_F0,2RECV_B0,2I0,2SEND_B0@0,2W0,1I0,1SEND_B0,1W0\n");
  const auto peaks = Verify(lists, kContribution, {{0, 3}, {1, 2}, {0, 2}});
  EXPECT_TRUE(peaks.ok()) << peaks.status();
}

TEST(SkipVerifyTest, AMissingMessageIsNamed) {
  EXPECT_EQ(Failure(kPastTheMiddle, {{0, 2}}), "ok");
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, ",0SEND_F0@2", ""), {{0, 2}}),
            "matching 0SEND_F0@2@0/5: 0SEND_F0@2 is missing: 2RECV_F0@0 has no partner");
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, ",2SEND_B0@0", ""), {{0, 2}}),
            "matching 2SEND_B0@0@2/5: 2SEND_B0@0 is missing: 0RECV_B0@2 has no partner");
  EXPECT_EQ(Failure(ToCsv(InsertCommunication(FillDrain(3, 1))), {{0, 2}}),
            "matching 0SEND_F0@2@0/4: 0SEND_F0@2 is missing: 2RECV_F0@0 is missing too");
}

TEST(SkipVerifyTest, ADoubledMessageIsNamed) {
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, "2RECV_F0@0", "2RECV_F0@0,2RECV_F0@0"), {{0, 2}}),
            "completeness 2RECV_F0@0@2/2: 2RECV_F0@0 occurs twice");
}

TEST(SkipVerifyTest, AForeignMessageIsNamed) {
  EXPECT_EQ(Failure(kPastTheMiddle, {}),
            "matching 0SEND_F0@2@0/2: 0SEND_F0@2 has no edge: no skip leads from stage 0 to stage 2");
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, "1SEND_B0", "1SEND_B0,1SEND_B0@0"), {{0, 2}}),
            "matching 1SEND_B0@0@1/6: 1SEND_B0@0 has no edge: no skip leads from stage 0 to stage 1");
  EXPECT_EQ(Failure("0F0,0SEND_F0@1,1F0,1B0,0B0\n", {{0, 1}}),
            "matching 0SEND_F0@1@0/1: 0SEND_F0@1 has no edge: stage 1 is on the same lane");
  EXPECT_EQ(Failure(kPastTheMiddle, {{0, 2}}, {.purpose = SchedulePurpose::kContribution, .with_communication = false}),
            "content 0SEND_F0@0/1: 0SEND_F0 has no place in a schedule for: contribution, compute actions only");
}

TEST(SkipVerifyTest, AMessageInTheWrongPlaceIsNamed) {
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, "0F0,0SEND_F0,0SEND_F0@2", "0SEND_F0@2,0F0,0SEND_F0"), {{0, 2}}),
            "order 0SEND_F0@2@0/0: 0SEND_F0@2 stands before 0F0");
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, "2RECV_F0@0,2F0", "2F0,2RECV_F0@0"), {{0, 2}}),
            "order 2F0@2/1: 2F0 stands before 2RECV_F0@0");
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, "0RECV_B0@2,0B0", "0B0,0RECV_B0@2"), {{0, 2}}),
            "order 0B0@0/4: 0B0 stands before 0RECV_B0@2");
  EXPECT_EQ(Failure(Replaced(kPastTheMiddle, "2B0,2SEND_B0,2SEND_B0@0", "2SEND_B0@0,2B0,2SEND_B0"), {{0, 2}}),
            "order 2SEND_B0@0@2/3: 2SEND_B0@0 stands before 2B0");
}

TEST(SkipVerifyTest, ADeadlockThroughASkipPrintsIt) {
  // Stage 0 awaits the gradient before it hands out what the forward needs.
  EXPECT_EQ(
      Failure(Replaced(kPastTheMiddle, "0SEND_F0@2,0RECV_B0,0RECV_B0@2,0B0", "0RECV_B0,0RECV_B0@2,0B0,0SEND_F0@2"),
              {{0, 2}}),
      "deadlock 0RECV_B0@0/2: 0RECV_B0 waits for 1SEND_B0; 1SEND_B0 follows 1RECV_B0 on lane 1; 1RECV_B0 waits for "
      "2SEND_B0; 2SEND_B0 follows 2RECV_F0@0 on lane 2; 2RECV_F0@0 waits for 0SEND_F0@2; 0SEND_F0@2 follows "
      "0RECV_B0 on lane 0");
}

TEST(SkipVerifyTest, ALongSkipNeedsMoreCreditsWhenGradientsReturnEarly) {
  const auto credits_needed = [](const char* kind, int lanes) {
    const std::vector<SkipEdge> skips = {{0, lanes - 1}};
    const auto lists = BuildSchedule({.kind = kind, .lanes = lanes, .micro_batches = 24, .skips = skips});
    int credits = 1;
    while (!Verify(*lists, {.credits = credits}, skips).ok()) ++credits;
    return credits;
  };
  EXPECT_EQ(credits_needed("gpipe", 8), 1);
  EXPECT_EQ(credits_needed("1f1b", 3), 1);
  EXPECT_EQ(credits_needed("1f1b", 8), 4);
}

TEST(SkipShapeTest, APeerWhereNoneCanBeIsRefused) {
  EXPECT_THAT(Failure("0F0,0SEND_F0@7,0B0\n", {}), HasSubstr("peer out of range: the schedule has 1 stages"));
  EXPECT_THAT(Failure("0F0,0B0\n1F0,1SEND_F0@0,1B0\n", {}),
              HasSubstr("a skip leads to a later stage: not from stage 1 to stage 0"));
  EXPECT_THAT(Failure("0F0,0B0\n1F0,1RECV_F0@1,1B0\n", {}),
              HasSubstr("a skip leads to a later stage: not from stage 1 to stage 1"));
  Schedule schedule = FillDrain(2, 1);
  schedule.lanes[0][0].peer = 1;
  EXPECT_THAT(std::string(Verify(schedule, kContribution).status().message()),
              HasSubstr("0F0@1 moves nothing, so it has no peer"));
  EXPECT_FALSE(Simulate(schedule, {.stages = std::vector<StageCosts>(2)}).ok());
  schedule = InsertCommunication(FillDrain(2, 1));
  schedule.lanes[0][1].peer = -2;
  EXPECT_FALSE(Verify(schedule, kContribution).ok());
}

TEST(SkipSimulateTest, AMessageTakesAHopAndItsReceiverWaits) {
  const auto lists = ParseCsv(kPastTheMiddle);
  const auto simulation = Simulate(*lists, {.stages = std::vector<StageCosts>(3), .hop = 5 * kTicksPerUnit});
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const auto end_of = [&](int lane, int position) {
    return static_cast<int>(simulation->lanes[lane][position].end / kTicksPerUnit);
  };
  EXPECT_EQ(end_of(0, 2), 1);   // 0SEND_F0@2
  EXPECT_EQ(end_of(2, 0), 12);  // 2RECV_F0, two hops and two forwards later
  EXPECT_EQ(end_of(2, 1), 12);  // 2RECV_F0@0 has been there for long
  // Alone, the skip arrives after one hop.
  const auto alone = ParseCsv("0F0,0SEND_F0@2\n1F0\n2RECV_F0@0,2F0\n");
  const auto stuck = Simulate(*alone, {.stages = std::vector<StageCosts>(3)});
  EXPECT_THAT(std::string(stuck.status().message()), HasSubstr("1F0 needs 1RECV_F0, which no lane performs"));
  const auto late = ParseCsv(
      "0F0,0SEND_F0,0F1,0SEND_F1,0SEND_F0@2,0SEND_F1@2\n"
      "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n"
      "2RECV_F0@0,2RECV_F0,2F0,2RECV_F1@0,2RECV_F1,2F1\n");
  ScheduleCosts costs{.stages = std::vector<StageCosts>(3), .hop = kTicksPerUnit};
  costs.stages[0].forward = 10 * kTicksPerUnit;
  const auto delayed = Simulate(*late, costs);
  ASSERT_TRUE(delayed.ok()) << delayed.status();
  EXPECT_EQ(delayed->lanes[2][0].end, 21 * kTicksPerUnit);  // sent behind the second forward, then one hop
}

// Over links: to stage 1 with the activation, whose edge has the bytes of both; to stage 2 by itself.
TEST(SkipSimulateTest, SkipsTakeTheirTimeOnLinks) {
  const auto lists = ParseCsv(
      "0F0,0SEND_F0,0SEND_F0@1,0SEND_F0@2\n"
      "1RECV_F0,1RECV_F0@0,1F0,1SEND_F0\n"
      "2RECV_F0,2RECV_F0@0,2F0\n");
  ScheduleCosts costs{.stages = std::vector<StageCosts>(3)};
  costs.edges[{0, 1}] = {.transfer = 3 * kTicksPerUnit, .latency = kTicksPerUnit};
  auto simulation = Simulate(*lists, costs);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  EXPECT_EQ(simulation->lanes[1][2].start, 5 * kTicksPerUnit);
  EXPECT_EQ(simulation->makespan, 7 * kTicksPerUnit);
  costs.edges[{0, 2}] = {.transfer = 9 * kTicksPerUnit};
  simulation = Simulate(*lists, costs);
  EXPECT_EQ(simulation->makespan, 11 * kTicksPerUnit);
}

TEST(SkipSimulateTest, AListWithoutTheMessageIsExplained) {
  const auto simulation = Simulate(*ParseCsv("0F0,0SEND_F0,0F1,0SEND_F1,0SEND_F0@2\n"
                                             "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n"
                                             "2RECV_F0,2RECV_F0@0,2F0,2RECV_F1,2F1\n"),
                                   {.stages = std::vector<StageCosts>(3)});
  EXPECT_THAT(std::string(simulation.status().message()), HasSubstr("2F1 needs 2RECV_F1@0, which no lane performs"));
  const auto backward = Simulate(*ParseCsv("0RECV_B0,0RECV_B0@2,0B0,0RECV_B1,0B1\n"
                                           "1RECV_B0,1B0,1SEND_B0,1RECV_B1,1B1,1SEND_B1\n"
                                           "2B0,2SEND_B0,2SEND_B0@0,2B1,2SEND_B1\n"),
                                 {.stages = std::vector<StageCosts>(3)});
  EXPECT_THAT(std::string(backward.status().message()), HasSubstr("0B1 needs 0RECV_B1@2, which no lane performs"));
}

}  // namespace
}  // namespace penstock
