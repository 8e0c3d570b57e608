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
#include "engine/schedule/skips.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A schedule that verifies, and the skips of its model.
struct Victim {
  Schedule lists;
  std::vector<SkipEdge> skips;
};

std::vector<Victim> Victims() {
  std::vector<Victim> victims;
  for (const char* kind : {"gpipe", "1f1b"}) {
    for (const RecomputeMode mode : {RecomputeMode::kNever, RecomputeMode::kExceptLast}) {
      for (const std::vector<SkipEdge>& skips : {std::vector<SkipEdge>{}, {{0, 2}}, {{1, 2}, {0, 2}, {0, 1}}}) {
        const auto lists =
            BuildSchedule({.kind = kind, .lanes = 3, .micro_batches = 3, .recompute = mode, .skips = skips});
        victims.push_back({*lists, skips});
      }
    }
  }
  // Split backwards, several stages per lane, both placements.
  const auto add = [&](BuildRequest request) {
    const auto lists = BuildSchedule(request);
    EXPECT_TRUE(lists.ok()) << lists.status();
    victims.push_back({*lists, request.skips});
  };
  add({.kind = "zb-h1", .lanes = 3, .micro_batches = 3, .recompute = RecomputeMode::kAlways, .skips = {{0, 2}}});
  add({.kind = "lag", .lanes = 2, .lag = 3, .micro_batches = 4});
  add({.kind = "interleaved-1f1b",
       .lanes = 2,
       .chunks = 2,
       .micro_batches = 3,
       .recompute = RecomputeMode::kExceptLast});
  add({.kind = "looped-bfs", .lanes = 2, .chunks = 2, .micro_batches = 2, .skips = {{0, 2}, {0, 3}, {1, 2}}});
  add({.kind = "interleaved-zb", .lanes = 2, .chunks = 2, .micro_batches = 3});
  add({.kind = "zbv", .lanes = 2, .chunks = 2, .micro_batches = 3, .recompute = RecomputeMode::kAlways});
  add({.kind = "zbv", .lanes = 2, .chunks = 2, .micro_batches = 2, .skips = {{0, 2}, {0, 3}, {1, 3}}});
  add({.kind = "dualpipe-v", .lanes = 2, .chunks = 2, .micro_batches = 4});
  return victims;
}

// Calls damage(victim, lane, position) for every cell of every victim.
template <typename Damage>
void ForEachCell(const Damage& damage) {
  for (const Victim& victim : Victims()) {
    const auto& lanes = victim.lists.lanes;
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      for (size_t position = 0; position < lanes[lane].size(); ++position) damage(victim, lane, position);
    }
  }
}

// The failure must name the invariant, the action and its place, and mark it in the grid.
void ExpectFailure(const Schedule& damaged, const std::vector<SkipEdge>& skips, const std::string& invariant,
                   const Action& action) {
  const auto peaks = Verify(damaged, {}, skips);
  ASSERT_FALSE(peaks.ok()) << ToText(damaged);
  const std::string message(peaks.status().message());
  EXPECT_EQ(ValuesOf(peaks.status())["invariant"], invariant) << message;
  EXPECT_EQ(ValuesOf(peaks.status())["action"], ToString(action)) << message;
  EXPECT_THAT(message, StartsWith("schedule: " + invariant + " at lane "));
  EXPECT_THAT(message, HasSubstr(">"));
}

TEST(MutationTest, ADroppedActionIsMissed) {
  ForEachCell([](const Victim& victim, size_t lane, size_t position) {
    Schedule damaged = victim.lists;
    const Action dropped = victim.lists.lanes[lane][position];
    damaged.lanes[lane].erase(damaged.lanes[lane].begin() + position);
    if (dropped.kind == ActionKind::kRecompute) {
      EXPECT_TRUE(Verify(damaged, {}, victim.skips).ok());  // it only saves memory
    } else {
      ExpectFailure(damaged, victim.skips, IsCommunication(dropped.kind) ? "matching" : "completeness", dropped);
    }
  });
}

TEST(MutationTest, ADuplicateIsNoticed) {
  ForEachCell([](const Victim& victim, size_t lane, size_t position) {
    const Action twice = victim.lists.lanes[lane][position];
    for (const size_t at : {size_t{0}, position, victim.lists.lanes[lane].size()}) {
      Schedule damaged = victim.lists;
      damaged.lanes[lane].insert(damaged.lanes[lane].begin() + at, twice);
      ExpectFailure(damaged, victim.skips, "completeness", twice);
    }
  });
}

TEST(MutationTest, AnActionOnAnotherLaneIsNoticed) {
  ForEachCell([](const Victim& victim, size_t lane, size_t position) {
    Schedule damaged = victim.lists;
    damaged.lanes[(lane + 1) % damaged.lanes.size()].push_back(victim.lists.lanes[lane][position]);
    damaged.lanes[lane].erase(damaged.lanes[lane].begin() + position);
    const auto peaks = Verify(damaged, {}, victim.skips);
    ASSERT_FALSE(peaks.ok());
    EXPECT_EQ(ValuesOf(peaks.status())["invariant"], "placement");
  });
}

TEST(MutationTest, ASplitHalfAloneIsNoticed) {
  ForEachCell([](const Victim& victim, size_t lane, size_t position) {
    Action action = victim.lists.lanes[lane][position];
    if (action.kind != ActionKind::kBackward) return;
    Schedule damaged = victim.lists;
    damaged.lanes[lane][position].kind = ActionKind::kInputGradient;
    action.kind = ActionKind::kWeightGradient;
    ExpectFailure(damaged, victim.skips, "completeness", action);
  });
}

// The other way round: what a B does once, an I and a W must not do again.
TEST(MutationTest, AWholeBackwardBesideAHalfIsNoticed) {
  int seen = 0;
  ForEachCell([&](const Victim& victim, size_t lane, size_t position) {
    const Action action = victim.lists.lanes[lane][position];
    if (action.kind != ActionKind::kInputGradient) return;
    Schedule damaged = victim.lists;
    damaged.lanes[lane][position].kind = ActionKind::kBackward;
    ExpectFailure(damaged, victim.skips, "completeness",
                  {ActionKind::kWeightGradient, action.stage, action.micro_batch});
    damaged = victim.lists;
    damaged.lanes[lane].push_back({ActionKind::kBackward, action.stage, action.micro_batch});
    ExpectFailure(damaged, victim.skips, "completeness", damaged.lanes[lane].back());
    ++seen;
  });
  EXPECT_GT(seen, 20);
}

// A message of an edge that the model does not have is named, whether it replaces a right one or comes on top.
TEST(MutationTest, AForeignSkipMessageIsNoticed) {
  ForEachCell([](const Victim& victim, size_t lane, size_t position) {
    const Action right = victim.lists.lanes[lane][position];
    if (!IsCommunication(right.kind) || victim.skips.size() != 1) return;
    for (int peer = 0; peer < victim.lists.stages; ++peer) {
      Action foreign = right;
      foreign.peer = peer;
      const SkipEdge edge = EdgeOf(foreign);
      if (edge == victim.skips[0]) continue;
      const char* invariant = edge.from < edge.to ? "matching" : "content";
      Schedule damaged = victim.lists;
      damaged.lanes[lane].insert(damaged.lanes[lane].begin() + position, foreign);
      ExpectFailure(damaged, victim.skips, invariant, foreign);
      damaged = victim.lists;
      damaged.lanes[lane][position] = foreign;
      ExpectFailure(damaged, victim.skips, invariant, edge.from < edge.to ? right : foreign);
    }
  });
}

TEST(MutationTest, ASkipThatTheVerifierIsNotToldOfIsNoticed) {
  int noticed = 0;
  for (const Victim& victim : Victims()) {
    for (size_t missing = 0; missing < victim.skips.size(); ++missing) {
      std::vector<SkipEdge> fewer = victim.skips;
      const SkipEdge edge = fewer[missing];
      fewer.erase(fewer.begin() + missing);
      std::optional<Action> first;  // of its messages, lane by lane
      for (const auto& list : victim.lists.lanes) {
        for (const Action& action : list) {
          if (!first && action.peer >= 0 && EdgeOf(action) == edge) first = action;
        }
      }
      if (first) {
        ExpectFailure(victim.lists, fewer, "matching", *first);
        ++noticed;
      } else {  // both ends are on one lane: nothing travels, and order follows from the stages between
        EXPECT_TRUE(Verify(victim.lists, {}, fewer).ok());
      }
    }
  }
  EXPECT_GT(noticed, 15);
}

// A slow second opinion on order: run the lists by names alone. What an action needs is written out from the table of
// actions, without the index, the walk or the checks of the verifier.
class Referee {
 public:
  explicit Referee(const Schedule& schedule) : schedule_(schedule) {
    for (const auto& list : schedule.lanes) {
      for (const Action& action : list) all_.insert(ToString(action));
    }
  }

  bool Accepts() {
    std::vector<size_t> next(schedule_.lanes.size(), 0);
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t lane = 0; lane < schedule_.lanes.size(); ++lane) {
        const auto& list = schedule_.lanes[lane];
        if (next[lane] == list.size() || !Ready(list[next[lane]])) continue;
        done_.insert(ToString(list[next[lane]++]));
        progress = true;
      }
    }
    return done_.size() == all_.size();
  }

 private:
  bool Done(const std::string& text) const { return all_.count(text) == 0 || done_.count(text) > 0; }

  // The message, and those of the same kind that name a peer.
  bool AllDone(const std::string& message) const {
    const std::string with_peer = message + "@";
    for (auto text = all_.lower_bound(with_peer); text != all_.end() && text->rfind(with_peer, 0) == 0; ++text) {
      if (!Done(*text)) return false;
    }
    return Done(message);
  }

  bool Present(const std::string& text) const { return all_.count(text) > 0; }

  // Whatever makes the gradient for the stage before is done: B, or I.
  bool GradientDone(const std::string& stage, const std::string& micro_batch) const {
    return Done(stage + "B" + micro_batch) && Done(stage + "I" + micro_batch);
  }

  // The micro-batch before has added its gradients: in ascending order.
  bool TurnToAdd(const std::string& stage, int micro_batch) const {
    const std::string before = std::to_string(micro_batch - 1);
    return micro_batch == 0 || (Done(stage + "B" + before) && Done(stage + "W" + before));
  }

  bool Ready(const Action& action) const {
    const std::string s = std::to_string(action.stage), m = std::to_string(action.micro_batch);
    const std::string before = std::to_string(action.stage - 1), after = std::to_string(action.stage + 1);
    const std::string partner = std::to_string(action.peer), back = m + "@" + s;
    switch (action.kind) {
      case ActionKind::kForward:  // a neighbour on the same lane sends no message
        return AllDone(s + "RECV_F" + m) && (Present(s + "RECV_F" + m) || Done(before + "F" + m));
      case ActionKind::kRecompute:
      case ActionKind::kSendForward:
        return Done(s + "F" + m);
      case ActionKind::kReceiveForward:
        return Done(action.peer < 0 ? before + "SEND_F" + m : partner + "SEND_F" + back);
      case ActionKind::kReceiveBackward:
        return Done(action.peer < 0 ? after + "SEND_B" + m : partner + "SEND_B" + back);
      case ActionKind::kSendBackward:
        return GradientDone(s, m);
      case ActionKind::kBackward:
      case ActionKind::kInputGradient:
        return Done(s + "F" + m) && Done(s + "R" + m) && AllDone(s + "RECV_B" + m) &&
               (Present(s + "RECV_B" + m) || GradientDone(after, m)) &&
               (action.kind == ActionKind::kInputGradient || TurnToAdd(s, action.micro_batch));
      case ActionKind::kWeightGradient:
        return Done(s + "I" + m) && TurnToAdd(s, action.micro_batch);
      case ActionKind::kOptimizer: {
        // Behind everything that its stage does.
        for (const std::string& text : all_) {
          if (text.substr(0, s.size()) == s && text != s + "OPT" && !Done(text)) return false;
        }
        return true;
      }
    }
    return false;
  }

  const Schedule& schedule_;
  std::set<std::string> all_;
  std::set<std::string> done_;
};

TEST(MutationTest, ASwapIsRefusedExactlyWhereItMatters) {
  int accepted = 0, refused = 0;
  ForEachCell([&](const Victim& victim, size_t lane, size_t position) {
    for (size_t other = position + 1; other < victim.lists.lanes[lane].size(); ++other) {
      Schedule damaged = victim.lists;
      std::swap(damaged.lanes[lane][position], damaged.lanes[lane][other]);
      const auto peaks = Verify(damaged, {}, victim.skips);
      EXPECT_EQ(peaks.ok(), Referee(damaged).Accepts()) << ToText(damaged) << peaks.status();
      if (peaks.ok()) {
        ++accepted;
        EXPECT_TRUE(Simulate(damaged, {.stages = std::vector<StageCosts>(damaged.stages)}).ok());
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
    Schedule schedule{.kind = "nonsense", .stages = 1 + below(2), .micro_batches = 1 + below(2)};
    schedule.lanes.resize(1 + below(2));
    const int kinds = round % 2 == 0 ? 2 : 10;  // half of them only of F and B, so that some are right
    for (auto& list : schedule.lanes) {
      for (int cells = below(6); cells > 0; --cells) {
        list.push_back({static_cast<ActionKind>(below(kinds)), below(schedule.stages), below(schedule.micro_batches)});
        if (list.back().kind == ActionKind::kOptimizer) list.back().micro_batch = 0;
        if (round % 4 == 3 && below(3) == 0) list.back().peer = below(schedule.stages);
      }
    }
    const ScheduleCosts costs{.stages = std::vector<StageCosts>(schedule.stages)};
    const auto simulation = Simulate(schedule, costs);
    for (const bool with_communication : {false, true}) {
      const auto peaks = Verify(
          schedule,
          {.purpose = SchedulePurpose::kContribution, .with_communication = with_communication, .credits = below(3)},
          round % 8 == 7 && schedule.stages == 2 ? std::vector<SkipEdge>{{0, 1}} : std::vector<SkipEdge>{});
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
