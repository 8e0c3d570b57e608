// The golden numbers of the kinds built, exact.

#include "engine/schedule/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

struct Size {
  int devices;
  int micro_batches;
};
constexpr std::array<Size, 4> kSizes = {{{4, 8}, {4, 16}, {8, 16}, {8, 32}}};
using Row = std::array<double, 4>;  // one number per size

WhatIfResult Ask(WhatIfOptions options, const Size& size) {
  options.devices = size.devices;
  options.micro_batches = size.micro_batches;
  auto result = WhatIf(options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : WhatIfResult();
}

struct GoldenCase {
  const char* name;
  WhatIfOptions options;
  Row makespan;
  Row ideal;
};

const std::vector<GoldenCase>& GoldenCases() {
  constexpr Row kIdeal = {24, 48, 48, 96};
  constexpr Row kHeavyIdeal = {36, 72, 72, 144};
  constexpr Row kForwardIdeal = {8, 16, 16, 32};
  constexpr Row kRecomputeIdeal = {32, 64, 64, 128};
  constexpr Row kExceptLastIdeal = {31, 63, 63, 127};
  const auto unequal = [](const char* kind) {
    return WhatIfOptions{.kind = kind, .input = 1.2, .weight = 0.8, .hop = 0.1};
  };
  static const auto* cases = new std::vector<GoldenCase>{
      {"equal costs", {.kind = "gpipe"}, {33, 57, 69, 117}, kIdeal},
      {"equal costs", {.kind = "1f1b"}, {33, 57, 69, 117}, kIdeal},
      {"equal costs", {.kind = "forward-only"}, {11, 19, 23, 39}, kForwardIdeal},
      {"unequal halves and a hop", unequal("gpipe"), {33.6, 57.6, 70.4, 118.4}, kIdeal},
      {"unequal halves and a hop", unequal("1f1b"), {34.6, 59.8, 73, 123.8}, kIdeal},
      {"last stage heavy", {.kind = "gpipe", .last_scale = 1.5}, {45, 81, 93, 165}, kHeavyIdeal},
      {"last stage heavy", {.kind = "1f1b", .last_scale = 1.5}, {45, 81, 93, 165}, kHeavyIdeal},
      {"recompute", {.kind = "gpipe", .recompute = "always"}, {41, 73, 85, 149}, kRecomputeIdeal},
      {"recompute", {.kind = "gpipe", .recompute = "except_last"}, {40, 72, 84, 148}, kExceptLastIdeal},
      {"recompute", {.kind = "1f1b", .recompute = "always"}, {41, 73, 85, 149}, kRecomputeIdeal},
      {"recompute", {.kind = "1f1b", .recompute = "except_last"}, {40, 72, 84, 148}, kExceptLastIdeal},
      {"recompute", {.kind = "1f1b", .recompute = "skip-adjacent"}, {39, 71, 83, 147}, kRecomputeIdeal},
  };
  return *cases;
}

TEST(GoldenNumbersTest, MakespanIdealWindowOverheadAndBubble) {
  for (const GoldenCase& golden : GoldenCases()) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      SCOPED_TRACE(std::string(golden.name) + ", " + golden.options.kind + ", P" + std::to_string(kSizes[i].devices) +
                   " m" + std::to_string(kSizes[i].micro_batches));
      const WhatIfResult result = Ask(golden.options, kSizes[i]);
      EXPECT_EQ(result.makespan, golden.makespan[i]);
      EXPECT_EQ(result.ideal_time, golden.ideal[i]);
      const bool inference = golden.options.kind == "forward-only";
      EXPECT_EQ(result.window, inference ? golden.ideal[i] : golden.makespan[i]);
      EXPECT_DOUBLE_EQ(result.overhead, golden.makespan[i] / golden.ideal[i] - 1);
      EXPECT_NEAR(result.bubble, 1 - golden.ideal[i] / golden.makespan[i], 1e-15);
    }
  }
}

TEST(GoldenNumbersTest, OverheadWithUnequalHalvesAndAHop) {
  const WhatIfResult result = Ask({.kind = "1f1b", .input = 1.2, .weight = 0.8, .hop = 0.1}, {8, 32});
  EXPECT_EQ(std::round(result.overhead * 1000) / 10, 29.0);
}

TEST(GoldenNumbersTest, PeaksWithoutRecomputation) {
  for (const Size& size : kSizes) {
    const WhatIfResult fill_drain = Ask({.kind = "gpipe"}, size);
    EXPECT_EQ(fill_drain.peak_activations, size.micro_batches);
    EXPECT_EQ(fill_drain.peak_stashed, 0);
    const WhatIfResult one_f_one_b = Ask({.kind = "1f1b"}, size);
    EXPECT_EQ(one_f_one_b.peak_activations, size.devices);
    for (int device = 0; device < size.devices; ++device) {
      EXPECT_EQ(one_f_one_b.peaks_per_device[device], size.devices - device);
    }
  }
  EXPECT_THAT(Ask({.kind = "1f1b"}, {4, 8}).peaks_per_device, ElementsAre(4, 3, 2, 1));
}

TEST(GoldenNumbersTest, PeaksWithRecomputation) {
  struct PeakCase {
    const char* kind;
    const char* mode;
    double full;
    double (*stashed)(const Size&);
  };
  const auto all = [](const Size& size) { return static_cast<double>(size.micro_batches); };
  const auto all_but_one = [](const Size& size) { return static_cast<double>(size.micro_batches - 1); };
  const auto one_per_device = [](const Size& size) { return static_cast<double>(size.devices); };
  for (const PeakCase& peak :
       {PeakCase{"gpipe", "always", 1, all}, PeakCase{"gpipe", "except_last", 2, all_but_one},
        PeakCase{"1f1b", "always", 1, one_per_device}, PeakCase{"1f1b", "except_last", 2, one_per_device},
        PeakCase{"1f1b", "skip_adjacent", 1, one_per_device}}) {
    for (const Size& size : kSizes) {
      const WhatIfResult result = Ask({.kind = peak.kind, .recompute = peak.mode}, size);
      EXPECT_EQ(result.peak_activations, peak.full) << peak.kind << " " << peak.mode;
      EXPECT_EQ(result.peak_stashed, peak.stashed(size)) << peak.kind << " " << peak.mode;
    }
  }
}

TEST(GoldenNumbersTest, SmallCases) {
  EXPECT_EQ(Ask({.kind = "1f1b"}, {1, 4}).makespan, 12);
  EXPECT_EQ(Ask({.kind = "1f1b"}, {1, 4}).peak_activations, 1);
  for (const char* kind : {"gpipe", "1f1b"}) {
    EXPECT_EQ(Ask({.kind = kind}, {4, 1}).makespan, 12) << kind;
    EXPECT_EQ(Ask({.kind = kind}, {4, 2}).makespan, 15) << kind;
  }
}

TEST(WhatIfTest, AHeavyDeviceIsOneAndAHalfTimesAsSlowUnlessTold) {
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3}, {4, 8}).makespan, 45);
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3, .heavy_scale = 1.5}, {4, 8}).makespan, 45);
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3, .heavy_scale = 1.0}, {4, 8}).makespan, 33);
  // On the same device the factors multiply.
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 3, .heavy_scale = 1.5, .last_scale = 2}, {4, 8}).ideal_time, 72);
  EXPECT_EQ(Ask({.kind = "gpipe", .heavy_device = 0, .heavy_scale = 3, .last_scale = 2}, {4, 8}).ideal_time, 72);
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
  EXPECT_EQ(result.schedule.ranks[1].size(), 9u);
  EXPECT_EQ(result.simulation.ranks[1].back().end, result.simulation.times[1].busy + kTicksPerUnit);
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
}

}  // namespace
}  // namespace penstock
