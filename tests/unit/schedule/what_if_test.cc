#include "engine/schedule/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Size {
  int devices;
  int micro_batches;
};
WhatIfResult Ask(WhatIfOptions options, const Size& size) {
  options.devices = size.devices;
  options.micro_batches = size.micro_batches;
  auto result = WhatIf(options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : WhatIfResult();
}

TEST(WhatIfTest, AHeavyDeviceIsOneAndAHalfTimesAsSlowUnlessTold) {
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3}, {4, 8}).makespan, 45);
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3, .heavy_scale = 1.5}, {4, 8}).makespan, 45);
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3, .heavy_scale = 1.0}, {4, 8}).makespan, 33);
  // On the same device the factors multiply.
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3, .heavy_scale = 1.5, .last_scale = 2}, {4, 8}).ideal_time, 72);
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 0, .heavy_scale = 3, .last_scale = 2}, {4, 8}).ideal_time, 72);
}

TEST(WhatIfTest, AHeavyDeviceIsHeavyInAllItsStagesAndTheLastStageIsOneOfThem) {
  // Of eight half stages, device 0 holds 0 and 4 in a loop, 0 and 7 in a V.
  EXPECT_EQ(Ask({.kind = "looped-bfs", .heavy_device = 0}, {4, 8}).ideal_time, 36);
  EXPECT_EQ(Ask({.kind = "zbv", .heavy_device = 0}, {4, 8}).ideal_time, 36);
  EXPECT_EQ(Ask({.kind = "looped-bfs", .heavy_device = 0, .last_scale = 3}, {4, 8}).ideal_time, 48);
  EXPECT_EQ(Ask({.kind = "zbv", .heavy_device = 0, .last_scale = 3}, {4, 8}).ideal_time, 18 + 54);
}

TEST(WhatIfTest, ChunksAreTheUsualOnesUnlessTold) {
  EXPECT_EQ(Ask({.kind = "interleaved-zb"}, {4, 8}).schedule.stages, 8);
  EXPECT_EQ(Ask({.kind = "interleaved-zb", .chunks = 1}, {4, 8}).schedule.stages, 4);
  EXPECT_EQ(Ask({.kind = "forward-only"}, {4, 8}).schedule.stages, 4);
  EXPECT_EQ(Ask({.kind = "zbv"}, {4, 8}).schedule.stages, 8);
}

TEST(WhatIfTest, ALagLiesBetweenTheZeroBubbleSchedules) {
  for (const int lag : {3, 6}) {
    WhatIfOptions unequal{.kind = "lag", .lag = lag, .input = 1.2, .weight = 0.8, .hop = 0.1};
    EXPECT_EQ(Ask(unequal, {4, 8}).makespan, lag == 3 ? 29.4 : 27.3);
    EXPECT_EQ(Ask(unequal, {4, 8}).peak_activations, lag + 1);
  }
}

TEST(WhatIfTest, TakesListsFromElsewhere) {
  const WhatIfResult made = Ask({.kind = "zbv", .hop = 0.1}, {4, 8});
  const auto read = WhatIf(made.schedule, {.kind = "", .hop = 0.1, .heavy_device = 1, .heavy_scale = 1});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->makespan, made.makespan);
  EXPECT_EQ(read->peaks_per_device, made.peaks_per_device);
  const auto refused = WhatIf(made.schedule, {.kind = "", .heavy_device = 4});
  EXPECT_EQ(ValuesOf(refused.status())["field"], "heavy_device");
  Schedule cut = made.schedule;
  cut.lanes.pop_back();
  EXPECT_EQ(ReasonOf(WhatIf(cut, {}).status()), "SPEC_INVALID");
}

TEST(WhatIfTest, RecomputationCostsAForwardUnlessTold) {
  EXPECT_EQ(Ask({.kind = "gpipe", .forward = 2, .recompute = "always"}, {1, 1}).makespan, 6);
  EXPECT_EQ(Ask({.kind = "gpipe", .forward = 2, .recompute_cost = 0.5, .recompute = "always"}, {1, 1}).makespan, 4.5);
}

TEST(WhatIfTest, CostsAreRoundedToTheNearestTick) {
  EXPECT_EQ(Ask({.kind = "forward-only", .forward = 1.0 / 3}, {1, 3}).makespan, 1);
  EXPECT_EQ(Ask({.kind = "forward-only", .forward = 1e-9}, {1, 3}).makespan, 0);
}

TEST(WhatIfTest, AnswersTheScheduleToo) {
  const WhatIfResult result = Ask({.kind = "1f1b", .recompute = "always"}, {2, 3});
  EXPECT_EQ(result.schedule.lanes[1].size(), 9u);
  EXPECT_EQ(result.simulation.lanes[1].back().end, result.simulation.times[1].busy + kTicksPerUnit);
}

TEST(WhatIfTest, RefusesByOptionName) {
  const auto field = [](const WhatIfOptions& options) {
    const auto result = WhatIf(options);
    if (result.ok()) return std::string("accepted");
    EXPECT_EQ(ReasonOf(result.status()), "FIELD_INVALID");
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    return ValuesOf(result.status())["field"];
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(field({.kind = "zigzag"}), "kind");
  EXPECT_EQ(field({.kind = "gpipe", .devices = 0}), "devices");
  EXPECT_EQ(field({.kind = "gpipe", .devices = 1025}), "devices");
  EXPECT_EQ(field({.kind = "gpipe", .micro_batches = -1}), "micro_batches");
  EXPECT_EQ(field({.kind = "gpipe", .micro_batches = 65537}), "micro_batches");
  EXPECT_EQ(field({.kind = "gpipe", .forward = -1}), "forward");
  EXPECT_EQ(field({.kind = "gpipe", .input = kNan}), "input");
  EXPECT_EQ(field({.kind = "gpipe", .weight = kInfinity}), "weight");
  EXPECT_EQ(field({.kind = "gpipe", .weight = 1e300}), "weight");
  EXPECT_EQ(field({.kind = "gpipe", .recompute_cost = -0.5}), "recompute_cost");
  EXPECT_EQ(field({.kind = "gpipe", .hop = -0.1}), "hop");
  EXPECT_EQ(field({.kind = "gpipe", .recompute = "mostly"}), "recompute");
  EXPECT_EQ(field({.kind = "gpipe", .devices = 2, .heavy_device = 2}), "heavy_device");
  EXPECT_EQ(field({.kind = "gpipe", .heavy_device = -1}), "heavy_device");
  EXPECT_EQ(field({.kind = "gpipe", .heavy_scale = 2}), "heavy_scale");
  EXPECT_EQ(field({.kind = "gpipe", .heavy_device = 0, .heavy_scale = -2}), "heavy_scale");
  EXPECT_EQ(field({.kind = "gpipe", .last_scale = kNan}), "last_scale");
  EXPECT_EQ(field({.kind = "1f1b", .chunks = 2}), "chunks");
  EXPECT_EQ(field({.kind = "zbv", .chunks = 1}), "chunks");
  EXPECT_EQ(field({.kind = "looped-bfs", .devices = 1024, .chunks = 5}), "chunks");
  EXPECT_EQ(field({.kind = "lag"}), "lag");
  EXPECT_EQ(field({.kind = "lag", .lag = -1}), "lag");
  EXPECT_EQ(field({.kind = "zb-h1", .lag = 3}), "lag");
  EXPECT_EQ(field({.kind = "auto", .limit = 0}), "limit");
  EXPECT_EQ(field({.kind = "1f1b", .limit = 4}), "limit");
  EXPECT_EQ(field({.kind = "dualpipe-v", .devices = 4, .micro_batches = 7}), "micro_batches");
  EXPECT_THAT(std::string(WhatIf({.kind = "auto", .limit = 0}).status().message()),
              HasSubstr("limit: must be at least 1, got 0"));
}

}  // namespace
}  // namespace penstock
