#include "engine/filling/inference_turns.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "engine/filling/run_forecast.h"
#include "engine/filling/step_rhythm.h"

namespace penstock {
namespace {

constexpr int64_t kMilli = 1'000'000;
constexpr int64_t kSecond = 1000 * kMilli;

// A run that takes `alone`, with actions of `lane` on each lane.
std::unique_ptr<InferenceTicket> Ticket(int64_t accepted, int64_t alone = 5 * kMilli, int64_t lane = 8 * kMilli) {
  static int64_t sequence = 0;
  auto ticket = std::make_unique<InferenceTicket>();
  ticket->order.sequence = ++sequence;
  ticket->accepted_nanos = accepted;
  ticket->alone_nanos = alone;
  ticket->lane_nanos = lane;
  return ticket;
}

TEST(InferenceTurns, ComeAfterAsLongAsTheRunWouldTakeAlone) {
  InferenceTurns turns({.share = 0.02});
  const auto run = Ticket(500);
  EXPECT_EQ(turns.ClaimableAt(*run), 500 + 5 * kMilli);
  EXPECT_FALSE(turns.Claim(*run, 499 + 5 * kMilli));
  EXPECT_TRUE(turns.Claim(*run, 500 + 5 * kMilli));
  EXPECT_TRUE(turns.Claim(*run, 500 + 5 * kMilli)) << "it is due for good";
  EXPECT_EQ(turns.ClaimableAt(*Ticket(0, 0, 0)), 20 * kMilli) << "nobody knows how long it takes";
  EXPECT_EQ(turns.ClaimableAt(*Ticket(0, 1)), kMilli / 2) << "gaps come and go";
}

TEST(InferenceTurns, ComeAfterTheWaitThatIsGiven) {
  InferenceTurns turns({.share = 0.02, .max_wait_nanos = 1000});
  EXPECT_EQ(turns.ClaimableAt(*Ticket(500)), 1500);
  EXPECT_FALSE(turns.Claim(*Ticket(500), 1499));
  EXPECT_TRUE(turns.Claim(*Ticket(500), 1500));
}

TEST(InferenceTurns, BetweenStepsComeWithTheNextTrainingRun) {
  InferenceTurns turns({.share = 0.02, .between_steps = true});
  turns.TrainingBegan(100);
  const auto run = Ticket(500);
  EXPECT_EQ(turns.ClaimableAt(*run), kNever);
  EXPECT_FALSE(turns.Claim(*run, 60 * kSecond)) << "in mid-step nothing is due";
  turns.TrainingBegan(600);
  EXPECT_EQ(turns.ClaimableAt(*run), 600);
  EXPECT_TRUE(turns.Claim(*run, 600));
}

TEST(InferenceTurns, BetweenStepsWhoCannotBePaidForWaitsForTheNextStep) {
  InferenceTurns turns({.share = 0.02, .max_wait_nanos = 1, .between_steps = true});  // 40 ms
  const auto large = Ticket(0, kMilli, 60 * kMilli);
  const auto small = Ticket(0, kMilli, kMilli);
  turns.TrainingBegan(100);
  ASSERT_TRUE(turns.Claim(*large, 100));
  EXPECT_FALSE(turns.Claim(*small, 100));
  turns.TrainingActs();
  EXPECT_FALSE(turns.Claim(*small, 60 * kSecond)) << "in mid-step nothing is due, whatever has been gained";
  EXPECT_EQ(turns.ClaimableAt(*small), kNever);
  EXPECT_TRUE(turns.Claim(*large, 60 * kSecond)) << "it was due before";
  turns.TrainingBegan(61 * kSecond);
  EXPECT_TRUE(turns.Claim(*small, 61 * kSecond));
}

TEST(InferenceTurns, TakeNoMoreThanTheirShareOfALongLoad) {
  // Every 10 ms comes a run of 8 ms that finds no gap at all.
  InferenceTurns turns({.share = 0.02, .max_wait_nanos = 1});
  std::deque<std::unique_ptr<InferenceTicket>> waiting;
  int64_t taken = 0;
  constexpr int64_t kEnd = 100 * kSecond;
  for (int64_t now = 1; now < kEnd; now += 10 * kMilli) {
    waiting.push_back(Ticket(now - 1));
    while (!waiting.empty() && turns.Claim(*waiting.front(), now)) {
      turns.Charge(*waiting.front(), LaneIndex(0), 8 * kMilli);
      taken += 8 * kMilli;
      turns.Release(*waiting.front(), now);
      waiting.pop_front();
    }
  }
  // The share, what the bucket held at first, and one run beyond it.
  EXPECT_LE(taken, kEnd / 50 + 2 * kSecond / 50 + 8 * kMilli);
  EXPECT_GE(taken, kEnd / 50) << "nor less, while runs wait";
}

TEST(InferenceTurns, DelayNothingBelowTheirShare) {
  // Five runs of 3 ms a second, of which half find gaps: 7.5 ms of a second.
  InferenceTurns turns({.share = 0.02});
  for (int64_t now = 0; now < 100 * kSecond; now += 200 * kMilli) {
    const auto run = Ticket(now, 3 * kMilli, 3 * kMilli);
    ASSERT_TRUE(turns.Claim(*run, now + 3 * kMilli)) << now;
    turns.Charge(*run, LaneIndex(0), 3 * kMilli / 2);
    turns.Release(*run, now + 6 * kMilli);
  }
}

TEST(InferenceTurns, GiveBackWhatFoundAGap) {
  InferenceTurns turns({.share = 0.01});  // 20 ms
  const auto first = Ticket(0, kMilli, 50 * kMilli);
  ASSERT_TRUE(turns.Claim(*first, 5 * kMilli));
  const auto second = Ticket(0, kMilli, kMilli);
  EXPECT_FALSE(turns.Claim(*second, 5 * kMilli)) << "the first has taken all, and more";
  EXPECT_EQ(turns.ClaimableAt(*second), 5 * kMilli + 3 * kSecond + 1) << "30 ms at a hundredth";
  turns.Charge(*first, LaneIndex(0), 10 * kMilli);
  turns.Release(*first, 6 * kMilli);
  EXPECT_TRUE(turns.Claim(*second, 6 * kMilli));
}

TEST(InferenceTurns, TakeFromTheLaneThatLosesMost) {
  InferenceTurns turns({.share = 0.01});  // 20 ms
  const auto run = Ticket(0, kMilli, kMilli);
  ASSERT_TRUE(turns.Claim(*run, kMilli));
  turns.Charge(*run, LaneIndex(0), 10 * kMilli);
  turns.Charge(*run, LaneIndex(1), 20 * kMilli);
  turns.Charge(*run, LaneIndex(1), 10 * kMilli);
  turns.Release(*run, kMilli);
  EXPECT_EQ(turns.ClaimableAt(*Ticket(0, kMilli)), kMilli + kSecond + 1) << "30 of 20 ms are taken";
}

TEST(InferenceTurns, WhoWasNotDueGivesNothingBack) {
  InferenceTurns turns({.share = 0.01});
  const auto large = Ticket(0, kMilli, 50 * kMilli);
  ASSERT_TRUE(turns.Claim(*large, 5 * kMilli));
  turns.Release(*Ticket(0, kMilli, kSecond), 5 * kMilli);
  EXPECT_FALSE(turns.Claim(*Ticket(0), 5 * kMilli));
}

TEST(InferenceTurns, OfNoShareNeverCome) {
  InferenceTurns turns({.share = 0});
  EXPECT_FALSE(turns.Claim(*Ticket(0), 60 * kSecond));
  EXPECT_EQ(turns.ClaimableAt(*Ticket(0)), kNever);
}

TEST(StepRhythm, ExpectsTheNextRunAfterTheUsualPauseAndGivesUpLater) {
  StepRhythm rhythm;
  constexpr int64_t kPause = 1'000'000;
  EXPECT_EQ(rhythm.ExpectedStart(0), kNever);
  int64_t now = 0;
  for (int i = 0; i < 3; ++i) {
    rhythm.Began(now);
    EXPECT_EQ(rhythm.ExpectedStart(now), kNever);
    EXPECT_EQ(rhythm.GivenUpAt(), kNever);
    now += 10 * kPause;
    rhythm.Ended(now);
    if (i == 0) {
      EXPECT_EQ(rhythm.ExpectedStart(now), kNever);  // one run is no rhythm
    }
    now += kPause;
  }
  const int64_t ended = now - kPause;
  EXPECT_EQ(rhythm.ExpectedStart(ended), ended + kPause);
  EXPECT_EQ(rhythm.ExpectedStart(ended + kPause + 7), ended + kPause + 7);
  EXPECT_EQ(rhythm.GivenUpAt(), ended + kPause * 3 / 2);
  EXPECT_EQ(rhythm.ExpectedStart(ended + kPause * 3 / 2), kNever);
}

TEST(StepRhythm, WaitsForALateTrainerNoLongerThanItsMostPatience) {
  constexpr int64_t kShort = 1'000'000;
  constexpr int64_t kLong = 60'000'000'000;
  constexpr int64_t kMaxPatience = 20'000'000;
  StepRhythm rhythm;
  for (const int64_t now : {int64_t{0}, kShort, kShort + kLong}) {
    rhythm.Began(now);
    rhythm.Ended(now);
  }
  const int64_t mean = kShort + (kLong - kShort) / 4;
  const int64_t given_up = kShort + kLong + mean + kMaxPatience;  // half the mean alone is seconds
  EXPECT_EQ(rhythm.GivenUpAt(), given_up);
  EXPECT_EQ(rhythm.ExpectedStart(given_up - 1), given_up - 1);
  EXPECT_EQ(rhythm.ExpectedStart(given_up), kNever);
}

}  // namespace
}  // namespace penstock
