// Promises over every kind and size up to 8 lanes, 40 micro-batches and 4 chunks, with random costs and a fixed seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <string>

#include "engine/schedule/build.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/credits.h"
#include "engine/schedule/fuse_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/lower_bound.h"
#include "engine/schedule/simulate.h"
#include "engine/schedule/torch_csv.h"

namespace penstock {
namespace {

constexpr int kMaxTestedLanes = 8;
constexpr int kMaxTestedMicroBatches = 40;
constexpr int kMaxChunks = 4;
constexpr RecomputeMode kModes[] = {RecomputeMode::kNever, RecomputeMode::kExceptLast, RecomputeMode::kAlways,
                                    RecomputeMode::kSkipAdjacent};

// Calls visit(kind, request) for every kind and every small size that it takes. "lag" gets some lag of 0 to 2P, "auto"
// some limit of 1 to 2P, both the same in every run.
template <typename Visit>
void ForEachCase(const Visit& visit) {
  std::mt19937 random(42);
  int visited = 0;
  for (const ScheduleKind& kind : ScheduleKinds()) {
    for (int lanes = 1; lanes <= kMaxTestedLanes; ++lanes) {
      for (int micro_batches = MinMicroBatches(kind, lanes); micro_batches <= kMaxTestedMicroBatches; ++micro_batches) {
        for (int chunks = kind.min_chunks; chunks <= std::min(kMaxChunks, kind.max_chunks); ++chunks) {
          ScheduleRequest request{
              .kind = std::string(kind.name), .lanes = lanes, .micro_batches = micro_batches, .chunks = chunks};
          if (kind.name == "lag") request.lag = static_cast<int>(random() % (2 * lanes + 1));
          if (kind.name == "auto") request.live_limit = 1 + static_cast<int>(random() % (2 * lanes));
          SCOPED_TRACE(request.kind + " P" + std::to_string(lanes) + " m" + std::to_string(micro_batches) + " v" +
                       std::to_string(chunks) + " lag " + std::to_string(request.lag.value_or(-1)) + " limit " +
                       std::to_string(request.live_limit.value_or(-1)));
          ++visited;
          visit(kind, request);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(visited, 7000);
}

StageCosts RandomCosts(std::mt19937* random) {
  std::uniform_int_distribution<Ticks> cost(0, 3 * kTicksPerUnit);
  return {.forward = cost(*random),
          .input_gradient = cost(*random),
          .weight_gradient = cost(*random),
          .recompute = cost(*random),
          .optimizer = cost(*random)};
}

// One case in three knows what a fused backward costs: less than its halves, or even more.
ScheduleCosts RandomCosts(int stages, std::mt19937* random) {
  ScheduleCosts costs;
  const bool fused_known = (*random)() % 3 == 0;
  for (int stage = 0; stage < stages; ++stage) {
    StageCosts& own = costs.stages.emplace_back(RandomCosts(random));
    if (fused_known) {
      own.backward = (own.input_gradient + own.weight_gradient) * static_cast<Ticks>(5 + (*random)() % 6) / 9;
    }
  }
  costs.hop = std::uniform_int_distribution<Ticks>(0, kTicksPerUnit)(*random);
  costs.optimizer_barrier = (*random)() % 2 == 0;
  for (int stage = 1; stage < stages; ++stage) {
    if ((*random)() % 4 != 0) continue;  // a link
    costs.edges[{stage - 1, stage}] = {.transfer = std::uniform_int_distribution<Ticks>(0, kTicksPerUnit)(*random),
                                       .latency = std::uniform_int_distribution<Ticks>(0, kTicksPerUnit)(*random)};
  }
  return costs;
}

Ticks TotalCost(const StageCosts& costs, ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return costs.forward;
    case ActionKind::kBackward:
      return costs.backward.value_or(costs.input_gradient + costs.weight_gradient);
    case ActionKind::kInputGradient:
      return costs.input_gradient;
    case ActionKind::kWeightGradient:
      return costs.weight_gradient;
    case ActionKind::kRecompute:
      return costs.recompute;
    case ActionKind::kOptimizer:
      return costs.optimizer;
    default:
      return 0;
  }
}

SchedulePurpose WholeStep(const ScheduleKind& kind) {
  return kind.trains ? SchedulePurpose::kTrainingStep : SchedulePurpose::kForwardOnly;
}

BuildRequest ToBuild(const ScheduleRequest& request, SchedulePurpose purpose) {
  return {.kind = request.kind,
          .purpose = purpose,
          .lanes = request.lanes,
          .chunks = request.chunks,
          .lag = request.lag,
          .live_limit = request.live_limit,
          .costs = request.costs,
          .micro_batches = request.micro_batches};
}

// Every lane works its list off in order, nothing overlaps, and all time is accounted for.
void ExpectSoundTimes(const Schedule& schedule, const ScheduleCosts& costs, const Simulation& simulation) {
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    const LaneTimes& times = simulation.times[lane];
    EXPECT_EQ(times.busy + times.fill + times.wait_activation + times.wait_gradient + times.wait_barrier + times.drain,
              simulation.makespan);
    Ticks busy = 0, clock = 0;
    ASSERT_EQ(simulation.lanes[lane].size(), schedule.lanes[lane].size());
    for (size_t position = 0; position < schedule.lanes[lane].size(); ++position) {
      const TimedAction& timed = simulation.lanes[lane][position];
      ASSERT_EQ(timed.action, schedule.lanes[lane][position]);
      ASSERT_GE(timed.start, clock);
      ASSERT_EQ(timed.end - timed.start, TotalCost(costs.stages[timed.action.stage], timed.action.kind));
      clock = timed.end;
      busy += timed.end - timed.start;
    }
    EXPECT_EQ(times.busy, busy);
    Ticks idle = 0, idle_clock = 0;
    for (const IdleSpan& span : simulation.idle[lane]) {
      ASSERT_GE(span.start, idle_clock);
      ASSERT_GT(span.end, span.start);
      idle_clock = span.end;
      idle += span.end - span.start;
    }
    EXPECT_EQ(busy + idle, simulation.makespan);
  }
  EXPECT_LE(simulation.ideal, simulation.window);
  EXPECT_LE(simulation.window, simulation.makespan);
}

// What is built verifies (BuildSchedule proves it) and simulates to its end at random costs, and nothing beats the
// bound.
TEST(SchedulePropertyTest, WholeStepsVerifyEndAndRespectTheLowerBound) {
  std::mt19937 random(20'240'229);
  int met = 0;
  ForEachCase([&](const ScheduleKind& kind, ScheduleRequest request) {
    request.costs = RandomCosts(request.lanes * request.chunks, &random);
    BuildRequest build = ToBuild(request, WholeStep(kind));
    build.recompute = kModes[random() % std::size(kModes)];
    const auto schedule = BuildSchedule(build);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    const auto simulation = Simulate(*schedule, request.costs);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    ExpectSoundTimes(*schedule, request.costs, *simulation);
    const Ticks bound = LowerBound(request, request.costs, build.recompute);
    ASSERT_GE(simulation->makespan, bound);
    if (simulation->makespan == bound) ++met;
  });
  EXPECT_GT(met, 300);  // so the bound says something
}

// At equal costs the bound is what these kinds take, from one micro-batch per lane on.
TEST(SchedulePropertyTest, TheLowerBoundIsMetAtEqualCosts) {
  ForEachCase([](const ScheduleKind& kind, const ScheduleRequest& request) {
    const bool tight = kind.name == "gpipe" || kind.name == "1f1b" || kind.name == "zb-h1" ||
                       kind.name == "forward-only" || kind.name == "looped-bfs";
    if (!tight || request.micro_batches < request.lanes) return;
    const ScheduleCosts costs{.stages = std::vector<StageCosts>(request.lanes * request.chunks)};
    const auto simulation = Simulate(*Generate(request), costs);
    EXPECT_EQ(simulation->makespan, LowerBound(request, costs));
  });
}

// Credits per edge: one is enough for the kinds in which no lane works far ahead; the others need as many as MinCredits
// says, and not fewer.
TEST(SchedulePropertyTest, ListsRunWithTheLeastCreditsAndNotWithFewer) {
  ForEachCase([](const ScheduleKind& kind, const ScheduleRequest& request) {
    if (request.lanes == 1 || request.micro_batches % 3 != 0) return;
    const auto schedule = BuildSchedule(ToBuild(request, WholeStep(kind)));
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    const int least = MinCredits(*schedule);
    const bool tidy = kind.name == "zbv" || kind.name == "dualpipe-v" ||
                      (request.chunks == 1 && kind.name != "lag" && kind.name != "auto");
    if (tidy) {
      EXPECT_EQ(least, 1);
    }
    EXPECT_LE(least, request.micro_batches);
    EXPECT_TRUE(Verify(*schedule, {.purpose = WholeStep(kind), .credits = least}).ok());
    if (least > 1) {
      const auto fewer = Verify(*schedule, {.purpose = WholeStep(kind), .credits = least - 1});
      EXPECT_EQ(fewer.ok(), false);
    }
  });
}

// With equal stages and free links both one-chunk kinds take (m + P - 1)(F + B), inference (m + (P-1)/v) F.
TEST(SchedulePropertyTest, EqualCostsMatchTheClosedForm) {
  std::mt19937 random(7);
  ForEachCase([&](const ScheduleKind& kind, const ScheduleRequest& request) {
    const Ticks p = request.lanes, m = request.micro_batches, v = request.chunks;
    StageCosts stage = RandomCosts(&random);
    const Ticks work = v * (stage.forward + (kind.trains ? stage.input_gradient + stage.weight_gradient : 0));
    const auto simulation = Simulate(*Generate(request), {.stages = std::vector<StageCosts>(p * v, stage)});
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    EXPECT_EQ(simulation->ideal, m * work);
    if (kind.name == "gpipe" || kind.name == "1f1b" ||
        ((kind.name == "forward-only" || kind.name == "looped-bfs") && m >= p)) {
      EXPECT_EQ(simulation->makespan, m * work + (p - 1) * work / v);
    }
  });
}

// The rows of the table of overheads where F = I = W: what stays idle is (P-1) of so many thirds of a chunk.
TEST(SchedulePropertyTest, OverheadsOfTheTable) {
  ForEachCase([](const ScheduleKind& kind, const ScheduleRequest& request) {
    const Ticks p = request.lanes, m = request.micro_batches, v = request.chunks;
    if (m < 2 * p - 1) return;
    const StageCosts third{.forward = 60, .input_gradient = 60, .weight_gradient = 60};
    const auto simulation = Simulate(*Generate(request), {.stages = std::vector<StageCosts>(p * v, third)});
    const Ticks idle = simulation->makespan - simulation->ideal;
    const bool ragged = m % p != 0;
    std::optional<Ticks> expected;
    if (kind.name == "interleaved-1f1b" && v > 1 && !ragged) expected = (p - 1) * 180;
    if (kind.name == "interleaved-zb" && !ragged) expected = (p - 1) * 60;
    for (const char* name : {"zb-h1", "zb-h2", "zbv", "dualpipe-v"}) {
      if (kind.name == name) expected = (p - 1) * 60;
    }
    if (expected) {
      EXPECT_EQ(idle, *expected);
    }
    if (kind.name == "zb-h2" || kind.name == "zbv") {
      EXPECT_EQ(simulation->window, simulation->ideal);
    }
  });
}

// Largest group of micro-batches that visits every chunk before the next.
int FirstGroup(int lanes, int micro_batches) {
  const int groups = std::max(1, micro_batches / lanes);
  return (micro_batches + groups - 1) / groups;
}

// Stage activations that a lane holds at most; nothing: auto, and zbv with few micro-batches, have only a limit.
std::optional<int64_t> PeakFormula(const ScheduleRequest& request, int lane) {
  const int p = request.lanes, m = request.micro_batches, v = request.chunks, g = FirstGroup(p, m);
  if (request.kind == "gpipe" || request.kind == "looped-bfs") return m * v;
  if (request.kind == "1f1b") return std::min(m, p - lane);
  if (request.kind == "interleaved-1f1b") return std::min(v * m, (v - 1) * g + 2 * (p - 1 - lane) + 1);
  if (request.kind == "interleaved-zb") return std::min(v * m, (v - 1) * g + p);
  if (request.kind == "zb-h1") return std::min(m, p);
  if (request.kind == "zb-h2") return std::min(m, 2 * p - 1);
  if (request.kind == "lag") return std::min(m, *request.lag + 1);
  if (request.kind == "zbv" && m >= 2 * p - 1) return 2 * p;
  if (request.kind == "dualpipe-v") return 2 * p + 1;
  if (request.kind == "forward-only") return 1;
  return std::nullopt;
}

TEST(SchedulePropertyTest, PeaksMatchTheFormula) {
  ForEachCase([&](const ScheduleKind&, const ScheduleRequest& request) {
    const PeakActivations peaks = ComputePeaks(*Generate(request));
    for (int lane = 0; lane < request.lanes; ++lane) {
      if (const std::optional<int64_t> expected = PeakFormula(request, lane)) {
        EXPECT_EQ(peaks.full[lane], *expected) << "lane " << lane;
      } else {
        const int limit =
            request.kind == "auto" ? *request.live_limit : 2 * std::min(request.micro_batches, request.lanes);
        EXPECT_LE(peaks.full[lane], limit) << "lane " << lane;
      }
      EXPECT_EQ(peaks.stashed[lane], 0);
    }
  });
}

TEST(SchedulePropertyTest, CommunicationChangesNoTime) {
  std::mt19937 random(99);
  ForEachCase([&](const ScheduleKind&, ScheduleRequest request) {
    const ScheduleCosts costs = RandomCosts(request.lanes * request.chunks, &random);
    const Schedule schedule = InsertRecompute(*Generate(request), kModes[random() % std::size(kModes)]);
    const auto compute = Simulate(schedule, costs);
    const auto complete = Simulate(InsertCommunication(schedule), costs);
    ASSERT_TRUE(compute.ok() && complete.ok());
    EXPECT_EQ(compute->makespan, complete->makespan);
    EXPECT_EQ(compute->window, complete->window);
    EXPECT_EQ(compute->peaks.full, complete->peaks.full);
  });
}

// Where no other lane waits for the gradient, a split gains nothing; where costs are known, fusing never loses time.
TEST(SchedulePropertyTest, FusingLosesNoTime) {
  std::mt19937 random(1234);
  int64_t fused_free = 0, fused_for_costs = 0;
  ForEachCase([&](const ScheduleKind&, const ScheduleRequest& request) {
    ScheduleCosts costs = RandomCosts(request.lanes * request.chunks, &random);
    const Schedule split = *Generate(request);
    const Schedule paying = *FuseWhereItPays(split, costs);
    const Schedule free = FuseBackward(split, FuseMode::kFree);
    EXPECT_LE(Simulate(paying, costs)->makespan, Simulate(free, costs)->makespan);
    if (paying != free) ++fused_for_costs;
    for (StageCosts& stage : costs.stages) stage.backward.reset();
    EXPECT_EQ(*FuseWhereItPays(split, costs), free);
    const auto before = Simulate(split, costs), after = Simulate(free, costs);
    EXPECT_EQ(before->makespan, after->makespan);
    EXPECT_EQ(before->window, after->window);
    EXPECT_EQ(before->peaks.full, after->peaks.full);
    if (free != split) ++fused_free;
  });
  EXPECT_GT(fused_free, 1000);
  EXPECT_GT(fused_for_costs, 20);
}

TEST(SchedulePropertyTest, ListsReadBack) {
  ForEachCase([&](const ScheduleKind& kind, const ScheduleRequest& request) {
    if (request.micro_batches % 4 != 0) return;
    const Schedule compute = *Generate(request);
    const Schedule complete = *BuildSchedule(ToBuild(request, WholeStep(kind)));
    for (const Schedule& schedule : {compute, complete}) {
      EXPECT_EQ(*ParseText(ToText(schedule)), schedule);
      EXPECT_EQ(*ParseCsv(ToCsv(schedule), schedule.kind), schedule);
      EXPECT_EQ(ReadSchedule(ToText(schedule))->schedule, schedule);
    }
    const Schedule messages = InsertCommunication(compute);
    EXPECT_EQ(ImportTorchCsv(*ExportTorchCsv(messages), messages.kind)->schedule, messages);
  });
}

// A pipeline also runs batches with fewer micro-batches than it was made for.
TEST(SchedulePropertyTest, ShortBatchesVerify) {
  for (int lanes = 1; lanes <= kMaxTestedLanes; ++lanes) {
    for (int micro_batches = 1; micro_batches < 2 * lanes; ++micro_batches) {
      BuildRequest build{.kind = "dualpipe-v", .lanes = lanes, .chunks = 2, .micro_batches = micro_batches};
      EXPECT_FALSE(BuildSchedule(build).ok());
      build.planned_micro_batches = 2 * lanes;
      const auto schedule = BuildSchedule(build);
      EXPECT_TRUE(schedule.ok()) << lanes << " " << micro_batches << schedule.status();
    }
  }
}

// Runs without a whole step stand where the kind puts its stages, and verify.
TEST(SchedulePropertyTest, PartsOfAStepVerify) {
  for (const SchedulePurpose purpose : {SchedulePurpose::kForwardOnly, SchedulePurpose::kBackwardOnly,
                                        SchedulePurpose::kOptimizerOnly, SchedulePurpose::kContribution}) {
    ForEachCase([&](const ScheduleKind& kind, const ScheduleRequest& request) {
      if (request.micro_batches % 8 != 0) return;
      const bool possible =
          kind.trains || purpose == SchedulePurpose::kForwardOnly || purpose == SchedulePurpose::kOptimizerOnly;
      BuildRequest build = ToBuild(request, purpose);
      build.recompute = kModes[request.micro_batches / 8 % std::size(kModes)];
      const auto schedule = BuildSchedule(build);
      ASSERT_EQ(schedule.ok(), possible) << schedule.status();
      if (!possible) return;
      EXPECT_EQ(LaneOfEachStage(*schedule), LanesOfStages(kind.placement, request.lanes, request.chunks));
      EXPECT_TRUE(Simulate(*schedule, {.stages = std::vector<StageCosts>(schedule->stages)}).ok());
    });
  }
}

}  // namespace
}  // namespace penstock
