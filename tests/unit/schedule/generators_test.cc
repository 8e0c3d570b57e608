#include "engine/schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Csv(std::string kind, int ranks, int microbatches) {
  const auto schedule = Generate({std::move(kind), ranks, microbatches});
  return schedule.ok() ? ToCsv(*schedule) : schedule.status().ToString();
}

TEST(GeneratorsTest, FillDrainRunsEveryForwardThenEveryBackwardAscending) {
  EXPECT_EQ(Csv("gpipe", 2, 3), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST(GeneratorsTest, ISS_19_DEF_3_OneForwardOneBackwardLeadsByTheDistanceToTheLastRank) {
  EXPECT_EQ(Csv("1f1b", 3, 4),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(GeneratorsTest, OneForwardOneBackwardWithFewMicrobatchesIsFillDrain) {
  EXPECT_EQ(Csv("1f1b", 4, 1), Csv("gpipe", 4, 1));
  EXPECT_EQ(Csv("1f1b", 4, 2), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n3F0,3B0,3F1,3B1\n");
}

TEST(GeneratorsTest, ForwardOnlyHasNothingElse) { EXPECT_EQ(Csv("forward-only", 2, 3), "0F0,0F1,0F2\n1F0,1F1,1F2\n"); }

TEST(GeneratorsTest, PartsOfAStep) {
  EXPECT_EQ(ToCsv(BackwardOnly(2, 2)), "0B0,0B1\n1B0,1B1\n");
  EXPECT_EQ(NoMicrobatches(3).ranks.size(), 3u);
  EXPECT_EQ(NoMicrobatches(3).stages, 3);
}

TEST(GeneratorsTest, AKindNamesItsSchedules) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    ScheduleRequest request{.kind = std::string(kind.name), .ranks = 3, .microbatches = 6};
    request.chunks = kind.usual_chunks;
    if (kind.name == "lag") request.lag = 2;
    const auto schedule = Generate(request);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(schedule->kind, kind.name);
    EXPECT_EQ(schedule->stages, 3 * kind.usual_chunks);
    EXPECT_EQ(schedule->microbatches, 6);
    const std::string csv = ToCsv(*schedule);
    EXPECT_EQ(kind.trains, csv.find_first_of("BI") != std::string::npos);
    EXPECT_EQ(kind.splits, csv.find('W') != std::string::npos);
  }
}

TEST(GeneratorsTest, AnUnknownKindIsRefusedWithTheKnownOnes) {
  for (const char* name : {"", "GPipe", "interleaved", "1f1b "}) {
    const auto schedule = Generate({name, 2, 2});
    ASSERT_FALSE(schedule.ok());
    EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(schedule.status()), "FIELD_INVALID");
    EXPECT_EQ(ValuesOf(schedule.status()).at("field"), "kind");
    EXPECT_EQ(ValuesOf(schedule.status()).at("value"), name);
    EXPECT_THAT(std::string(schedule.status().message()),
                AllOf(HasSubstr("gpipe"), HasSubstr("1f1b"), HasSubstr("forward-only")));
  }
}

TEST(GeneratorsTest, SizesOutsideTheLimitsAreRefused) {
  for (const auto& [ranks, microbatches] :
       std::vector<std::pair<int, int>>{{0, 1}, {-1, 1}, {1, 0}, {1, -5}, {1025, 1}, {1, 65537}, {1024, 65536}}) {
    const auto schedule = Generate({"gpipe", ranks, microbatches});
    ASSERT_FALSE(schedule.ok()) << ranks << " " << microbatches;
    EXPECT_EQ(ReasonOf(schedule.status()), "FIELD_INVALID");
  }
  EXPECT_TRUE(Generate({"gpipe", 1, kMaxMicrobatches}).ok());
}

// At equal costs, the forwards of fill-drain run in lockstep: clock k holds the pairs (micro-batch k-j, stage j).
// "ij" below is (micro-batch i, stage j).
TEST(GeneratorsTest, SCH_1_FillDrainForwardsFollowTheClock) {
  struct Clock {
    int microbatches;
    int stages;
    const char* cycles;
  };
  for (const Clock& clock :
       {Clock{1, 1, "[00]"}, Clock{1, 3, "[00],[01],[02]"}, Clock{3, 1, "[00],[10],[20]"},
        Clock{3, 3, "[00],[10,01],[20,11,02],[21,12],[22]"}, Clock{4, 2, "[00],[10,01],[20,11],[30,21],[31]"}}) {
    const auto schedule = Generate({"gpipe", clock.stages, clock.microbatches});
    const auto simulation = Simulate(*schedule, {.stages = std::vector<StageCosts>(clock.stages)});
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    std::map<Ticks, std::vector<std::string>> cycles;  // ranks ascending within each
    for (const auto& list : simulation->ranks) {
      for (const TimedAction& timed : list) {
        if (timed.action.kind != ActionKind::kForward) continue;
        cycles[timed.start].push_back(absl::StrCat(timed.action.microbatch, timed.action.stage));
      }
    }
    std::vector<std::string> drawn;
    for (const auto& [start, pairs] : cycles) {
      EXPECT_EQ(start, static_cast<Ticks>(drawn.size()) * kTicksPerUnit);
      drawn.push_back(absl::StrCat("[", absl::StrJoin(pairs, ","), "]"));
    }
    EXPECT_EQ(absl::StrJoin(drawn, ","), clock.cycles);
  }
}

}  // namespace
}  // namespace penstock
