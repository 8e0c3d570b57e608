#include "engine/serve/training_state.h"

#include <gmock/gmock.h>

#include "engine/base/error.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/serve/open_training.h"

namespace penstock {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
const TrainingParty kAnn = {"ann", "session-of-ann"};
const TrainingParty kAnnAgain = {"ann", "after-a-restart"};
const TrainingParty kBob = {"bob", "session-of-bob"};

std::string Check(const TrainingState& state, TrainingCall call, const TrainingParty& party) {
  return ReasonOf(state.Check(call, party, 0));
}

// What each call returns when CLEAN, ACCUMULATING for oneself, for another program of the same caller, for another
// caller.
TEST(TrainingStateTest, FollowsTheTable) {
  struct Row {
    TrainingCall call;
    std::string clean, holder, restarted, other;
    bool accumulates_after;  // of one's own accumulation
  };
  const std::vector<Row> table = {
      {TrainingCall::kContribution, "", "", "ACCUMULATION_HELD", "ACCUMULATION_HELD", true},
      {TrainingCall::kApply, "ACCUMULATION_EMPTY", "", "ACCUMULATION_HELD", "ACCUMULATION_HELD", false},
      {TrainingCall::kDiscard, "ACCUMULATION_EMPTY", "", "", "ACCUMULATION_HELD", false},
      {TrainingCall::kDiscardForced, "ACCUMULATION_EMPTY", "", "", "", false},
      {TrainingCall::kTrainStep, "", "ACCUMULATION_OPEN", "ACCUMULATION_HELD", "ACCUMULATION_HELD", false},
      {TrainingCall::kForward, "", "", "", "", true},
      {TrainingCall::kSave, "", "", "", "", true},
      {TrainingCall::kRestore, "", "ACCUMULATION_OPEN", "ACCUMULATION_OPEN", "ACCUMULATION_OPEN", false},
      {TrainingCall::kRestoreForced, "", "", "", "", false},
      {TrainingCall::kDeleteCheckpoint, "", "", "", "", true},
      {TrainingCall::kUpdate, "", "ACCUMULATION_OPEN", "ACCUMULATION_HELD", "ACCUMULATION_HELD", false},
      {TrainingCall::kReadGradients, "ACCUMULATION_EMPTY", "", "", "ACCUMULATION_HELD", true},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(static_cast<int>(row.call));
    TrainingState state;
    EXPECT_EQ(Check(state, row.call, kAnn), row.clean);
    state.Apply(TrainingCall::kContribution, kAnn, 0);
    EXPECT_EQ(Check(state, row.call, kAnn), row.holder);
    EXPECT_EQ(Check(state, row.call, kAnnAgain), row.restarted);
    EXPECT_EQ(Check(state, row.call, kBob), row.other);
    if (row.holder.empty()) {
      state.Apply(row.call, kAnn, 0);
      EXPECT_EQ(state.accumulating(), row.accumulates_after);
      EXPECT_EQ(state.holder().has_value(), row.accumulates_after);
    }
  }
}

TEST(TrainingStateTest, EitherDiscardOfAPartyTakesNoteOfItsLoss) {
  for (const TrainingCall discard : {TrainingCall::kDiscard, TrainingCall::kDiscardForced}) {
    TrainingState state;
    state.Apply(TrainingCall::kContribution, kAnn, 0);
    state.Apply(TrainingCall::kExpire, kAnn, 0);
    EXPECT_EQ(Check(state, TrainingCall::kContribution, kAnn), "ACCUMULATION_LOST");
    ASSERT_EQ(Check(state, discard, kAnn), "");
    state.Apply(discard, kAnn, 0);
    EXPECT_EQ(Check(state, TrainingCall::kContribution, kAnn), "");
  }
}

TEST(TrainingStateTest, ARefusalNamesTheHolderAndItsAge) {
  TrainingState state;
  state.Apply(TrainingCall::kContribution, kAnn, 5 * kSecond);
  state.Apply(TrainingCall::kContribution, kAnn, 7 * kSecond);
  const absl::Status held = state.Check(TrainingCall::kContribution, kBob, 65 * kSecond);
  EXPECT_EQ(
      held.message(),
      "caller ann, session session-, has accumulated gradients for 60 s: wait for its step; DISCARD with force ends "
      "what a program has left behind");
  EXPECT_EQ(ValuesOf(held)["holder"], "ann");
  EXPECT_EQ(ValuesOf(held)["session"], "session-");
  EXPECT_EQ(ValuesOf(held)["age_seconds"], "60");
}

TEST(TrainingStateTest, WhoseGradientsOthersEndedIsToldUntilItDiscards) {
  for (const auto& [call, by] : {std::pair(TrainingCall::kDiscard, kAnnAgain),
                                 {TrainingCall::kDiscardForced, kBob},
                                 {TrainingCall::kRestoreForced, kBob},
                                 {TrainingCall::kExpire, kAnn}}) {
    SCOPED_TRACE(static_cast<int>(call));
    TrainingState state;
    state.Apply(TrainingCall::kContribution, kAnn, 0);
    state.Apply(call, by, 0);
    EXPECT_FALSE(state.accumulating());
    EXPECT_EQ(Check(state, TrainingCall::kContribution, kAnn), "ACCUMULATION_LOST");
    EXPECT_EQ(Check(state, TrainingCall::kApply, kAnn), "ACCUMULATION_LOST");
    EXPECT_EQ(Check(state, TrainingCall::kTrainStep, kAnn), "") << "it is whole by itself";
    EXPECT_EQ(Check(state, TrainingCall::kContribution, kBob), "");
    ASSERT_EQ(Check(state, TrainingCall::kDiscard, kAnn), "");
    state.Apply(TrainingCall::kDiscard, kAnn, 0);
    EXPECT_EQ(Check(state, TrainingCall::kContribution, kAnn), "");
  }
}

TEST(TrainingStateTest, OnesOwnEndLosesNothing) {
  for (const TrainingCall call : {TrainingCall::kDiscard, TrainingCall::kApply, TrainingCall::kRestoreForced}) {
    TrainingState state;
    state.Apply(TrainingCall::kContribution, kAnn, 0);
    state.Apply(call, kAnn, 0);
    EXPECT_EQ(Check(state, TrainingCall::kContribution, kAnn), "");
  }
}

TEST(TrainingStateTest, TheLeaseIsThatOfTheLastContribution) {
  TrainingState state;
  state.Apply(TrainingCall::kContribution, kAnn, kSecond, absl::Seconds(10));
  EXPECT_EQ(state.expires_at(), 11 * kSecond);
  state.Apply(TrainingCall::kContribution, kAnn, 2 * kSecond, absl::Seconds(30));
  EXPECT_EQ(state.expires_at(), 32 * kSecond);
  state.Apply(TrainingCall::kContribution, kAnn, 3 * kSecond);
  EXPECT_EQ(state.expires_at(), std::nullopt);
  state.Apply(TrainingCall::kContribution, kAnn, 3 * kSecond, absl::Seconds(30));
  state.Apply(TrainingCall::kApply, kAnn, 4 * kSecond);
  EXPECT_EQ(state.expires_at(), std::nullopt);
}

TEST(TrainingStateTest, GoesOnInAnotherLifeByItsAgesWithTheLeaseAnew) {
  TrainingState state;
  state.Apply(TrainingCall::kContribution, kBob, 0);
  state.Apply(TrainingCall::kDiscardForced, kAnn, 100 * kSecond);
  state.Apply(TrainingCall::kContribution, kAnn, 110 * kSecond);
  state.Apply(TrainingCall::kContribution, kAnn, 120 * kSecond, absl::Seconds(30));
  const TrainingState::Saved saved = state.Save(130 * kSecond);
  EXPECT_EQ(saved.age_nanos, 20 * kSecond);
  EXPECT_EQ(saved.lease_nanos, 30 * kSecond);

  const TrainingState next = TrainingState::Load(saved, 5 * kSecond);  // of a clock that has begun anew
  EXPECT_EQ(next.holder(), kAnn);
  EXPECT_EQ(next.expires_at(), 35 * kSecond);
  EXPECT_EQ(ValuesOf(next.Check(TrainingCall::kContribution, kAnnAgain, 7 * kSecond))["age_seconds"], "22");
  EXPECT_EQ(ReasonOf(next.Check(TrainingCall::kReadGradients, kBob, 7 * kSecond)), "ACCUMULATION_LOST");
  EXPECT_EQ(next.Save(5 * kSecond), saved);

  EXPECT_TRUE(TrainingState().Save(0).none());
  TrainingState lost;
  lost.Apply(TrainingCall::kContribution, kAnn, 0);
  lost.Apply(TrainingCall::kExpire, kAnn, 0);
  EXPECT_FALSE(lost.Save(kSecond).none());
  EXPECT_TRUE(lost.Save(24 * 3600 * kSecond).none()) << "what is a day old is forgotten";
}

TEST(OpenTrainingTest, ItsTextIsReadAsItWasWrittenAndNothingElseIs) {
  EXPECT_EQ(FormatOpenTraining({}), "");
  const TrainingState::Saved held{.holder = kAnn, .age_nanos = 5, .lease_nanos = 7};
  const TrainingState::Saved lost{.losses = {{{"a; b \"c\"", ""}, "a DISCARD of caller \n", 9}, {kBob, "", 0}}};
  for (const TrainingState::Saved& state : {TrainingState::Saved(), held, lost}) {
    for (const Accumulation& accumulation : {Accumulation{.open = true, .next_micro_batch = 4, .loss_finite = false},
                                             Accumulation{.next_micro_batch = 2}}) {
      const std::string text = FormatOpenTraining({accumulation, state});
      EXPECT_TRUE(IsManifestText(text)) << text;
      const absl::StatusOr<OpenTraining> read = ParseOpenTraining(text);
      ASSERT_TRUE(read.ok()) << text;
      EXPECT_EQ(read->state, state);
      EXPECT_EQ(read->accumulation.open, accumulation.open);
      EXPECT_EQ(read->accumulation.next_micro_batch, accumulation.next_micro_batch);
      EXPECT_EQ(read->accumulation.loss_finite, accumulation.loss_finite);
      EXPECT_FALSE(ParseOpenTraining(text + " ").ok());
      EXPECT_FALSE(ParseOpenTraining(text.substr(0, text.size() - 1)).ok()) << text;
    }
  }
  for (const char* bad : {"", "open", "open 1", "open x 1", "open -1 1", "held", "open 1 1; held !! YQ== 1 1"}) {
    EXPECT_FALSE(ParseOpenTraining(bad).ok()) << bad;
  }
}

TEST(TrainingStateTest, NoLossIsForgottenForADay) {
  constexpr int64_t kDay = 24 * 3600 * kSecond;
  TrainingState state;
  const auto lose = [&](const TrainingParty& party, int64_t now) {
    const std::string refused = ReasonOf(state.Check(TrainingCall::kContribution, party, now));
    if (!refused.empty()) return refused;
    state.Apply(TrainingCall::kContribution, party, now);
    state.Apply(TrainingCall::kDiscardForced, {"carl", ""}, now);
    return refused;
  };
  EXPECT_EQ(lose(kAnn, 0), "");
  int decoys = 0;
  while (decoys < 2000 && lose({"bob", std::to_string(decoys)}, kSecond).empty()) ++decoys;
  EXPECT_EQ(decoys, 256) << "his share";
  EXPECT_EQ(lose({"bob", "one more"}, kSecond), "CALLER_QUOTA");
  EXPECT_EQ(lose({"dora", ""}, kSecond), "") << "others have room";
  EXPECT_EQ(Check(state, TrainingCall::kTrainStep, {"bob", "one more"}), "");
  decoys = 0;
  while (decoys < 2000 && lose({"decoy-" + std::to_string(decoys), ""}, kSecond).empty()) ++decoys;
  EXPECT_EQ(decoys, 1024 - 256 - 2);
  EXPECT_EQ(Check(state, TrainingCall::kContribution, kAnn), "ACCUMULATION_LOST");
  EXPECT_EQ(Check(state, TrainingCall::kContribution, {"dora", ""}), "ACCUMULATION_LOST");
  EXPECT_EQ(lose({"emil", ""}, kDay - 1), "CALLER_QUOTA");
  EXPECT_EQ(lose({"emil", ""}, kDay), "") << "that of ann is a day old";
  EXPECT_EQ(Check(state, TrainingCall::kApply, kAnn), "ACCUMULATION_EMPTY") << "it is forgotten";
}

TEST(TrainingStateTest, TheEngineHasTheLastWord) {
  TrainingState state;
  state.Apply(TrainingCall::kContribution, kAnn, 0);
  state.Reconcile(true, kAnn, 0);
  EXPECT_EQ(state.holder(), kAnn);
  state.Reconcile(false, kAnn, 0);
  EXPECT_FALSE(state.accumulating());
  EXPECT_TRUE(state.Check(TrainingCall::kContribution, kBob, 0).ok());
  state.Reconcile(true, kBob, 0);
  EXPECT_EQ(state.holder(), kBob) << "gradients that a failed call has left have a holder";
}

}  // namespace
}  // namespace penstock
