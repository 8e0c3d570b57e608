#include "engine/schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
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

std::string Csv(std::string kind, int lanes, int micro_batches) {
  const auto schedule = Generate({std::move(kind), lanes, micro_batches});
  return schedule.ok() ? ToCsv(*schedule) : schedule.status().ToString();
}

TEST(GeneratorsTest, FillDrainRunsEveryForwardThenEveryBackwardAscending) {
  EXPECT_EQ(Csv("gpipe", 2, 3), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
}

TEST(GeneratorsTest, OneForwardOneBackwardLeadsByTheDistanceToTheLastRank) {
  EXPECT_EQ(Csv("1f1b", 3, 4),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(GeneratorsTest, OneForwardOneBackwardWithFewMicroBatchesIsFillDrain) {
  EXPECT_EQ(Csv("1f1b", 4, 1), Csv("gpipe", 4, 1));
  EXPECT_EQ(Csv("1f1b", 4, 2), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n3F0,3B0,3F1,3B1\n");
}

TEST(GeneratorsTest, ForwardOnlyHasNothingElse) { EXPECT_EQ(Csv("forward-only", 2, 3), "0F0,0F1,0F2\n1F0,1F1,1F2\n"); }

TEST(GeneratorsTest, PartsOfAStep) {
  EXPECT_EQ(ToCsv(BackwardOnly(2, 2)), "0B0,0B1\n1B0,1B1\n");
  EXPECT_EQ(NoMicroBatches(3).lanes.size(), 3u);
  EXPECT_EQ(NoMicroBatches(3).stages, 3);
}

TEST(GeneratorsTest, AKindNamesItsSchedules) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    ScheduleRequest request{.kind = std::string(kind.name), .lanes = 3, .micro_batches = 6};
    request.chunks = kind.usual_chunks;
    if (kind.name == "lag") request.lag = 2;
    const auto schedule = Generate(request);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    EXPECT_EQ(schedule->kind, kind.name);
    EXPECT_EQ(schedule->stages, 3 * kind.usual_chunks);
    EXPECT_EQ(schedule->micro_batches, 6);
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
  for (const auto& [lanes, micro_batches] :
       std::vector<std::pair<int, int>>{{0, 1}, {-1, 1}, {1, 0}, {1, -5}, {1025, 1}, {1, 65537}, {1024, 65536}}) {
    const auto schedule = Generate({"gpipe", lanes, micro_batches});
    ASSERT_FALSE(schedule.ok()) << lanes << " " << micro_batches;
    EXPECT_EQ(ReasonOf(schedule.status()), "FIELD_INVALID");
  }
  EXPECT_TRUE(Generate({"gpipe", 1, kMaxMicroBatches}).ok());
}

std::string Refusal(const ScheduleRequest& request) {
  const auto schedule = Generate(request);
  if (schedule.ok()) return "accepted";
  EXPECT_EQ(ReasonOf(schedule.status()), "FIELD_INVALID");
  EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(schedule.status().message());
}

TEST(GeneratorsTest, WrongCombinationsAreNamed) {
  EXPECT_EQ(Refusal({.kind = "1f1b", .lanes = 4, .micro_batches = 8, .chunks = 2}),
            "chunks: must be 1 for kind 1f1b, got 2");
  EXPECT_EQ(Refusal({.kind = "auto", .lanes = 4, .micro_batches = 8, .chunks = 2}),
            "chunks: must be 1 for kind auto, got 2");
  EXPECT_EQ(Refusal({.kind = "zbv", .lanes = 4, .micro_batches = 8}), "chunks: must be 2 for kind zbv, got 1");
  EXPECT_EQ(Refusal({.kind = "zbv", .lanes = 4, .micro_batches = 8, .chunks = 4}),
            "chunks: must be 2 for kind zbv, got 4");
  EXPECT_EQ(Refusal({.kind = "looped-bfs", .lanes = 4, .micro_batches = 8, .chunks = 0}),
            "chunks: must be at least 1 for kind looped-bfs, got 0");
  EXPECT_EQ(Refusal({.kind = "looped-bfs", .lanes = 4, .micro_batches = 1, .chunks = 1025}),
            "chunks: must be at most 1024 with 4 lanes, got 1025");
  EXPECT_EQ(Refusal({.kind = "looped-bfs", .lanes = 1024, .micro_batches = 1, .chunks = 2'000'000'000}),
            "chunks: must be at most 4096, got 2000000000");
  EXPECT_EQ(Refusal({.kind = "dualpipe-v", .lanes = 4, .micro_batches = 7, .chunks = 2}),
            "micro_batches: must be at least 8 for kind dualpipe-v with 4 lanes, got 7");
  EXPECT_EQ(Refusal({.kind = "dualpipe-v", .lanes = 4, .micro_batches = 8, .chunks = 2}), "accepted");
  EXPECT_EQ(Refusal({.kind = "lag", .lanes = 4, .micro_batches = 8}), "lag: must be set for kind lag, got unset");
  EXPECT_EQ(Refusal({.kind = "lag", .lanes = 4, .micro_batches = 8, .lag = -1}), "lag: must be 0 to 65536, got -1");
  EXPECT_EQ(Refusal({.kind = "lag", .lanes = 4, .micro_batches = 8, .lag = 65536}), "accepted");
  EXPECT_EQ(Refusal({.kind = "zb-h2", .lanes = 4, .micro_batches = 8, .lag = 6}),
            "lag: must be unset unless kind is lag, got 6");
  EXPECT_EQ(Refusal({.kind = "zb-h2", .lanes = 4, .micro_batches = 8, .live_limit = 6}),
            "live_limit: must be unset unless kind is auto, got 6");
  EXPECT_EQ(Refusal({.kind = "auto", .lanes = 4, .micro_batches = 8, .live_limit = 0}),
            "live_limit: must be at least 1, got 0");
  EXPECT_EQ(Refusal({.kind = "auto", .lanes = 4, .micro_batches = 8, .live_limit = 1}), "accepted");
  EXPECT_EQ(Refusal({.kind = "auto", .lanes = 4, .micro_batches = 8, .live_limit = 2'000'000'000}), "accepted");
  EXPECT_EQ(Refusal({.kind = "auto", .lanes = 64, .micro_batches = 8192}),
            "micro_batches: must be at most 5461 for kind auto with 64 lanes and that live_limit, got 8192");
  EXPECT_EQ(Refusal({.kind = "auto", .lanes = 4, .micro_batches = 8, .costs = {.stages = std::vector<StageCosts>(3)}}),
            "costs: must be one per stage, 4, got 3");
  EXPECT_EQ(Refusal({.kind = "auto", .lanes = 1, .micro_batches = 8, .costs = {.stages = {{.forward = -1}}}}),
            "costs.forward: must be 0 to 1000000000000 ticks, got -1");
}

TEST(GeneratorsTest, PlacementIsKnownWithoutLists) {
  EXPECT_EQ(LanesOfStages(Placement::kLooped, 3, 2), (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(LanesOfStages(Placement::kV, 3, 2), (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(LanesOfStages(Placement::kV, 1, 2), (std::vector<int>{0, 0}));
  for (const ScheduleKind& kind : ScheduleKinds()) {
    const auto schedule = Generate({.kind = std::string(kind.name),
                                    .lanes = 3,
                                    .micro_batches = 7,
                                    .chunks = kind.usual_chunks,
                                    .lag = kind.name == "lag" ? std::optional<int>(4) : std::nullopt});
    EXPECT_EQ(LaneOfEachStage(*schedule), LanesOfStages(kind.placement, 3, kind.usual_chunks));
    for (int lane = 0; lane < 3; ++lane) {
      for (int chunk = 0; chunk < kind.usual_chunks; ++chunk) {
        EXPECT_EQ(LaneOfStage(kind.placement, 3, StageOfChunk(kind.placement, 3, lane, chunk)), lane);
      }
    }
  }
}

TEST(GeneratorsTest, OnlyChunkedKindsPlaceSeveralStages) {
  std::string chunked, splitting, folded;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    const std::string name = std::string(kind.name) + " ";
    if (kind.max_chunks > 1) chunked += name;
    if (kind.splits) splitting += name;
    if (kind.placement == Placement::kV) folded += name;
  }
  EXPECT_EQ(chunked, "interleaved-1f1b looped-bfs interleaved-zb zbv dualpipe-v forward-only ");
  EXPECT_EQ(splitting, "zb-h1 zb-h2 lag interleaved-zb zbv dualpipe-v auto ");
  EXPECT_EQ(folded, "zbv dualpipe-v ");
}

// The rules, written out for two lanes and read by people.
TEST(GeneratorsTest, ListsOfTwoRanks) {
  const auto csv = [](const char* kind, int micro_batches, int chunks, std::optional<int> lag = {}) {
    return ToCsv(*Generate({.kind = kind, .lanes = 2, .micro_batches = micro_batches, .chunks = chunks, .lag = lag}));
  };
  EXPECT_EQ(csv("looped-bfs", 2, 2),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1\n");
  EXPECT_EQ(csv("interleaved-1f1b", 2, 2),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  EXPECT_EQ(csv("zb-h1", 3, 1),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1W2\n");
  EXPECT_EQ(csv("zb-h2", 3, 1),
            "0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2\n"
            "1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2\n");
  EXPECT_EQ(csv("lag", 3, 1, 0), "0F0,0I0,0W0,0F1,0I1,0W1,0F2,0I2,0W2\n1F0,1I0,1W0,1F1,1I1,1W1,1F2,1I2,1W2\n");
  EXPECT_EQ(csv("interleaved-zb", 2, 2),
            "0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1\n"
            "1F0,1F1,3F0,3I0,3F1,3I1,3W0,1I0,3W1,1I1,1W0,1W1\n");
  EXPECT_EQ(csv("zbv", 3, 2),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n");
  EXPECT_EQ(csv("dualpipe-v", 4, 2),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3,3B1,3F2,0B0,3B2,3F3,0B1,3B3,0I2,0W2,0I3,0W3\n"
            "1F0,2F0,1F1,2F1,1F2,2B0,2F2,1B0,1F3,2B1,2F3,1B1,2B2,1B2,2I3,1I3,2W3,1W3\n");
  EXPECT_EQ(csv("forward-only", 2, 2), "0F0,0F1,2F0,2F1\n1F0,1F1,3F0,3F1\n");
}

TEST(GeneratorsTest, InterleavedZeroBubbleOfOneChunkIsZeroBubbleH1) {
  for (const int lanes : {1, 2, 5}) {
    for (const int micro_batches : {1, 3, 11}) {
      EXPECT_EQ(InterleavedZeroBubble(lanes, micro_batches, 1).lanes, ZeroBubbleH1(lanes, micro_batches).lanes);
    }
  }
}

// Fused, all candidates are the same list.
TEST(GeneratorsTest, AutoTakesTheFirstOfEquals) { EXPECT_EQ(Csv("auto", 1, 1), "0F0,0B0\n"); }

// At equal costs, the forwards of fill-drain run in lockstep: clock k holds the pairs (micro-batch k-j, stage j).
// "ij" below is (micro-batch i, stage j).
TEST(GeneratorsTest, FillDrainForwardsFollowTheClock) {
  struct Clock {
    int micro_batches;
    int stages;
    const char* cycles;
  };
  for (const Clock& clock :
       {Clock{1, 1, "[00]"}, Clock{1, 3, "[00],[01],[02]"}, Clock{3, 1, "[00],[10],[20]"},
        Clock{3, 3, "[00],[10,01],[20,11,02],[21,12],[22]"}, Clock{4, 2, "[00],[10,01],[20,11],[30,21],[31]"}}) {
    const auto schedule = Generate({"gpipe", clock.stages, clock.micro_batches});
    const auto simulation = Simulate(*schedule, {.stages = std::vector<StageCosts>(clock.stages)});
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    std::map<Ticks, std::vector<std::string>> cycles;  // lanes ascending within each
    for (const auto& list : simulation->lanes) {
      for (const TimedAction& timed : list) {
        if (timed.action.kind != ActionKind::kForward) continue;
        cycles[timed.start].push_back(absl::StrCat(timed.action.micro_batch, timed.action.stage));
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
