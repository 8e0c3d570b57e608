#include "engine/base/fair_turns.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace penstock {
namespace {

// Owners who ask for their next turn as soon as one has been served.
class Row {
 public:
  void Ask(const std::string& owner, int64_t cost) { waiting_.push_back({owner, turns_.Add(owner, cost)}); }

  // Serves the next turn; its owner asks again. Returns the owner.
  std::string Next() {
    const auto next = std::min_element(waiting_.begin(), waiting_.end(), [](const auto& one, const auto& other) {
      return one.second.start < other.second.start;
    });
    const auto [owner, turn] = *next;
    waiting_.erase(next);
    turns_.Served(turn);
    Ask(owner, turn.cost);
    return owner;
  }

 private:
  FairTurns turns_;
  std::vector<std::pair<std::string, FairTurns::Turn>> waiting_;  // of equal starts, the first goes first
};

TEST(FairTurnsTest, EqualCostsAlternate) {
  Row row;
  for (const char* owner : {"a", "b", "c"}) row.Ask(owner, 1);
  std::string order;
  for (int turn = 0; turn < 6; ++turn) order += row.Next();
  EXPECT_EQ(order, "abcabc");
}

TEST(FairTurnsTest, OwnersGetEqualSumsWhateverATurnCosts) {
  Row row;
  const std::map<std::string, int64_t> cost = {{"small", 1}, {"large", 8}};
  for (const auto& [owner, each] : cost) row.Ask(owner, each);
  std::map<std::string, int64_t> sum;
  for (int turn = 0; turn < 90; ++turn) {
    const std::string next = row.Next();
    sum[next] += cost.at(next);
    EXPECT_LE(std::abs(sum["small"] - sum["large"]), 8) << "turn " << turn;
  }
  EXPECT_GE(sum["small"], 76);
}

TEST(FairTurnsTest, WhoComesLateWaitsForNoneOfManyTurnsThatWait) {
  FairTurns turns;
  std::vector<FairTurns::Turn> flood;
  for (int turn = 0; turn < 100; ++turn) flood.push_back(turns.Add("flood", 1));
  turns.Served(flood[3]);
  EXPECT_EQ(turns.Add("late", 1).start, flood[3].start);
  EXPECT_EQ(turns.Add("late", 1).start, flood[4].start) << "its second turn waits for its first";
}

TEST(FairTurnsTest, WhoWasAwayHasSavedNothingUp) {
  FairTurns turns;
  turns.Served(turns.Add("late", 1));
  for (int turn = 0; turn < 100; ++turn) turns.Served(turns.Add("busy", 1));
  EXPECT_EQ(turns.Add("late", 1).start, 99);
  EXPECT_EQ(turns.Add("late", 1).start, 100) << "level with the other's next turn";
  EXPECT_EQ(turns.Add("busy", 1).start, 100);
}

TEST(FairTurnsTest, AnEarlierTurnThatIsServedLaterTurnsNothingBack) {
  FairTurns turns;
  const FairTurns::Turn first = turns.Add("a", 5);
  const FairTurns::Turn second = turns.Add("a", 5);
  turns.Served(second);
  turns.Served(first);
  EXPECT_EQ(turns.Add("b", 1).start, second.start);
}

TEST(FairTurnsTest, ATurnThatIsWithdrawnCostsNothingUnlessOthersStandBehindIt) {
  FairTurns turns;
  const FairTurns::Turn first = turns.Add("a", 5);
  const FairTurns::Turn second = turns.Add("a", 7);
  turns.Withdraw("a", second);
  EXPECT_EQ(turns.Add("a", 1).start, 5);
  turns.Withdraw("a", first);
  EXPECT_EQ(turns.Add("a", 1).start, 6);
  turns.Withdraw("b", turns.Add("b", 3));
  EXPECT_EQ(turns.Add("b", 1).start, 0);
}

}  // namespace
}  // namespace penstock
