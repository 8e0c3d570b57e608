// Schedules and their drawings, compared with files that people have read. PENSTOCK_REWRITE_GOLDEN=1 rewrites the files.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/schedule/build.h"
#include "engine/schedule/render.h"
#include "engine/schedule/what_if.h"

namespace penstock {
namespace {

void ExpectGolden(const std::string& name, const std::string& actual) {
  const std::string path = std::string(PENSTOCK_GOLDEN_FOLDER) + "/" + name;
  if (std::getenv("PENSTOCK_REWRITE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << actual;
    return;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file.good()) << name << " is missing; PENSTOCK_REWRITE_GOLDEN=1 writes it";
  std::stringstream expected;
  expected << file.rdbuf();
  EXPECT_EQ(actual, expected.str()) << name;
}

Schedule Built(const BuildRequest& request) {
  auto schedule = BuildSchedule(request);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return schedule.ok() ? *std::move(schedule) : Schedule();
}

TEST(GoldenSchedulesTest, TrainingSteps) {
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (const RecomputeMode mode : {RecomputeMode::kNever, RecomputeMode::kExceptLast, RecomputeMode::kAlways}) {
      const Schedule schedule = Built({.kind = kind, .ranks = 3, .microbatches = 4, .recompute = mode});
      ExpectGolden(std::string(kind) + "_p3_m4_" + std::string(ToString(mode)) + ".txt", ToText(schedule));
    }
  }
}

TEST(GoldenSchedulesTest, ISS_15_FewerMicrobatchesThanStages) {
  ExpectGolden("1f1b_p4_m2_never.txt", ToText(Built({.kind = "1f1b", .ranks = 4, .microbatches = 2})));
}

TEST(GoldenSchedulesTest, OneStageSendsNothing) {
  ExpectGolden("1f1b_p1_m3_always.txt",
               ToText(Built({.kind = "1f1b", .ranks = 1, .microbatches = 3, .recompute = RecomputeMode::kAlways})));
}

TEST(GoldenSchedulesTest, ASkipPastTheMiddleStage) {
  ExpectGolden(
      "1f1b_p3_m2_always_skip.txt",
      ToText(Built(
          {.kind = "1f1b", .ranks = 3, .microbatches = 2, .recompute = RecomputeMode::kAlways, .skips = {{0, 2}}})));
}

TEST(GoldenSchedulesTest, PartsOfAStep) {
  ExpectGolden("forward_only_p3_m4.csv",
               ToCsv(Built({.kind = "1f1b", .purpose = SchedulePurpose::kForwardOnly, .ranks = 3, .microbatches = 4})));
  ExpectGolden("backward_only_p3_m4_always.csv", ToCsv(Built({.kind = "1f1b",
                                                              .purpose = SchedulePurpose::kBackwardOnly,
                                                              .ranks = 3,
                                                              .microbatches = 4,
                                                              .recompute = RecomputeMode::kAlways})));
  ExpectGolden("optimizer_only_p3.csv",
               ToCsv(Built({.kind = "1f1b", .purpose = SchedulePurpose::kOptimizerOnly, .ranks = 3})));
}

TEST(GoldenSchedulesTest, Drawings) {
  for (const char* kind : {"gpipe", "1f1b", "forward-only"}) {
    const auto result = WhatIf({.kind = kind, .devices = 4, .micro_batches = 8, .recompute = "except_last"});
    ASSERT_TRUE(result.ok()) << result.status();
    ExpectGolden(std::string(kind) + "_p4_m8.gantt.txt", RenderGantt(result->simulation));
    ExpectGolden(std::string(kind) + "_p4_m8.svg", RenderSvg(result->simulation));
  }
}

}  // namespace
}  // namespace penstock
