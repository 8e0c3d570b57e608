// Damages verified schedules in every small way and expects the verifier to name what is wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/schedule/build.h"
#include "engine/schedule/simulate.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<Schedule> Victims() {
  std::vector<Schedule> victims;
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (const RecomputeMode mode : {RecomputeMode::kNever, RecomputeMode::kExceptLast}) {
      victims.push_back(*BuildSchedule({.kind = kind, .ranks = 3, .microbatches = 3, .recompute = mode}));
    }
  }
  return victims;
}

// Calls damage(victim, rank, position) for every cell of every victim.
template <typename Damage>
void ForEachCell(const Damage& damage) {
  for (const Schedule& victim : Victims()) {
    for (size_t rank = 0; rank < victim.ranks.size(); ++rank) {
      for (size_t position = 0; position < victim.ranks[rank].size(); ++position) damage(victim, rank, position);
    }
  }
}

// The failure must name the invariant, the action and its place, and mark it in the grid.
void ExpectFailure(const Schedule& damaged, const std::string& invariant, const Action& action) {
  const auto peaks = Verify(damaged, {});
  ASSERT_FALSE(peaks.ok()) << ToText(damaged);
  const std::string message(peaks.status().message());
  EXPECT_EQ(ValuesOf(peaks.status())["invariant"], invariant) << message;
  EXPECT_EQ(ValuesOf(peaks.status())["action"], ToString(action)) << message;
  EXPECT_THAT(message, StartsWith("schedule: " + invariant + " at rank "));
  EXPECT_THAT(message, HasSubstr(">"));
}

TEST(MutationTest, ADroppedActionIsMissed) {
  ForEachCell([](const Schedule& victim, size_t rank, size_t position) {
    Schedule damaged = victim;
    const Action dropped = victim.ranks[rank][position];
    damaged.ranks[rank].erase(damaged.ranks[rank].begin() + position);
    if (dropped.kind == ActionKind::kRecompute) {
      EXPECT_TRUE(Verify(damaged, {}).ok());  // it only saves memory
    } else {
      ExpectFailure(damaged, IsCommunication(dropped.kind) ? "matching" : "completeness", dropped);
    }
  });
}

TEST(MutationTest, ADuplicateIsNoticed) {
  ForEachCell([](const Schedule& victim, size_t rank, size_t position) {
    const Action twice = victim.ranks[rank][position];
    for (const size_t at : {size_t{0}, position, victim.ranks[rank].size()}) {
      Schedule damaged = victim;
      damaged.ranks[rank].insert(damaged.ranks[rank].begin() + at, twice);
      ExpectFailure(damaged, "completeness", twice);
    }
  });
}

TEST(MutationTest, AnActionOnAnotherRankIsNoticed) {
  ForEachCell([](const Schedule& victim, size_t rank, size_t position) {
    Schedule damaged = victim;
    damaged.ranks[(rank + 1) % 3].push_back(victim.ranks[rank][position]);
    damaged.ranks[rank].erase(damaged.ranks[rank].begin() + position);
    const auto peaks = Verify(damaged, {});
    ASSERT_FALSE(peaks.ok());
    EXPECT_EQ(ValuesOf(peaks.status())["invariant"], "placement");
  });
}

TEST(MutationTest, ASplitHalfAloneIsNoticed) {
  ForEachCell([](const Schedule& victim, size_t rank, size_t position) {
    Action action = victim.ranks[rank][position];
    if (action.kind != ActionKind::kBackward) return;
    Schedule damaged = victim;
    damaged.ranks[rank][position].kind = ActionKind::kInputGradient;
    action.kind = ActionKind::kWeightGradient;
    ExpectFailure(damaged, "completeness", action);
  });
}

// A slow second opinion on order: run the lists by names alone. What an action needs is written out from the table of
// actions, without the index, the walk or the checks of the verifier.
class Referee {
 public:
  explicit Referee(const Schedule& schedule) : schedule_(schedule) {
    for (const auto& list : schedule.ranks) {
      for (const Action& action : list) all_.insert(ToString(action));
    }
  }

  bool Accepts() {
    std::vector<size_t> next(schedule_.ranks.size(), 0);
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < schedule_.ranks.size(); ++rank) {
        const auto& list = schedule_.ranks[rank];
        if (next[rank] == list.size() || !Ready(list[next[rank]])) continue;
        done_.insert(ToString(list[next[rank]++]));
        progress = true;
      }
    }
    return done_.size() == all_.size();
  }

 private:
  bool Done(const std::string& text) const { return all_.count(text) == 0 || done_.count(text) > 0; }

  bool Ready(const Action& action) const {
    const std::string s = std::to_string(action.stage), m = std::to_string(action.microbatch);
    const std::string before = std::to_string(action.stage - 1), after = std::to_string(action.stage + 1);
    switch (action.kind) {
      case ActionKind::kForward:
        return Done(s + "RECV_F" + m);
      case ActionKind::kRecompute:
      case ActionKind::kSendForward:
        return Done(s + "F" + m);
      case ActionKind::kReceiveForward:
        return Done(before + "SEND_F" + m);
      case ActionKind::kReceiveBackward:
        return Done(after + "SEND_B" + m);
      case ActionKind::kSendBackward:
        return Done(s + "B" + m);
      case ActionKind::kBackward:
        return Done(s + "F" + m) && Done(s + "R" + m) && Done(s + "RECV_B" + m) &&
               (action.microbatch == 0 || Done(s + "B" + std::to_string(action.microbatch - 1)));
      case ActionKind::kOptimizer: {
        // Behind everything that its stage does.
        for (const std::string& text : all_) {
          if (text.substr(0, s.size()) == s && text != s + "OPT" && !Done(text)) return false;
        }
        return true;
      }
      default:
        return false;
    }
  }

  const Schedule& schedule_;
  std::set<std::string> all_;
  std::set<std::string> done_;
};

TEST(MutationTest, ASwapIsRefusedExactlyWhereItMatters) {
  int accepted = 0, refused = 0;
  ForEachCell([&](const Schedule& victim, size_t rank, size_t position) {
    for (size_t other = position + 1; other < victim.ranks[rank].size(); ++other) {
      Schedule damaged = victim;
      std::swap(damaged.ranks[rank][position], damaged.ranks[rank][other]);
      const auto peaks = Verify(damaged, {});
      EXPECT_EQ(peaks.ok(), Referee(damaged).Accepts()) << ToText(damaged) << peaks.status();
      if (peaks.ok()) {
        ++accepted;
        EXPECT_TRUE(Simulate(damaged, {.stages = std::vector<StageCosts>(3)}).ok());
        continue;
      }
      ++refused;
      const std::string invariant = ValuesOf(peaks.status())["invariant"];
      EXPECT_TRUE(invariant == "order" || invariant == "deadlock") << peaks.status();
      EXPECT_TRUE(ParseAction(ValuesOf(peaks.status())["action"]).ok());
    }
  });
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 1000);
}

// Lists of any actions in any order: the verifier refuses or accepts, and what it accepts runs.
TEST(MutationTest, NonsenseIsRefusedOrRuns) {
  std::mt19937 random(4711);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    Schedule schedule{.kind = "nonsense", .stages = 1 + below(2), .microbatches = 1 + below(2)};
    schedule.ranks.resize(1 + below(2));
    const int kinds = round % 2 == 0 ? 2 : 10;  // half of them only of F and B, so that some are right
    for (auto& list : schedule.ranks) {
      for (int cells = below(6); cells > 0; --cells) {
        list.push_back({static_cast<ActionKind>(below(kinds)), below(schedule.stages), below(schedule.microbatches)});
        if (list.back().kind == ActionKind::kOptimizer) list.back().microbatch = 0;
      }
    }
    const ScheduleCosts costs{.stages = std::vector<StageCosts>(schedule.stages)};
    const auto simulation = Simulate(schedule, costs);
    for (const bool with_communication : {false, true}) {
      const auto peaks = Verify(
          schedule,
          {.purpose = SchedulePurpose::kContribution, .with_communication = with_communication, .credits = below(3)});
      if (!peaks.ok()) {
        EXPECT_EQ(ReasonOf(peaks.status()), "SPEC_INVALID");
        continue;
      }
      ++accepted;
      EXPECT_TRUE(simulation.ok()) << simulation.status();
    }
  }
  EXPECT_GT(accepted, 20);
}

}  // namespace
}  // namespace penstock
