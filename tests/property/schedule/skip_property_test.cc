// Promises over random skips, kinds and sizes, with a fixed seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/credits.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

constexpr int kMost = 8;  // stages and micro-batches
constexpr const char* kKinds[] = {"gpipe", "1f1b", "zb-h1", "looped-bfs", "interleaved-zb", "zbv"};
constexpr RecomputeMode kModes[] = {RecomputeMode::kNever, RecomputeMode::kExceptLast, RecomputeMode::kAlways,
                                    RecomputeMode::kSkipAdjacent};

// Each possible edge with probability one third, in random order.
std::vector<SkipEdge> RandomSkips(int stages, std::mt19937* random) {
  std::vector<SkipEdge> skips;
  for (int from = 0; from < stages; ++from) {
    for (int to = from + 1; to < stages; ++to) {
      if ((*random)() % 3 == 0) skips.push_back({from, to});
    }
  }
  std::shuffle(skips.begin(), skips.end(), *random);
  return skips;
}

// Calls visit(request with random skips and recomputation) for kinds of each sort, training and inference, and every
// small size. Kinds of several chunks have two.
template <typename Visit>
void ForEachRequest(const Visit& visit) {
  std::mt19937 random(31'337);
  for (const SchedulePurpose purpose :
       {SchedulePurpose::kTrainingStep, SchedulePurpose::kForwardOnly, SchedulePurpose::kBackwardOnly}) {
    for (const char* kind : kKinds) {
      const int chunks = FindScheduleKind(kind)->usual_chunks;
      for (int lanes = 1; lanes * chunks <= kMost; ++lanes) {
        for (int micro_batches = 1; micro_batches <= kMost; ++micro_batches) {
          SCOPED_TRACE(std::string(ToString(purpose)) + " " + kind + " P" + std::to_string(lanes) + " m" +
                       std::to_string(micro_batches));
          visit(BuildRequest{.kind = kind,
                             .purpose = purpose,
                             .lanes = lanes,
                             .chunks = chunks,
                             .micro_batches = micro_batches,
                             .recompute = kModes[random() % std::size(kModes)],
                             .skips = RandomSkips(lanes * chunks, &random)});
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

std::vector<int> LanesOf(const BuildRequest& request) {
  return LanesOfStages(FindScheduleKind(request.kind)->placement, request.lanes, request.chunks);
}

ScheduleCosts SomeCosts(int stages) {
  ScheduleCosts costs;
  costs.hop = 700;
  for (Ticks stage = 0; stage < stages; ++stage) {
    costs.stages.push_back({.forward = 1000 + 37 * stage, .input_gradient = 900 + 91 * (stage % 3)});
  }
  return costs;
}

int LongestSkip(const std::vector<SkipEdge>& skips) {
  int longest = 1;
  for (const SkipEdge& edge : skips) longest = std::max(longest, edge.to - edge.from);
  return longest;
}

// What is built verifies (BuildSchedule proves it), also with bounded edges, reads back, and holds each message once.
TEST(SkipPropertyTest, SchedulesWithSkipsVerifyAndReadBack) {
  ForEachRequest([](const BuildRequest& request) {
    const auto lists = BuildSchedule(request);
    ASSERT_TRUE(lists.ok()) << lists.status();
    // With one chunk, as many credits as the longest skip has hops are enough.
    const int credits = request.chunks == 1 ? LongestSkip(request.skips) : MinCredits(*lists);
    const auto bounded = Verify(*lists, {.purpose = request.purpose, .credits = credits}, request.skips);
    EXPECT_TRUE(bounded.ok()) << bounded.status();
    EXPECT_EQ(*ParseText(ToText(*lists)), *lists);
    EXPECT_EQ(ParseCsv(ToCsv(*lists))->lanes, lists->lanes);

    size_t messages = 0;
    for (const auto& list : lists->lanes) {
      messages += std::count_if(list.begin(), list.end(), [](const Action& action) { return action.peer >= 0; });
    }
    const std::vector<int> lane_of = LanesOf(request);
    const size_t crossing = std::count_if(request.skips.begin(), request.skips.end(),
                                          [&](const SkipEdge& edge) { return lane_of[edge.from] != lane_of[edge.to]; });
    const size_t directions = request.purpose == SchedulePurpose::kTrainingStep ? 2 : 1;
    EXPECT_EQ(messages, 2 * directions * request.micro_batches * crossing);
  });
}

// Around each F and B or I stand its receives and sends, the neighbour's first, then those of skips by ascending peer;
// none for what stays on the lane.
TEST(SkipPropertyTest, MessagesStandAroundTheirActionInOrder) {
  ForEachRequest([](const BuildRequest& request) {
    const auto lists = BuildSchedule(request);
    ASSERT_TRUE(lists.ok()) << lists.status();
    const std::vector<int> lane_of = LanesOf(request);
    const int stages = request.lanes * request.chunks;
    for (int lane = 0; lane < request.lanes; ++lane) {
      std::vector<Action> expected;
      for (const Action& action : lists->lanes[lane]) {
        if (IsCommunication(action.kind)) continue;
        const int stage = action.stage;
        std::vector<int> sources, destinations;
        if (stage > 0 && lane_of[stage - 1] != lane) sources.push_back(-1);
        if (stage + 1 < stages && lane_of[stage + 1] != lane) destinations.push_back(-1);
        for (int other = 0; other < stages; ++other) {
          if (lane_of[other] == lane) continue;
          if (std::count(request.skips.begin(), request.skips.end(), SkipEdge{other, stage}) > 0) {
            sources.push_back(other);
          }
          if (std::count(request.skips.begin(), request.skips.end(), SkipEdge{stage, other}) > 0) {
            destinations.push_back(other);
          }
        }
        const auto add = [&](ActionKind kind, const std::vector<int>& peers) {
          for (const int peer : peers) expected.push_back({kind, stage, action.micro_batch, peer});
        };
        const bool forward = action.kind == ActionKind::kForward, backward = ConsumesGradient(action.kind);
        if (forward) add(ActionKind::kReceiveForward, sources);
        if (backward) add(ActionKind::kReceiveBackward, destinations);
        expected.push_back(action);
        if (forward) add(ActionKind::kSendForward, destinations);
        if (backward) add(ActionKind::kSendBackward, sources);
      }
      EXPECT_EQ(lists->lanes[lane], expected);
    }
  });
}

// A skip value leaves no later and takes no more hops than what goes through the stages between: it costs no time.
TEST(SkipPropertyTest, SkipsChangeNoTime) {
  ForEachRequest([](const BuildRequest& request) {
    BuildRequest plain = request;
    plain.skips.clear();
    const ScheduleCosts costs = SomeCosts(request.lanes * request.chunks);
    const auto with = Simulate(*BuildSchedule(request), costs);
    const auto without = Simulate(*BuildSchedule(plain), costs);
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_EQ(with->makespan, without->makespan);
    EXPECT_EQ(with->window, without->window);
    EXPECT_EQ(with->peaks.full, without->peaks.full);
    for (int lane = 0; lane < request.lanes; ++lane) {
      EXPECT_EQ(with->times[lane].busy, without->times[lane].busy);
      EXPECT_EQ(with->times[lane].wait_activation, without->times[lane].wait_activation);
      EXPECT_EQ(with->times[lane].wait_gradient, without->times[lane].wait_gradient);
    }
  });
}

}  // namespace
}  // namespace penstock
