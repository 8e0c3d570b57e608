#include "engine/store/training_state.h"

#include <gmock/gmock.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

// The table of the protocol: what each call answers when CLEAN, ACCUMULATING for oneself, ACCUMULATING for another.
TEST(TrainingStateTest, FollowsTheTable) {
  struct Row {
    TrainingCall call;
    std::string clean, holder, other;
    bool accumulates_after;  // of one's own accumulation
  };
  const std::vector<Row> table = {
      {TrainingCall::kContribution, "", "", "ACCUMULATION_HELD", true},
      {TrainingCall::kApply, "ACCUMULATION_EMPTY", "", "ACCUMULATION_HELD", false},
      {TrainingCall::kDiscard, "ACCUMULATION_EMPTY", "", "ACCUMULATION_HELD", false},
      {TrainingCall::kTrainStep, "", "ACCUMULATION_OPEN", "ACCUMULATION_OPEN", false},
      {TrainingCall::kForward, "", "", "", true},
      {TrainingCall::kSave, "", "", "", true},
      {TrainingCall::kRestore, "", "ACCUMULATION_OPEN", "ACCUMULATION_OPEN", false},
      {TrainingCall::kRestoreForced, "", "", "", false},
      {TrainingCall::kDeleteCheckpoint, "", "", "", true},
  };
  for (const Row& row : table) {
    SCOPED_TRACE(static_cast<int>(row.call));
    TrainingState state;
    EXPECT_EQ(ReasonOf(state.Check(row.call, "ann")), row.clean);
    state.Apply(TrainingCall::kContribution, "ann");
    EXPECT_EQ(ReasonOf(state.Check(row.call, "ann")), row.holder);
    EXPECT_EQ(ReasonOf(state.Check(row.call, "bob")), row.other);
    if (row.holder.empty()) {
      state.Apply(row.call, "ann");
      EXPECT_EQ(state.accumulating(), row.accumulates_after);
      EXPECT_EQ(state.holder(), row.accumulates_after ? "ann" : "");
    }
  }
}

TEST(TrainingStateTest, TheEngineHasTheLastWord) {
  TrainingState state;
  state.Apply(TrainingCall::kContribution, "ann");
  state.Reconcile(true, "ann");
  EXPECT_EQ(state.holder(), "ann");
  state.Reconcile(false, "ann");
  EXPECT_FALSE(state.accumulating());
  EXPECT_TRUE(state.Check(TrainingCall::kContribution, "bob").ok());
  state.Reconcile(true, "bob");
  EXPECT_EQ(state.holder(), "bob") << "gradients that a failed call has left have a holder";
}

}  // namespace
}  // namespace penstock
