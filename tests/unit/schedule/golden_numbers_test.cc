// The golden numbers of every kind, exact; "auto" may be better, but not better than the lower bound.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/lower_bound.h"
#include "engine/schedule/recompute_pass.h"
#include "engine/schedule/what_if.h"
#include "tests/support/recompute_late.h"

namespace penstock {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

struct Size {
  int devices;
  int micro_batches;
};
constexpr std::array<Size, 4> kSizes = {{{4, 8}, {4, 16}, {8, 16}, {8, 32}}};
using Row = std::array<double, 4>;  // one number per size

// Costs of a table, or of a half of one.
enum class Costs { kEqual, kUnequal, kLastHeavy };

WhatIfOptions Options(const std::string& kind, std::optional<int> chunks, Costs costs = Costs::kEqual) {
  WhatIfOptions options{.kind = kind, .chunks = chunks};
  if (costs == Costs::kUnequal) {
    options.input = 1.2;
    options.weight = 0.8;
    options.hop = 0.1;
  }
  if (costs == Costs::kLastHeavy) options.last_scale = 1.5;
  return options;
}

WhatIfResult Ask(WhatIfOptions options, const Size& size) {
  options.devices = size.devices;
  options.micro_batches = size.micro_batches;
  auto result = WhatIf(options);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : WhatIfResult();
}

std::string Trace(const WhatIfOptions& options, const Size& size) {
  return options.kind + " v" + std::to_string(options.chunks.value_or(0)) + " " + options.recompute + " P" +
         std::to_string(size.devices) + " m" + std::to_string(size.micro_batches);
}

struct KindRow {
  const char* kind;
  std::optional<int> chunks;
  Row makespan;
};

// What the kind's lists can do at best on these costs.
double BoundOf(const WhatIfOptions& options, const WhatIfResult& result, const Size& size) {
  const auto kind = FindScheduleKind(options.kind);
  const int chunks = result.schedule.stages / size.devices;
  ScheduleCosts costs;
  costs.hop = std::llround(options.hop * kTicksPerUnit);
  for (int stage = 0; stage < result.schedule.stages; ++stage) {
    double scale = 1.0 / chunks;
    if (LaneOfStage(kind->placement, size.devices, stage) == options.heavy_device) scale *= 1.5;
    if (stage + 1 == result.schedule.stages) scale *= options.last_scale;
    const auto ticks = [&](double cost) { return std::llround(cost * scale * kTicksPerUnit); };
    costs.stages.push_back({.forward = ticks(options.forward),
                            .input_gradient = ticks(options.input),
                            .weight_gradient = ticks(options.weight)});
  }
  const Ticks bound = LowerBound({.kind = options.kind,
                                  .lanes = size.devices,
                                  .micro_batches = size.micro_batches,
                                  .chunks = chunks,
                                  .live_limit = options.limit},
                                 costs);
  return static_cast<double>(bound) / kTicksPerUnit;
}

void ExpectRows(const std::vector<KindRow>& rows, Costs costs) {
  for (const KindRow& row : rows) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const WhatIfOptions options = Options(row.kind, row.chunks, costs);
      SCOPED_TRACE(Trace(options, kSizes[i]));
      const WhatIfResult result = Ask(options, kSizes[i]);
      EXPECT_EQ(result.makespan, row.makespan[i]);
      EXPECT_GE(result.makespan, BoundOf(options, result, kSizes[i]));
    }
  }
}

TEST(GoldenNumbersTest, EqualCosts) {
  ExpectRows({{"gpipe", 1, {33, 57, 69, 117}},
              {"1f1b", 1, {33, 57, 69, 117}},
              {"interleaved-1f1b", 2, {28.5, 52.5, 58.5, 106.5}},
              {"interleaved-1f1b", 4, {26.25, 50.25, 53.25, 101.25}},
              {"looped-bfs", 2, {28.5, 52.5, 58.5, 106.5}},
              {"looped-bfs", 4, {26.25, 50.25, 53.25, 101.25}},
              {"zb-h1", 1, {27, 51, 55, 103}},
              {"zb-h2", 1, {27, 51, 55, 103}},
              {"interleaved-zb", 2, {25.5, 49.5, 51.5, 99.5}},
              {"interleaved-zb", 4, {24.75, 48.75, 49.75, 97.75}},
              {"zbv", 2, {25.5, 49.5, 51.5, 99.5}},
              {"dualpipe-v", 2, {25.5, 49.5, 51.5, 99.5}},
              {"forward-only", 1, {11, 19, 23, 39}},
              {"forward-only", 2, {9.5, 17.5, 19.5, 35.5}}},
             Costs::kEqual);
}

TEST(GoldenNumbersTest, UnequalHalvesAndAHop) {
  ExpectRows({{"gpipe", 1, {33.6, 57.6, 70.4, 118.4}},
              {"1f1b", 1, {34.6, 59.8, 73, 123.8}},
              {"zb-h1", 1, {29.4, 53.4, 60.6, 108.6}},
              {"zb-h2", 1, {27.3, 51.3, 55.7, 103.7}},
              {"interleaved-1f1b", 2, {29.9, 53.9, 61.5, 109.5}},
              {"looped-bfs", 2, {29.1, 53.1, 59.9, 107.9}},
              {"interleaved-zb", 2, {27.7, 51.7, 56.5, 104.5}},
              {"zbv", 2, {27.1, 51.1, 55.5, 103.5}},
              {"dualpipe-v", 2, {27.7, 51.7, 57.3, 105.3}},
              {"interleaved-1f1b", 4, {29.25, 53.25, 59.45, 107.45}},
              {"looped-bfs", 4, {26.85, 50.85, 54.65, 102.65}},
              {"interleaved-zb", 4, {27.45, 51.45, 55.65, 103.65}}},
             Costs::kUnequal);
}

TEST(GoldenNumbersTest, LastStageHeavy) {
  ExpectRows({{"gpipe", 1, {45, 81, 93, 165}},
              {"1f1b", 1, {45, 81, 93, 165}},
              {"zb-h1", 1, {39, 75, 79, 151}},
              {"zb-h2", 1, {39, 75, 79, 151}},
              {"interleaved-1f1b", 2, {34.5, 64.5, 70.5, 130.5}},
              {"looped-bfs", 2, {34.5, 64.5, 70.5, 130.5}},
              {"interleaved-zb", 2, {31.5, 61.5, 63.5, 123.5}},
              {"zbv", 2, {30.75, 60.75, 62.75, 122.75}},
              {"dualpipe-v", 2, {30, 60, 60, 120}},
              {"interleaved-1f1b", 4, {29.25, 56.25, 59.25, 113.25}},
              {"looped-bfs", 4, {29.25, 56.25, 59.25, 113.25}},
              {"interleaved-zb", 4, {27.75, 54.75, 55.75, 109.75}}},
             Costs::kLastHeavy);
}

TEST(GoldenNumbersTest, IdealsOfTheTables) {
  const auto ideal = [](const char* kind, int chunks, Costs costs) {
    Row row;
    for (size_t i = 0; i < kSizes.size(); ++i) row[i] = Ask(Options(kind, chunks, costs), kSizes[i]).ideal_time;
    return row;
  };
  for (const int chunks : {1, 2, 4}) {
    EXPECT_EQ(ideal("interleaved-zb", chunks, Costs::kEqual), (Row{24, 48, 48, 96}));
    EXPECT_EQ(ideal("interleaved-zb", chunks, Costs::kUnequal), (Row{24, 48, 48, 96}));
    EXPECT_EQ(ideal("forward-only", chunks, Costs::kEqual), (Row{8, 16, 16, 32}));
  }
  EXPECT_EQ(ideal("zb-h1", 1, Costs::kLastHeavy), (Row{36, 72, 72, 144}));
  EXPECT_EQ(ideal("zbv", 2, Costs::kLastHeavy), (Row{30, 60, 60, 120}));
  EXPECT_EQ(ideal("looped-bfs", 4, Costs::kLastHeavy), (Row{27, 54, 54, 108}));
}

// The window equals the makespan, except for zb-h2 and zbv (the ideal) and forward-only (m).
TEST(GoldenNumbersTest, Windows) {
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (const int chunks : {1, 2, 4}) {
      if (chunks < kind.min_chunks || chunks > kind.max_chunks || kind.name == "lag") continue;
      for (const Size& size : kSizes) {
        const WhatIfOptions options = Options(std::string(kind.name), chunks);
        SCOPED_TRACE(Trace(options, size));
        const WhatIfResult result = Ask(options, size);
        const bool no_barrier = kind.name == "zb-h2" || kind.name == "zbv" || kind.name == "forward-only";
        EXPECT_EQ(result.window, no_barrier ? result.ideal_time : result.makespan);
      }
    }
  }
}

TEST(GoldenNumbersTest, Peaks) {
  struct PeakCase {
    const char* kind;
    std::optional<int> chunks;
    double p4, p8;  // 0: as many as micro-batches
    bool flat;
  };
  for (const PeakCase& peak :
       {PeakCase{"gpipe", 1, 0, 0, true}, PeakCase{"1f1b", 1, 4, 8, false},
        PeakCase{"interleaved-1f1b", 2, 5.5, 11.5, false}, PeakCase{"interleaved-1f1b", 4, 4.75, 9.75, false},
        PeakCase{"looped-bfs", 2, 0, 0, true}, PeakCase{"looped-bfs", 4, 0, 0, true}, PeakCase{"zb-h1", 1, 4, 8, true},
        PeakCase{"zb-h2", 1, 7, 15, true}, PeakCase{"interleaved-zb", 2, 4, 8, true},
        PeakCase{"interleaved-zb", 4, 4, 8, true}, PeakCase{"zbv", 2, 4, 8, true},
        PeakCase{"dualpipe-v", 2, 4.5, 8.5, true}}) {
    for (const Size& size : kSizes) {
      const WhatIfOptions options = Options(peak.kind, peak.chunks);
      SCOPED_TRACE(Trace(options, size));
      const WhatIfResult result = Ask(options, size);
      const double of_size = size.devices == 4 ? peak.p4 : peak.p8;
      const double expected = of_size == 0 ? size.micro_batches : of_size;
      EXPECT_EQ(result.peak_activations, expected);
      EXPECT_EQ(result.peaks_per_device.front(), expected);
      if (peak.flat) {
        EXPECT_THAT(result.peaks_per_device, Each(expected));
      }
    }
  }
  EXPECT_THAT(Ask(Options("1f1b", 1), {4, 8}).peaks_per_device, ElementsAre(4, 3, 2, 1));
}

TEST(GoldenNumbersTest, SmallCases) {
  EXPECT_EQ(Ask(Options("1f1b", 1), {1, 4}).makespan, 12);
  EXPECT_EQ(Ask(Options("1f1b", 1), {1, 4}).peak_activations, 1);
  const auto row = [](const Size& size) {
    std::vector<double> makespans;
    for (const char* kind : {"gpipe", "1f1b", "zb-h1", "zbv"}) {
      makespans.push_back(Ask(Options(kind, std::nullopt), size).makespan);
    }
    return makespans;
  };
  EXPECT_THAT(row({4, 1}), ElementsAre(12, 12, 9, 9));
  EXPECT_THAT(row({4, 2}), ElementsAre(15, 15, 11, 11));
}

TEST(GoldenNumbersTest, RaggedGroups) {
  EXPECT_EQ(Ask(Options("interleaved-1f1b", 2), {4, 11}).makespan, 37.5);
  EXPECT_EQ(Ask(Options("interleaved-zb", 2), {4, 11}).makespan, 34.5);
  EXPECT_EQ(Ask(Options("interleaved-1f1b", 2), {8, 19}).makespan, 67.5);
  EXPECT_EQ(Ask(Options("interleaved-zb", 2), {8, 19}).makespan, 60.5);
}

TEST(GoldenNumbersTest, OverheadsOfUnequalHalvesAndAHop) {
  const auto overhead = [](const char* kind, int chunks) {
    return std::round(Ask(Options(kind, chunks, Costs::kUnequal), {8, 32}).overhead * 1000) / 10;
  };
  EXPECT_EQ(overhead("1f1b", 1), 29.0);
  EXPECT_EQ(overhead("interleaved-1f1b", 2), 14.1);
  EXPECT_EQ(overhead("zb-h1", 1), 13.1);
  EXPECT_EQ(overhead("dualpipe-v", 2), 9.7);
  EXPECT_EQ(overhead("interleaved-zb", 2), 8.9);
  EXPECT_EQ(overhead("zb-h2", 1), 8.0);
  EXPECT_EQ(overhead("interleaved-zb", 4), 8.0);
  EXPECT_EQ(overhead("zbv", 2), 7.8);
  EXPECT_EQ(overhead("looped-bfs", 4), 6.9);
  // At equal costs and memory, four chunks beat the V.
  EXPECT_EQ(std::round(Ask(Options("interleaved-zb", 4), {8, 32}).overhead * 1000) / 10, 1.8);
  EXPECT_EQ(std::round(Ask(Options("zbv", 2), {8, 32}).overhead * 1000) / 10, 3.6);
}

// Messages of four chunks against those of the V: 2(Pv-1)m and 2(2P-2)m.
TEST(GoldenNumbersTest, Messages) {
  const auto sends = [](const char* kind, int chunks, int lanes) {
    const auto schedule = Generate({.kind = kind, .lanes = lanes, .micro_batches = 32, .chunks = chunks});
    int count = 0;
    for (const auto& list : InsertCommunication(*schedule).lanes) {
      count += static_cast<int>(
          std::count_if(list.begin(), list.end(), [](const Action& action) { return IsSend(action.kind); }));
    }
    return count;
  };
  EXPECT_EQ(sends("1f1b", 1, 8), 2 * 7 * 32);
  EXPECT_EQ(sends("zb-h1", 1, 8), 2 * 7 * 32);
  EXPECT_EQ(sends("interleaved-1f1b", 2, 8), 2 * 15 * 32);
  EXPECT_EQ(sends("looped-bfs", 4, 8), 2 * 31 * 32);
  EXPECT_EQ(sends("interleaved-zb", 4, 8), 2 * 31 * 32);
  EXPECT_EQ(sends("zbv", 2, 8), 2 * 14 * 32);
  EXPECT_EQ(sends("dualpipe-v", 2, 8), 2 * 14 * 32);
  EXPECT_EQ(sends("forward-only", 2, 8), 15 * 32);
}

struct AutoCase {
  const char* name;
  Costs costs;
  int (*heavy)(int devices);  // null: none
  int (*limit)(int devices);
  Row at_most;
  std::array<bool, 4> is_bound;
};

TEST(GoldenNumbersTest, AutoIsAtLeastAsGoodAndWithinItsLimit) {
  const auto all = [](int p) { return p; };
  const auto half_more = [](int p) { return 3 * p / 2; };
  const auto double_less_one = [](int p) { return 2 * p - 1; };
  const auto first = [](int) { return 0; };
  const auto middle = [](int p) { return p / 2; };
  const auto last = [](int p) { return p - 1; };
  constexpr std::array<bool, 4> kNone = {}, kEach = {true, true, true, true};
  for (const AutoCase& golden :
       {AutoCase{"equal", Costs::kEqual, nullptr, all, {27, 51, 55, 103}, kEach},
        AutoCase{"unequal, P", Costs::kUnequal, nullptr, all, {29.4, 53.4, 60.6, 108.6}, kNone},
        AutoCase{"unequal, 3P/2", Costs::kUnequal, nullptr, half_more, {27.3, 51.3, 57.6, 105.8}, {true, true}},
        AutoCase{"unequal, 2P-1", Costs::kUnequal, nullptr, double_less_one, {27.3, 51.3, 55.7, 103.7}, kEach},
        AutoCase{"heavy last", Costs::kEqual, last, all, {39, 75, 79, 151}, kEach},
        AutoCase{"heavy middle", Costs::kEqual, middle, all, {38, 74, 76, 148}, kEach},
        AutoCase{"heavy first", Costs::kEqual, first, all, {37.5, 73.5, 75.5, 147.5}, kNone},
        AutoCase{"heavy first, 2P-1", Costs::kEqual, first, double_less_one, {36, 72, 72, 144}, kEach}}) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const int devices = kSizes[i].devices;
      WhatIfOptions options = Options("auto", std::nullopt, golden.costs);
      if (golden.heavy != nullptr) options.heavy_device = golden.heavy(devices);
      options.limit = golden.limit(devices);
      SCOPED_TRACE(std::string(golden.name) + ": " + Trace(options, kSizes[i]));
      const WhatIfResult result = Ask(options, kSizes[i]);
      const double bound = BoundOf(options, result, kSizes[i]);
      EXPECT_LE(result.makespan, golden.at_most[i]);
      EXPECT_GE(result.makespan, bound);
      EXPECT_LE(result.peak_activations, *options.limit);
      if (golden.is_bound[i]) {
        EXPECT_EQ(result.makespan, bound);
      }
    }
  }
}

struct RecomputeCase {
  const char* kind;
  const char* mode;
  Row early;
  std::optional<Row> late;
  double (*full)(const Size&);
  double (*stashed)(const Size&);
};

// F = I = W = R = 1. "Late" makes R wait for the gradient.
TEST(GoldenNumbersTest, Recomputation) {
  const auto one = [](const Size&) { return 1.0; };
  const auto two = [](const Size&) { return 2.0; };
  const auto half = [](const Size&) { return 0.5; };
  const auto all = [](const Size& size) { return static_cast<double>(size.micro_batches); };
  const auto all_but_one = [](const Size& size) { return static_cast<double>(size.micro_batches - 1); };
  const auto devices = [](const Size& size) { return static_cast<double>(size.devices); };
  const auto half_less = [](const Size& size) { return size.devices - 0.5; };
  const auto as_without = [](const Size& size) { return size.devices + (size.devices - 1) / 2.0; };
  constexpr Row kLateFused = {44, 76, 92, 156}, kLateSplit = {38, 70, 78, 142};
  for (const RecomputeCase& golden :
       {RecomputeCase{"gpipe", "always", {41, 73, 85, 149}, kLateFused, one, all},
        RecomputeCase{"gpipe", "except_last", {40, 72, 84, 148}, {}, two, all_but_one},
        RecomputeCase{"1f1b", "always", {41, 73, 85, 149}, kLateFused, one, devices},
        RecomputeCase{"1f1b", "except_last", {40, 72, 84, 148}, {}, two, devices},
        RecomputeCase{"1f1b", "skip_adjacent", {39, 71, 83, 147}, {}, one, devices},
        RecomputeCase{"interleaved-1f1b", "always", {36.5, 68.5, 74.5, 138.5}, kLateSplit, half, as_without},
        RecomputeCase{"zb-h1", "always", {35, 67, 71, 135}, kLateSplit, devices, devices},
        RecomputeCase{"zbv", "always", {33.5, 65.5, 67.5, 131.5}, Row{35, 67, 71, 135}, half_less, devices}}) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      WhatIfOptions options = Options(golden.kind, std::nullopt);
      options.recompute = golden.mode;
      SCOPED_TRACE(Trace(options, kSizes[i]));
      const WhatIfResult result = Ask(options, kSizes[i]);
      EXPECT_EQ(result.makespan, golden.early[i]);
      EXPECT_EQ(result.peak_activations, golden.full(kSizes[i]));
      EXPECT_EQ(result.peak_stashed, golden.stashed(kSizes[i]));
      if (!golden.late) continue;
      const auto late = WhatIf(testing::RecomputeLate(InsertCommunication(result.schedule)), options);
      ASSERT_TRUE(late.ok()) << late.status();
      EXPECT_EQ(late->makespan, (*golden.late)[i]);
      const int chunks = result.schedule.stages / kSizes[i].devices;
      EXPECT_EQ(late->makespan - result.makespan, (kSizes[i].devices - 1.0) / chunks);
    }
  }
}

}  // namespace
}  // namespace penstock
