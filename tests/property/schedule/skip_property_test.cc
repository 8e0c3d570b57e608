// Promises over random skips, kinds and sizes, with a fixed seed.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/comm_pass.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

constexpr int kMost = 8;  // ranks and micro-batches
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

// Calls visit(request with random skips and recomputation) for both training kinds and inference, and every small size.
template <typename Visit>
void ForEachRequest(const Visit& visit) {
  std::mt19937 random(31'337);
  for (const SchedulePurpose purpose :
       {SchedulePurpose::kTrainingStep, SchedulePurpose::kForwardOnly, SchedulePurpose::kBackwardOnly}) {
    for (const char* kind : {"gpipe", "1f1b"}) {
      for (int ranks = 1; ranks <= kMost; ++ranks) {
        for (int microbatches = 1; microbatches <= kMost; ++microbatches) {
          SCOPED_TRACE(std::string(ToString(purpose)) + " " + kind + " P" + std::to_string(ranks) + " m" +
                       std::to_string(microbatches));
          visit(BuildRequest{.kind = kind,
                             .purpose = purpose,
                             .ranks = ranks,
                             .microbatches = microbatches,
                             .recompute = kModes[random() % std::size(kModes)],
                             .skips = RandomSkips(ranks, &random)});
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
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
TEST(SkipPropertyTest, SKIP_18_DEF_8_SchedulesWithSkipsVerifyAndReadBack) {
  ForEachRequest([](const BuildRequest& request) {
    const auto lists = BuildSchedule(request);
    ASSERT_TRUE(lists.ok()) << lists.status();
    // As many credits as the longest skip has hops are enough.
    const auto bounded =
        Verify(*lists, {.purpose = request.purpose, .credits = LongestSkip(request.skips)}, request.skips);
    EXPECT_TRUE(bounded.ok()) << bounded.status();
    EXPECT_EQ(*ParseText(ToText(*lists)), *lists);
    EXPECT_EQ(ParseCsv(ToCsv(*lists))->ranks, lists->ranks);

    size_t messages = 0;
    for (const auto& list : lists->ranks) {
      messages += std::count_if(list.begin(), list.end(), [](const Action& action) { return action.peer >= 0; });
    }
    const size_t directions = request.purpose == SchedulePurpose::kTrainingStep ? 2 : 1;
    EXPECT_EQ(messages, 2 * directions * request.microbatches * request.skips.size());
  });
}

// Around each F and B stand its receives and sends, the neighbour's first, then those of skips by ascending peer.
TEST(SkipPropertyTest, MessagesStandAroundTheirActionInOrder) {
  ForEachRequest([](const BuildRequest& request) {
    const auto lists = BuildSchedule(request);
    ASSERT_TRUE(lists.ok()) << lists.status();
    for (int stage = 0; stage < request.ranks; ++stage) {
      std::vector<int> sources, destinations;
      if (stage > 0) sources.push_back(-1);
      if (stage + 1 < request.ranks) destinations.push_back(-1);
      for (int other = 0; other < request.ranks; ++other) {
        if (std::count(request.skips.begin(), request.skips.end(), SkipEdge{other, stage}) > 0) {
          sources.push_back(other);
        }
        if (std::count(request.skips.begin(), request.skips.end(), SkipEdge{stage, other}) > 0) {
          destinations.push_back(other);
        }
      }
      std::vector<Action> expected;
      const auto add = [&](ActionKind kind, int microbatch, const std::vector<int>& peers) {
        for (const int peer : peers) expected.push_back({kind, stage, microbatch, peer});
      };
      for (const Action& action : lists->ranks[stage]) {
        if (IsCommunication(action.kind)) continue;
        const int i = action.microbatch;
        const bool forward = action.kind == ActionKind::kForward, backward = action.kind == ActionKind::kBackward;
        if (forward) add(ActionKind::kReceiveForward, i, sources);
        if (backward) add(ActionKind::kReceiveBackward, i, destinations);
        expected.push_back(action);
        if (forward) add(ActionKind::kSendForward, i, destinations);
        if (backward) add(ActionKind::kSendBackward, i, sources);
      }
      EXPECT_EQ(lists->ranks[stage], expected);
    }
  });
}

// A skip value leaves no later and takes no more hops than what goes through the stages between: it costs no time.
TEST(SkipPropertyTest, SkipsChangeNoTime) {
  ForEachRequest([](const BuildRequest& request) {
    BuildRequest plain = request;
    plain.skips.clear();
    const ScheduleCosts costs = SomeCosts(request.ranks);
    const auto with = Simulate(*BuildSchedule(request), costs);
    const auto without = Simulate(*BuildSchedule(plain), costs);
    ASSERT_TRUE(with.ok()) << with.status();
    EXPECT_EQ(with->makespan, without->makespan);
    EXPECT_EQ(with->window, without->window);
    EXPECT_EQ(with->peaks.full, without->peaks.full);
    for (int rank = 0; rank < request.ranks; ++rank) {
      EXPECT_EQ(with->times[rank].busy, without->times[rank].busy);
      EXPECT_EQ(with->times[rank].wait_activation, without->times[rank].wait_activation);
      EXPECT_EQ(with->times[rank].wait_gradient, without->times[rank].wait_gradient);
    }
  });
}

}  // namespace
}  // namespace penstock
