#include "engine/plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <tuple>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/plan/planner.h"
#include "engine/plan/search_space.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kMegabytes = 1 << 20;

// F = I = W = 1 ms, B = `fused` ms, per micro-batch of any size.
LayerProfile Layer(double scale = 1, double fused = 2) {
  LayerProfile layer;
  layer.forward_seconds = scale * 0.001;
  layer.input_gradient_seconds = scale * 0.001;
  layer.weight_gradient_seconds = scale * 0.001;
  layer.backward_seconds = scale * fused * 0.001;
  layer.output_bytes = kMegabytes;
  layer.stash_bytes = 4 * kMegabytes;
  layer.parameter_bytes = 10 * kMegabytes;
  return layer;
}

PlanRequest SearchRequest(int layers, int devices, OpenChoices open = {true, true, true, true}) {
  PlanRequest request;
  for (int i = 0; i < layers; ++i) request.layers.push_back({"linear", "layer" + std::to_string(i), {}});
  for (int d = 0; d < devices; ++d) request.devices.push_back({"cpu:" + std::to_string(d), {d}, 0});
  request.schedule = {"1f1b", 8, CheckpointMode::kNever};
  request.limits.open = open;
  return request;
}

PlanSearch Search(const PlanRequest& request, const SizeProfile& profile) {
  absl::StatusOr<PlanSearch> search = SearchPlans(request, profile, {});
  EXPECT_TRUE(search.ok()) << search.status();
  return search.ok() ? *std::move(search) : PlanSearch();
}

SizeProfile Same(const std::vector<LayerProfile>& layers) { return SizeProfile(layers); }

// Costs with a fixed part: of `rows` rows, fixed + rows * each.
SizeProfile BySize(int layers, double fixed_ms, double row_ms) {
  SizeProfile profile;
  for (int64_t rows : {1, 32}) {
    profile.Add(rows, std::vector<LayerProfile>(layers, Layer(fixed_ms + static_cast<double>(rows) * row_ms)));
  }
  return profile;
}

const PlanCandidate* Find(const PlanSearch& search, const std::string& kind) {
  for (const PlanCandidate& one : search.candidates) {
    if (one.schedule.kind == kind) return &one;
  }
  return nullptr;
}

TEST(Search, NothingOpenIsOneCandidateWithTheGoldenMakespan) {
  const PlanSearch search = Search(SearchRequest(4, 4, {}), Same(std::vector<LayerProfile>(4, Layer())));
  ASSERT_EQ(search.candidates.size(), 1);
  EXPECT_NEAR(search.candidates[0].makespan_seconds, 0.033, 1e-9);  // 1F1B: (m + P - 1) * 3 ms with P 4, m 8
  EXPECT_EQ(search.candidates[0].messages, 2 * 3 * 8);
  EXPECT_NEAR(search.candidates[0].bubble, 1 - 24.0 / 33, 1e-9);
  EXPECT_TRUE(search.complete);
}

TEST(Search, SplitsWhereTheHalvesFillTheBubble) {
  PlanRequest request = SearchRequest(4, 4, {.kind = true});
  const PlanSearch search = Search(request, Same(std::vector<LayerProfile>(4, Layer())));
  ASSERT_FALSE(search.candidates.empty());
  const PlanCandidate* zb = Find(search, "zb-h1");
  const PlanCandidate* plain = Find(search, "1f1b");
  ASSERT_NE(zb, nullptr);
  ASSERT_NE(plain, nullptr);
  EXPECT_NEAR(zb->makespan_seconds, 0.027, 1e-9);  // zero bubble: 3m + P - 1 ms
  EXPECT_NEAR(plain->makespan_seconds, 0.033, 1e-9);
  EXPECT_NEAR(search.candidates[0].makespan_seconds, 0.027, 1e-9);
}

TEST(Search, DoesNotSplitWhereTheHalvesCostMoreThanTheyFill) {
  PlanRequest request = SearchRequest(4, 4, {.kind = true});
  // One backward takes as long as one of its halves: many tiny operations.
  const PlanSearch search = Search(request, Same(std::vector<LayerProfile>(4, Layer(1, 1.2))));
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_EQ(search.candidates[0].schedule.kind, "1f1b");
  for (const PlanCandidate& one : search.candidates) {
    EXPECT_GE(one.makespan_seconds * (1 + kEqualMakespan), search.candidates[0].makespan_seconds)
        << DescribeSchedule(one.schedule);
  }
}

TEST(Search, DoesNotSplitWhereNobodyMeasuredTheHalves) {
  LayerProfile layer = Layer();
  layer.input_gradient_seconds = layer.weight_gradient_seconds = 0;
  const PlanSearch search = Search(SearchRequest(4, 4, {.kind = true}), Same(std::vector<LayerProfile>(4, layer)));
  EXPECT_EQ(Find(search, "zb-h1"), nullptr);
  EXPECT_NE(Find(search, "1f1b"), nullptr);
  ASSERT_FALSE(search.refused.empty());
  EXPECT_THAT(std::string(search.refused[0].why.message()), HasSubstr("not measured"));
}

TEST(Search, FewMicroBatchesWhereSmallOnesAreDear) {
  const OpenChoices open = {.micro_batches = true};
  const PlanSearch dear = Search(SearchRequest(4, 2, open), BySize(4, 4, 0.1));
  const PlanSearch cheap = Search(SearchRequest(4, 2, open), BySize(4, 0, 0.1));
  ASSERT_FALSE(dear.candidates.empty());
  ASSERT_FALSE(cheap.candidates.empty());
  EXPECT_LE(dear.candidates[0].schedule.micro_batches, 2);
  EXPECT_EQ(cheap.candidates[0].schedule.micro_batches, 32);
  EXPECT_EQ(cheap.candidates[0].micro_batch_rows, 1);
  EXPECT_EQ(dear.candidates[0].micro_batch_rows, 32 / dear.candidates[0].schedule.micro_batches);
}

TEST(Search, KeepsWhatIsGiven) {
  PlanRequest request = SearchRequest(4, 2, {.kind = true, .micro_batches = true});
  request.schedule.checkpoint = CheckpointMode::kAlways;
  for (const PlanCandidate& one : Search(request, BySize(4, 0.1, 0.1)).candidates) {
    EXPECT_EQ(one.schedule.checkpoint, CheckpointMode::kAlways);
    EXPECT_EQ(one.schedule.chunks, 1);
  }
  request = SearchRequest(4, 2);
  request.cut.balance = {1, 3};
  for (const PlanCandidate& one : Search(request, BySize(4, 0.1, 0.1)).candidates) {
    EXPECT_THAT(one.cut.balance, ElementsAre(1, 3));
  }
}

TEST(Search, KeepsToItsLimits) {
  PlanRequest request = SearchRequest(8, 2);
  request.limits.kinds = {"gpipe", "interleaved-1f1b"};
  request.limits.max_chunks = 2;
  request.limits.micro_batches = {3, 5};
  request.limits.mini_batch_rows = 30;
  std::set<std::pair<std::string, int>> seen;
  for (const PlanCandidate& one : Search(request, BySize(8, 0.1, 0.1)).candidates) {
    seen.emplace(one.schedule.kind, one.schedule.micro_batches);
    EXPECT_LE(one.schedule.chunks, 2);
    EXPECT_EQ(one.micro_batch_rows, 30 / one.schedule.micro_batches);
  }
  EXPECT_THAT(seen,
              ::testing::UnorderedElementsAre(std::pair("gpipe", 3), std::pair("gpipe", 5),
                                              std::pair("interleaved-1f1b", 3), std::pair("interleaved-1f1b", 5)));
}

TEST(Search, NamesTheFaultOfALimit) {
  const auto field = [](const PlanLimits& limits) {
    PlanRequest request = SearchRequest(4, 2);
    request.limits = limits;
    return ValuesOf(SearchPlans(request, Same(std::vector<LayerProfile>(4, Layer())), {}).status())["field"];
  };
  EXPECT_EQ(field({.kinds = {"1f1b", "forward-only"}}), "limits.kinds[1]");
  EXPECT_EQ(field({.max_chunks = 0}), "limits.max_chunks");
  EXPECT_EQ(field({.micro_batches = {2, 0}}), "limits.micro_batches[1]");
  EXPECT_EQ(field({.mini_batch_rows = -1}), "limits.mini_batch_rows");
}

TEST(Search, ChunksThatDoNotFitAreRefusedByName) {
  PlanRequest request = SearchRequest(3, 2, {});
  request.schedule.kind = "interleaved-1f1b";
  request.schedule.chunks = 4;
  const absl::Status refused = SearchPlans(request, Same(std::vector<LayerProfile>(3, Layer())), {}).status();
  EXPECT_EQ(ReasonOf(refused), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(refused)["field"], "spec.schedule.chunks");
  request.schedule.kind = "1f1b";
  request.schedule.chunks = 2;
  request.layers.push_back({"linear", "more", {}});
  const PlanSearch search = Search(request, Same(std::vector<LayerProfile>(4, Layer())));
  EXPECT_THAT(search.candidates, IsEmpty());
  EXPECT_EQ(ValuesOf(search.WhyNone())["field"], "spec.schedule.chunks");
  EXPECT_EQ(ReasonOf(search.WhyNone()), "SPEC_INVALID");
}

TEST(Search, RecomputesOnlyWhereMemoryIsShort) {
  const std::vector<LayerProfile> layers(4, Layer());
  PlanRequest request = SearchRequest(4, 2, {.checkpoint = true});
  request.schedule.kind = "gpipe";
  PlanSearch search = Search(request, Same(layers));
  ASSERT_EQ(search.candidates.size(), 1);
  EXPECT_EQ(search.candidates[0].schedule.checkpoint, CheckpointMode::kNever);
  // State of two layers: 80 MiB. Eight micro-batches keep 64 MiB; one keeps 8, and their inputs at most 9 or so.
  for (Device& device : request.devices) device.memory_limit_bytes = 115 * kMegabytes;
  search = Search(request, Same(layers));
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_NE(search.candidates[0].schedule.checkpoint, CheckpointMode::kNever);
  ASSERT_FALSE(search.refused.empty());
  EXPECT_EQ(search.refused[0].schedule.checkpoint, CheckpointMode::kNever);
  EXPECT_EQ(ReasonOf(search.refused[0].why), "PLAN_DOES_NOT_FIT");
  for (const PlanCandidate& one : search.candidates) {
    for (const DeviceNeed& need : one.memory) EXPECT_LE(need.buffers.total(), need.limit_bytes);
  }
}

TEST(Search, LimitsSteerTheCutOfUnequalLayers) {
  std::vector<LayerProfile> layers(6, Layer());
  for (int i = 0; i < 3; ++i) layers[i] = Layer(0.5);  // by time: four layers, then two
  PlanRequest request = SearchRequest(6, 2, {.kind = true});
  PlanSearch search = Search(request, Same(layers));
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_THAT(search.candidates[0].cut.balance, ElementsAre(4, 2));
  request.devices[0].memory_limit_bytes = 150 * kMegabytes;  // not even the state of four layers
  search = Search(request, Same(layers));
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_EQ(search.candidates[0].cut.balance[0], 3);
  auto plan = PlanOf(request, Same(layers), search.candidates[0]);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->stages[0].layers.size(), 3);
}

TEST(Search, NothingFitsNamesTheDeviceItsLaneAndTheLargestClass) {
  PlanRequest request = SearchRequest(4, 2);
  for (Device& device : request.devices) device.memory_limit_bytes = 50 * kMegabytes;
  const PlanSearch search = Search(request, Same(std::vector<LayerProfile>(4, Layer())));
  EXPECT_THAT(search.candidates, IsEmpty());
  const absl::Status why = search.WhyNone();
  EXPECT_EQ(ReasonOf(why), "PLAN_DOES_NOT_FIT");
  EXPECT_EQ(ValuesOf(why)["device"], "cpu:0");
  EXPECT_EQ(ValuesOf(why)["lane"], "0");
  EXPECT_THAT(std::string(why.message()), HasSubstr("largest class is optimizer state"));
}

TEST(Search, MovesABoundaryWhereTheBottleneckMisleads) {
  // Both cuts have a bottleneck of 4 layers' time, but a short first stage fills the pipeline sooner.
  std::vector<LayerProfile> layers = {Layer(1), Layer(3), Layer(1), Layer(3)};
  PlanRequest request = SearchRequest(4, 3, {});
  request.schedule = {"1f1b", 2, CheckpointMode::kNever};
  const PlanSearch search = Search(request, Same(layers));
  ASSERT_EQ(search.candidates.size(), 1);
  std::vector<double> all;
  for (const std::vector<int>& balance : std::vector<std::vector<int>>{{1, 1, 2}, {1, 2, 1}, {2, 1, 1}}) {
    PlanRequest fixed = request;
    fixed.cut.balance = balance;
    all.push_back(Search(fixed, Same(layers)).candidates[0].makespan_seconds);
  }
  EXPECT_DOUBLE_EQ(search.candidates[0].makespan_seconds, *std::min_element(all.begin(), all.end()));
}

TEST(Search, AtMostTwentyInOrder) {
  PlanRequest request = SearchRequest(24, 4);
  const PlanSearch search = Search(request, BySize(24, 0.01, 0.1));
  EXPECT_EQ(search.candidates.size(), kMaxCandidates);
  EXPECT_GT(search.considered, kMaxCandidates);
  std::vector<int64_t> makespans;
  for (const PlanCandidate& one : search.candidates) makespans.push_back(std::llround(one.makespan_seconds * 1e9));
  const int64_t best = *std::min_element(makespans.begin(), makespans.end());
  const int64_t quantum = static_cast<int64_t>(static_cast<double>(best) * kEqualMakespan) + 1;
  std::vector<std::tuple<int64_t, int64_t, int64_t>> keys;
  for (size_t i = 0; i < search.candidates.size(); ++i) {
    const PlanCandidate& one = search.candidates[i];
    keys.emplace_back((makespans[i] - best) / quantum, one.peak_bytes(), one.messages);
  }
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
}

// On one device every number of micro-batches takes equally long but for the rounding of each pass, and the smallest
// micro-batches keep least. They come last in the search space, after more than kMaxCandidates others.
TEST(Search, OfMakespansThatOnlyRoundingTellsApartTheFewestBytesWin) {
  PlanRequest request = SearchRequest(1, 1, {.micro_batches = true});
  request.limits.mini_batch_rows = 720;
  for (int m = 1; m <= 720; ++m) {
    if (720 % m == 0) request.limits.micro_batches.push_back(m);
  }
  ASSERT_GT(request.limits.micro_batches.size(), kMaxCandidates);
  SizeProfile profile;
  for (const int64_t rows : {1, 720}) {
    LayerProfile layer = Layer(static_cast<double>(rows) * 0.3336e-3);  // 333.6 ns of forward for each row
    layer.stash_bytes = rows * kMegabytes;
    profile.Add(rows, {layer});
  }
  const PlanSearch search = Search(request, profile);
  std::set<double> makespans;
  for (const PlanCandidate& one : search.candidates) makespans.insert(one.makespan_seconds);
  EXPECT_GT(makespans.size(), 1) << "rounding has made no difference";
  ASSERT_FALSE(search.candidates.empty());
  EXPECT_EQ(search.candidates[0].schedule.micro_batches, 720);
}

TEST(Search, PruningLosesNothing) {
  // The makespans of the best twenty are those of all, evaluated one by one.
  PlanRequest request = SearchRequest(12, 4);
  const SizeProfile profile = BySize(12, 0.3, 0.1);
  const PlanSearch search = Search(request, profile);
  EXPECT_GT(search.skipped, 0);
  std::vector<double> all;
  for (const ScheduleSpec& schedule : SearchSpace(request, 4)) {
    PlanRequest one = request;
    one.limits.open = {};
    one.limits.mini_batch_rows = kDefaultMiniBatchRows;
    one.schedule = schedule;
    const absl::StatusOr<PlanSearch> found = SearchPlans(one, profile, {});
    if (found.ok() && !found->candidates.empty()) all.push_back(found->candidates[0].makespan_seconds);
  }
  ASSERT_GT(all.size(), kMaxCandidates);
  EXPECT_DOUBLE_EQ(search.candidates[0].makespan_seconds, *std::min_element(all.begin(), all.end()));
}

TEST(Search, EqualRequestsHaveEqualAnswers) {
  const PlanRequest request = SearchRequest(16, 4);
  const SizeProfile profile = BySize(16, 0.05, 0.1);
  const PlanSearch a = Search(request, profile);
  const PlanSearch b = Search(request, profile);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  for (size_t i = 0; i < a.candidates.size(); ++i) {
    EXPECT_EQ(DescribeSchedule(a.candidates[i].schedule), DescribeSchedule(b.candidates[i].schedule));
    EXPECT_EQ(a.candidates[i].cut.balance, b.candidates[i].cut.balance);
    EXPECT_EQ(a.candidates[i].makespan_seconds, b.candidates[i].makespan_seconds);
  }
}

TEST(Search, WhenTimeIsUpItHasTheBestSoFar) {
  int asked = 0;
  const SearchBudget budget = {.out_of_time = [&] { return ++asked > 5; }};
  const auto search = SearchPlans(SearchRequest(16, 4), BySize(16, 0.05, 0.1), budget);
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_FALSE(search->complete);
  EXPECT_EQ(search->considered, 6) << "the first one in any case";
  EXPECT_FALSE(search->candidates.empty());
  const auto late = SearchPlans(SearchRequest(16, 4), BySize(16, 0.05, 0.1), {.out_of_time = [] { return true; }});
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->candidates.size(), 1) << "there was no time, but there must be a plan";
}

TEST(Search, TheMostWorkEndsItToo) {
  const auto search = SearchPlans(SearchRequest(16, 4), BySize(16, 0.05, 0.1), {.max_work = 2000});
  ASSERT_TRUE(search.ok()) << search.status();
  EXPECT_FALSE(search->complete);
  EXPECT_FALSE(search->candidates.empty());
}

TEST(Search, CountsTheMemoryOfAllChunksOfALane) {
  PlanRequest request = SearchRequest(4, 2, {});
  request.schedule = {"interleaved-1f1b", 4, CheckpointMode::kNever, 2};
  const PlanSearch search = Search(request, Same(std::vector<LayerProfile>(4, Layer())));
  ASSERT_EQ(search.candidates.size(), 1);
  ASSERT_EQ(search.candidates[0].memory.size(), 2);
  const DeviceNeed& first = search.candidates[0].memory[0];
  EXPECT_EQ(first.buffers[BufferClass::kWeights], 20 * kMegabytes);
  EXPECT_EQ(first.buffers[BufferClass::kOptimizerState], 40 * kMegabytes);
  // Interleaved 1F1B holds P + (P-1)/v u on lane 0, here 2.5 u of two layers' 8 MiB.
  EXPECT_EQ(first.buffers[BufferClass::kActivations], 20 * kMegabytes);
}

// The wall time is printed, not asserted; the number of simulated actions bounds it on every machine.
TEST(Search, PlansAGptOf96LayersOnEightDevices) {
  std::vector<LayerProfile> small(98, Layer(0.2, 1.9));
  std::vector<LayerProfile> large(98, Layer(4, 1.9));
  for (std::vector<LayerProfile>* layers : {&small, &large}) {
    layers->front() = Layer(0.3);
    layers->back() = Layer(1.5);
  }
  SizeProfile profile;
  profile.Add(1, small);
  profile.Add(32, large);
  PlanRequest request = SearchRequest(98, 8);
  const int64_t begin = RealClock()->NowNanos();
  const PlanSearch search = Search(request, profile);
  const double seconds = static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
  std::printf("98 layers on 8 devices: %d schedules, %d skipped, %.3f s\n", search.considered, search.skipped, seconds);
  for (size_t i = 0; i < search.candidates.size(); ++i) {
    std::printf("%2zu %s: %.3f ms\n", i + 1, DescribeSchedule(search.candidates[i].schedule).c_str(),
                search.candidates[i].makespan_seconds * 1e3);
  }
  EXPECT_TRUE(search.complete);
  EXPECT_EQ(search.candidates.size(), kMaxCandidates);
}

}  // namespace
}  // namespace penstock
