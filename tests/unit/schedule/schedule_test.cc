#include "engine/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/generators.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

Schedule Generated(const ScheduleKind& kind, int lanes, int micro_batches) {
  ScheduleRequest request{.kind = std::string(kind.name), .lanes = lanes, .micro_batches = micro_batches};
  request.chunks = kind.usual_chunks;
  if (kind.name == "lag") request.lag = 3;
  auto schedule = Generate(request);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

constexpr char kTwoStages[] =
    "schedule gpipe: 2 stages, 1 micro-batch\n"
    "pos  lane 0  lane 1\n"
    "  0  0F0     1F0\n"
    "  1  0B0     1B0\n";

TEST(ScheduleTextTest, PrintsHeadingAndGrid) { EXPECT_EQ(ToText(FillDrain(2, 1)), kTwoStages); }

TEST(ScheduleTextTest, ReadsWhatItPrints) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (const int lanes : {1, 2, 5}) {
      for (const int micro_batches : {1, 2, 12}) {
        if (micro_batches < MinMicroBatches(kind, lanes)) continue;
        const Schedule schedule = Generated(kind, lanes, micro_batches);
        const auto again = ParseText(ToText(schedule));
        ASSERT_TRUE(again.ok()) << again.status();
        EXPECT_EQ(*again, schedule);
      }
    }
  }
}

TEST(ScheduleTextTest, ReadsBackCommunicationRecomputeAndOptimizer) {
  const auto schedule =
      BuildSchedule({.kind = "1f1b", .lanes = 3, .micro_batches = 4, .recompute = RecomputeMode::kExceptLast});
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(*ParseText(ToText(*schedule)), *schedule);
  EXPECT_EQ(*ParseCsv(ToCsv(*schedule), "1f1b"), *schedule);
}

TEST(ScheduleTextTest, SkipsIdleSlots) {
  const auto schedule = ParseText(
      "schedule gpipe: 2 stages, 1 micro-batch\n"
      "pos  lane 0  lane 1\n"
      "  0  0F0     .\n"
      "  1  .       1F0\n"
      "  2  .       1B0\n"
      "  3  0B0     .\n");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(*schedule, FillDrain(2, 1));
}

TEST(ScheduleTextTest, ShowsWhereAListHasEnded) {
  Schedule schedule = FillDrain(2, 1);
  schedule.lanes[0].pop_back();
  EXPECT_THAT(ToText(schedule), HasSubstr("  1  .       1B0\n"));
}

TEST(ScheduleTextTest, RefusesDamage) {
  const std::string good = kTwoStages;
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  for (const std::string& text :
       {std::string(), std::string("schedule gpipe: 2 stages, 1 micro-batch\n"), replaced("schedule ", "plan "),
        replaced("2 stages", "2 stage"), replaced("2 stages", "x stages"), replaced("1 micro-batch", "1"),
        replaced("lane 1", "lane 2"), replaced("pos", "position"), replaced("  1  0B0", "  2  0B0"),
        std::string("schedule gpipe: 2 stages, 1 micro-batch\npos  lane 0  lane 1\n"),
        replaced("2 stages", "-2 stages"), replaced("1B0", ""), replaced("1B0", "1B0 1B0"), replaced("1B0", "1Q0")}) {
    const auto parsed = ParseText(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(ReasonOf(parsed.status()), "FIELD_INVALID") << text;
  }
}

TEST(ScheduleCsvTest, HasOneRowPerRank) { EXPECT_EQ(ToCsv(FillDrain(2, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"); }

TEST(ScheduleCsvTest, ReadsWhatItPrints) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    const Schedule schedule = Generated(kind, 3, 7);
    EXPECT_EQ(*ParseCsv(ToCsv(schedule), kind.name), schedule);
  }
}

TEST(ScheduleCsvTest, SkipsEmptyCellsAndBlanks) {
  const auto schedule = ParseCsv("0F0,,,0B0\r\n ,1F0, 1B0 ,\n", "gpipe");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(*schedule, FillDrain(2, 1));
}

TEST(ScheduleCsvTest, KeepsALaneWithoutActions) {
  const auto schedule = ParseCsv("0F0\n\n", "x");
  ASSERT_TRUE(schedule.ok()) << schedule.status();
  EXPECT_EQ(schedule->lanes.size(), 2u);
}

TEST(ScheduleCsvTest, AnErrorNamesLaneAndCell) {
  const auto schedule = ParseCsv("0F0,0B0\n1F0,1Z0\n");
  ASSERT_FALSE(schedule.ok());
  EXPECT_THAT(std::string(schedule.status().message()), HasSubstr("lane 1"));
  EXPECT_THAT(std::string(schedule.status().message()), HasSubstr("\"1Z0\""));
  EXPECT_EQ(ValuesOf(schedule.status()).at("lane"), "1");
}

TEST(ScheduleCsvTest, RefusesSizesBeyondTheLimits) {
  EXPECT_EQ(ValuesOf(ParseCsv("").status())["field"], "lanes");
  EXPECT_EQ(ValuesOf(ParseCsv("999999999F0\n").status())["field"], "stages");
  EXPECT_EQ(ValuesOf(ParseCsv("0F999999999\n").status())["field"], "micro_batches");
  EXPECT_EQ(ValuesOf(ParseCsv(std::string(2000, '\n') + "0F0\n").status())["field"], "lanes");
}

TEST(ScheduleTextTest, RefusesActionsThatTheHeadingDoesNotCount) {
  std::string text = kTwoStages;
  const auto parsed = ParseText(text.replace(text.find("1B0"), 3, "1B7"));
  EXPECT_EQ(ReasonOf(parsed.status()), "SPEC_INVALID");
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("lane 1, position 1 (1B7)"));
}

TEST(ScheduleTest, KnowsTheLaneOfEachStage) {
  EXPECT_EQ(LaneOfEachStage(FillDrain(3, 2)), (std::vector<int>{0, 1, 2}));
  const auto folded = ParseCsv("0F0,3F0\n1F0,2F0\n");
  EXPECT_EQ(LaneOfEachStage(*folded), (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(LaneOfEachStage(*ParseCsv("1F0\n")), (std::vector<int>{-1, 0}));
}

TEST(ScheduleTest, LimitsNameTheFieldAndItsValue) {
  EXPECT_TRUE(CheckSizes(1, 1, 1).ok());
  EXPECT_TRUE(CheckSizes(kMaxLanes, kMaxLanes, kMaxCells / kMaxLanes).ok());
  const auto field_and_value = [](const absl::Status& status) {
    return ValuesOf(status).at("field") + "=" + ValuesOf(status).at("value");
  };
  EXPECT_EQ(field_and_value(CheckSizes(0, 1, 1)), "lanes=0");
  EXPECT_EQ(field_and_value(CheckSizes(kMaxLanes + 1, 1, 1)), "lanes=1025");
  EXPECT_EQ(field_and_value(CheckSizes(1, -2, 1)), "stages=-2");
  EXPECT_EQ(field_and_value(CheckSizes(1, 1, 0)), "micro_batches=0");
  EXPECT_EQ(field_and_value(CheckSizes(1, 1, kMaxMicroBatches + 1)), "micro_batches=65537");
  EXPECT_EQ(field_and_value(CheckSizes(1024, 1024, 1025)), "micro_batches=1025");
}

}  // namespace
}  // namespace penstock
