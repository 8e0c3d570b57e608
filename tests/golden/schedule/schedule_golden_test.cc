// Schedules and their drawings, compared with files that people have read. PENSTOCK_REWRITE_GOLDEN=1 rewrites the
// files.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "engine/schedule/build.h"
#include "engine/schedule/fuse_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/render.h"
#include "engine/schedule/torch_csv.h"
#include "engine/schedule/verify.h"
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
      const Schedule schedule = Built({.kind = kind, .lanes = 3, .micro_batches = 4, .recompute = mode});
      ExpectGolden(std::string(kind) + "_p3_m4_" + std::string(ToString(mode)) + ".txt", ToText(schedule));
    }
  }
}

TEST(GoldenSchedulesTest, FewerMicroBatchesThanStages) {
  ExpectGolden("1f1b_p4_m2_never.txt", ToText(Built({.kind = "1f1b", .lanes = 4, .micro_batches = 2})));
}

TEST(GoldenSchedulesTest, OneStageSendsNothing) {
  ExpectGolden("1f1b_p1_m3_always.txt",
               ToText(Built({.kind = "1f1b", .lanes = 1, .micro_batches = 3, .recompute = RecomputeMode::kAlways})));
}

TEST(GoldenSchedulesTest, ASkipPastTheMiddleStage) {
  ExpectGolden(
      "1f1b_p3_m2_always_skip.txt",
      ToText(Built(
          {.kind = "1f1b", .lanes = 3, .micro_batches = 2, .recompute = RecomputeMode::kAlways, .skips = {{0, 2}}})));
}

TEST(GoldenSchedulesTest, PartsOfAStep) {
  ExpectGolden(
      "forward_only_p3_m4.csv",
      ToCsv(Built({.kind = "1f1b", .purpose = SchedulePurpose::kForwardOnly, .lanes = 3, .micro_batches = 4})));
  ExpectGolden("backward_only_p3_m4_always.csv", ToCsv(Built({.kind = "1f1b",
                                                              .purpose = SchedulePurpose::kBackwardOnly,
                                                              .lanes = 3,
                                                              .micro_batches = 4,
                                                              .recompute = RecomputeMode::kAlways})));
  ExpectGolden("optimizer_only_p3.csv",
               ToCsv(Built({.kind = "1f1b", .purpose = SchedulePurpose::kOptimizerOnly, .lanes = 3})));
}

// Two chunks or a split backward, as they run: fused where it is free, with messages and optimizer steps.
TEST(GoldenSchedulesTest, ChunksAndSplitBackwards) {
  for (const char* kind : {"interleaved-1f1b", "looped-bfs", "zb-h1", "zb-h2", "interleaved-zb", "zbv", "dualpipe-v"}) {
    const int chunks = FindScheduleKind(kind)->usual_chunks;
    ExpectGolden(std::string(kind) + "_p2_m4.txt",
                 ToText(Built({.kind = kind, .lanes = 2, .chunks = chunks, .micro_batches = 4})));
  }
  ExpectGolden("zbv_p2_m3_always_skip.txt", ToText(Built({.kind = "zbv",
                                                          .lanes = 2,
                                                          .chunks = 2,
                                                          .micro_batches = 3,
                                                          .recompute = RecomputeMode::kAlways,
                                                          .skips = {{0, 2}, {0, 3}}})));
}

TEST(GoldenSchedulesTest, PartsOfAStepOfAV) {
  for (const SchedulePurpose purpose :
       {SchedulePurpose::kForwardOnly, SchedulePurpose::kBackwardOnly, SchedulePurpose::kOptimizerOnly}) {
    std::string name(ToString(purpose));
    name.replace(name.find(' '), 1, "_");
    ExpectGolden(name + "_v_p2_m3.csv",
                 ToCsv(Built({.kind = "zbv", .purpose = purpose, .lanes = 2, .chunks = 2, .micro_batches = 3})));
  }
}

std::string Golden(const std::string& name) {
  std::ifstream file(std::string(PENSTOCK_GOLDEN_FOLDER) + "/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Schedule ComputeActionsOf(Schedule schedule) {
  for (auto& list : schedule.lanes) {
    std::erase_if(list, [](const Action& action) { return IsCommunication(action.kind); });
  }
  return schedule;
}

// torch/*.csv are what PyTorch 2.11 writes for its own schedules, idle slots and overlapped pairs included: the same
// lists as ours. Its messages verify; before it adds them it fuses every I with the W beside it, and after that shards.
TEST(GoldenSchedulesTest, ListsOfPyTorchAreOurs) {
  for (const char* kind : {"interleaved-1f1b", "interleaved-zb", "zbv", "dualpipe-v"}) {
    SCOPED_TRACE(kind);
    const std::string prefix = std::string("torch/") + kind + "_p2_m4_";
    const auto compute = ImportTorchCsv(Golden(prefix + "compute_only.csv"), kind);
    ASSERT_TRUE(compute.ok()) << compute.status();
    EXPECT_TRUE(compute->notices.empty());
    const Schedule own = *Generate({.kind = kind, .lanes = 2, .micro_batches = 4, .chunks = 2});
    EXPECT_EQ(compute->schedule, own);

    const auto complete = ImportTorchCsv(Golden(prefix + "compute_comms.csv"), kind);
    ASSERT_TRUE(complete.ok()) << complete.status();
    EXPECT_EQ(complete->notices.size(), 3u);  // UNSHARD, RESHARD, REDUCE_GRAD
    const auto peaks = Verify(complete->schedule, {.purpose = SchedulePurpose::kContribution});
    EXPECT_TRUE(peaks.ok()) << peaks.status();
    EXPECT_EQ(ComputeActionsOf(complete->schedule), FuseBackward(own, FuseMode::kAll));
  }
}

TEST(GoldenSchedulesTest, Drawings) {
  for (const char* kind : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zbv", "forward-only"}) {
    const auto result = WhatIf({.kind = kind, .devices = 4, .micro_batches = 8, .recompute = "except_last"});
    ASSERT_TRUE(result.ok()) << result.status();
    ExpectGolden(std::string(kind) + "_p4_m8.gantt.txt", RenderGantt(result->simulation));
  }
}

// One drawing whole; of the others, that each action that takes time has its bar, with its times, in its lane's group.
TEST(GoldenSchedulesTest, PicturesShowEveryActionInItsLane) {
  for (const char* kind : {"gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zbv", "forward-only"}) {
    SCOPED_TRACE(kind);
    const auto result = WhatIf({.kind = kind, .devices = 4, .micro_batches = 8, .recompute = "except_last"});
    ASSERT_TRUE(result.ok()) << result.status();
    const std::string svg = RenderSvg(result->simulation);
    if (std::string(kind) == "1f1b") ExpectGolden("1f1b_p4_m8.svg", svg);
    size_t from = 0;
    size_t bars = 0;
    for (const std::vector<TimedAction>& lane : result->simulation.lanes) {
      from = svg.find("<g class=\"lane\">", from);
      ASSERT_NE(from, std::string::npos);
      const std::string group = svg.substr(from, svg.find("</g>", from) - from);
      for (const TimedAction& action : lane) {
        if (action.start == action.end) continue;
        EXPECT_NE(group.find("<title>" + ToString(action.action) + ": "), std::string::npos) << ToString(action.action);
        ++bars;
      }
      from += group.size();
    }
    EXPECT_GE(bars, 32u);
  }
}

}  // namespace
}  // namespace penstock
