// Pipelines over two ranks, of which one is lost: what their callers see, and what they are when the group is complete
// again.

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "tests/unit/serve/reforming_table.h"

namespace penstock::testing {
namespace {

using State = PipelineEntry::State;

// A client's training: whole steps, an accumulation, a forward with its backward, a checkpoint, and inference meanwhile.
struct Trained {
  std::vector<CallOutcome> outcomes;
  NamedTensors state;
  std::vector<absl::Status> refusals;
  bool lost = false;
  int builds = 0;
};
Trained Train(int lose_at, int again_at = -1) {
  ReformingTable gpt;
  EXPECT_TRUE(gpt.Create().ok());
  gpt.LoseAt(lose_at);
  if (again_at >= 0) {
    gpt.before_create = [&, armed = true]() mutable {
      if (std::exchange(armed, false)) gpt.LoseAt(again_at);
    };
  }
  EXPECT_TRUE(gpt.TrainStep("1", 1).ok());
  const absl::StatusOr<Accepted> inference = gpt.StartInfer(1);
  EXPECT_TRUE(gpt.Contribute("2", 2).ok());
  EXPECT_TRUE(gpt.Contribute("3", 3).ok());
  EXPECT_TRUE(gpt.OptimizerStep("4").ok());
  EXPECT_TRUE(gpt.Save("kept").ok());
  EXPECT_TRUE(gpt.Forward("5", 4).ok());
  const absl::Status backward = gpt.Backward("6", "5", 4);
  EXPECT_TRUE(backward.ok()) << backward;
  EXPECT_TRUE(gpt.OptimizerStep("7").ok());
  EXPECT_TRUE(gpt.TrainStep("8", 5).ok());
  if (inference.ok()) gpt.SettledInTime(*inference->outputs).IgnoreError();  // in whatever way
  return {gpt.outcomes, gpt.State(), gpt.refusals, gpt.lost(), gpt.builds};
}

void ExpectSame(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.outcomes.size(), b.outcomes.size());
  for (size_t i = 0; i < a.outcomes.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(a.outcomes[i].run.step, b.outcomes[i].run.step);
    EXPECT_EQ(a.outcomes[i].run.loss, b.outcomes[i].run.loss);
    EXPECT_EQ(a.outcomes[i].run.gradient_norm, b.outcomes[i].run.gradient_norm);
    EXPECT_EQ(a.outcomes[i].sequence, b.outcomes[i].sequence);
    const auto version = [](const std::string& token) { return token.substr(token.rfind('-')); };
    EXPECT_EQ(version(a.outcomes[i].state_token), version(b.outcomes[i].state_token)) << "but for the life's name";
  }
  EXPECT_TRUE(Same(a.state, b.state)) << "to the last bit";
}

TEST(PipelineUpdateOverRanks, IsRefusedAndThePipelineServesOn) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  EXPECT_EQ(ReasonOf(gpt.Update()), "FEATURE_DISABLED");
  EXPECT_EQ(gpt.builds, 1);
  EXPECT_TRUE(gpt.TrainStep("1", 1).ok());
}

TEST(PublicationOverRanks, IsRefusedAndThePipelineServesOn) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  EXPECT_EQ(ReasonOf(gpt.Publish("one")), "FEATURE_DISABLED");
  EXPECT_EQ(gpt.builds, 1);
  EXPECT_TRUE(gpt.TrainStep("1", 1).ok());
}

TEST(UnloadingOverRanks, IsRefusedAndThePipelineServesOn) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  EXPECT_EQ(ReasonOf(gpt.Unload()), "FEATURE_DISABLED");
  EXPECT_TRUE(gpt.TrainStep("1", 1).ok());
}

TEST(PipelineReforming, TrainingGoesOnAsIfNoRankHadBeenLost) {
  const Trained whole = Train(/*lose_at=*/-1);
  ASSERT_EQ(whole.builds, 1);
  int lost = 0;
  for (int action = 0;; action += 3) {
    SCOPED_TRACE(action);
    const Trained again = Train(action);
    if (!again.lost) break;
    ++lost;
    ASSERT_GE(again.refusals.size(), size_t{1});
    for (const absl::Status& refused : again.refusals) {
      EXPECT_TRUE(ReasonOf(refused) == "RANK_LOST" || ReasonOf(refused) == "PIPELINE_REFORMING") << refused;
    }
    EXPECT_GE(again.builds, 2);
    ExpectSame(whole, again);
  }
  EXPECT_GT(lost, 15) << "in the parts of each call";
}

TEST(PipelineReforming, ALossWhileItIsMadeAgainIsALossLikeAnyOther) {
  const Trained whole = Train(/*lose_at=*/-1);
  for (const int again_at : {0, 7, 15}) {
    SCOPED_TRACE(again_at);
    const Trained again = Train(/*lose_at=*/30, again_at);
    EXPECT_GE(again.builds, 3);
    ExpectSame(whole, again);
  }
}

TEST(PipelineReforming, ALossBetweenCallsRefusesWorkUntilTheGroupIsComplete) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
  gpt.Lose();
  EXPECT_EQ(gpt.table().Get("gpt")->state, State::kReforming) << "from the first moment on";
  const absl::Status refused = gpt.Once([](ServedPipeline&) { return absl::OkStatus(); });
  EXPECT_EQ(ReasonOf(refused), "PIPELINE_REFORMING") << refused;
  EXPECT_EQ(ValuesOf(refused)["retry_after_ms"], "1000");
  EXPECT_EQ(ReasonOf(gpt.table().Get("gpt")->error), "RANK_LOST");
  EXPECT_EQ(ReasonOf(gpt.Create("other")), "GROUP_INCOMPLETE") << "a client's creation is refused";
  gpt.table().OnGroupComplete();  // and then it was not
  EXPECT_EQ(ReasonOf(gpt.Create("other")), "GROUP_INCOMPLETE") << "what is made again comes before";
  EXPECT_EQ(gpt.table().Get("gpt")->state, State::kReforming);
  EXPECT_EQ(gpt.table().Get("gpt")->rest.step, 1) << "what it was is told";
  gpt.Complete();
  gpt.Await(State::kReady);
  ASSERT_TRUE(gpt.TrainStep("2", 1).ok());
  EXPECT_EQ(gpt.outcomes.back().run.step, 2);
}

TEST(PipelineReforming, ARankThatIsLostToThePipelineAloneIsUsedAgainAtOnce) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
  gpt.group.LoseForPipeline(Rank(1));
  EXPECT_EQ(gpt.table().Get("gpt")->state, State::kReforming);
  gpt.Await(State::kReady);
  ASSERT_TRUE(gpt.TrainStep("2", 1).ok());
  EXPECT_EQ(gpt.outcomes.back().run.step, 2);
}

TEST(PipelineReforming, AnInferenceThatIsOpenEndsWithTheLoss) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  absl::StatusOr<Accepted> inference;
  {
    gpt.LoseAt(3);
    const absl::Status step = gpt.Once([&](ServedPipeline& served) {
      absl::StatusOr<Accepted> accepted = served.TrainStep(ReformingTable::As("1"), ReformingTable::Batch(1), {});
      inference = gpt.StartInfer(1);
      return gpt.OutcomeOf(accepted);
    });
    EXPECT_EQ(ReasonOf(step), "RANK_LOST") << step;
  }
  if (inference.ok()) {
    const absl::Status settled = gpt.SettledInTime(*inference->outputs);
    EXPECT_TRUE(settled.ok() || ReasonOf(settled) == "RANK_LOST") << settled;
  } else {
    EXPECT_EQ(ReasonOf(inference.status()), "PIPELINE_REFORMING") << inference.status();
  }
}

TEST(PipelineReforming, WithoutAJournalItGoesOnFromItsLastCheckpoint) {
  for (const bool saved : {true, false}) {
    SCOPED_TRACE(saved);
    ReformingTable gpt(/*with_journal=*/false);
    ASSERT_TRUE(gpt.Create().ok());
    const NamedTensors first = gpt.State();
    ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
    if (saved) {
      ASSERT_TRUE(gpt.Save("kept").ok());
    }
    const NamedTensors kept = gpt.State();
    ASSERT_TRUE(gpt.TrainStep("2", 2).ok());
    for (int loss = 0; loss < 2; ++loss) {
      gpt.Lose();
      gpt.Complete();
      gpt.Await(State::kReady);
      EXPECT_TRUE(Same(gpt.State(), saved ? kept : first)) << loss;
    }
  }
}

TEST(PipelineReforming, OneThatWaitsForItsGroupCanBeDeleted) {
  for (const bool with_journal : {true, false}) {
    SCOPED_TRACE(with_journal);
    ReformingTable gpt(with_journal);
    ASSERT_TRUE(gpt.Create().ok());
    ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
    gpt.Lose();
    gpt.table().OnGroupComplete();
    const absl::Status deleted = gpt.Delete();
    EXPECT_TRUE(deleted.ok()) << deleted;
    EXPECT_EQ(ReasonOf(gpt.table().Get("gpt").status()), "PIPELINE_NOT_FOUND");
    gpt.group.Complete();
    EXPECT_TRUE(gpt.Create().ok()) << "the name is free";
    ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
    EXPECT_EQ(gpt.outcomes.back().run.step, 1);
  }
}

TEST(PipelineReforming, OneThatIsMadeAgainCanBeDeleted) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
  absl::Notification begun;
  absl::Notification go_on;
  gpt.before_create = [&] {
    begun.Notify();
    go_on.WaitForNotification();
  };
  gpt.Lose();
  gpt.Complete();
  begun.WaitForNotification();
  absl::Notification gone;
  absl::Status deleted;
  gpt.StartDelete([&](const absl::Status& status) {
    deleted = status;
    gone.Notify();
  });
  EXPECT_FALSE(gone.HasBeenNotified());
  go_on.Notify();
  gone.WaitForNotification();
  EXPECT_TRUE(deleted.ok()) << deleted;
  EXPECT_EQ(ReasonOf(gpt.table().Get("gpt").status()), "PIPELINE_NOT_FOUND");
}

TEST(PipelineReforming, ADrainDoesNotWaitForTheGroupAndItsEndGoesOn) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
  gpt.Lose();
  gpt.AwaitStopped();
  absl::Notification drained;
  gpt.table().Drain([&] { drained.Notify(); });
  drained.WaitForNotification();
  gpt.Complete();
  EXPECT_EQ(gpt.table().Get("gpt")->state, State::kReforming);
  EXPECT_EQ(ReasonOf(gpt.table().CheckEmptyJournals()), "RANK_LOST");
  gpt.table().Resume();
  gpt.Await(State::kReady);
  EXPECT_TRUE(gpt.TrainStep("2", 1).ok());
}

TEST(PipelineReforming, ALossIsNoReasonToWaitAtTheEnd) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
  gpt.Lose();
}

TEST(PipelineReforming, AStartWithoutTheGroupWaitsForItWithoutHoldingTheDaemonUp) {
  ReformingTable gpt;
  ASSERT_TRUE(gpt.Create().ok());
  ASSERT_TRUE(gpt.TrainStep("1", 1).ok());
  const NamedTensors trained = gpt.State();
  gpt.Lose();
  gpt.Restart();
  EXPECT_EQ(gpt.table().Get("gpt")->state, State::kReforming);
  EXPECT_EQ(ReasonOf(gpt.table().Get("gpt")->error), "GROUP_INCOMPLETE");
  gpt.Complete();
  gpt.Await(State::kReady);
  EXPECT_TRUE(Same(gpt.State(), trained));
}

}  // namespace
}  // namespace penstock::testing
