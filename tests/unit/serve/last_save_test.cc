// The save that a pipeline makes at its end, and the table's of all pipelines.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/cancel_token.h"
#include "engine/base/log.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "tests/support/failing_new.h"
#include "tests/unit/serve/hosting_fixture.h"

namespace penstock::testing {
namespace {

// What the last save of "gpt" came to.
class LastSaveTest : public HostingFixture {
 protected:
  absl::StatusOr<std::optional<CheckpointInfo>> SaveLast(std::shared_ptr<CancelToken> cancel = NewToken()) {
    absl::StatusOr<std::optional<CheckpointInfo>> answer;
    absl::Notification done;
    gpt_->SaveLast(std::move(cancel), [&](auto saved) {
      answer = std::move(saved);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }
  // Waits until "gpt" has nothing to do; it accepts nothing any more.
  void AwaitIdle() {
    absl::Notification idle;
    gpt_->Drain(/*force=*/false, [&] { idle.Notify(); });
    idle.WaitForNotification();
  }
  static std::shared_ptr<CancelToken> NewToken() { return std::make_shared<CancelToken>(); }
};

TEST_F(LastSaveTest, SavesTheStateAfterTheLastFinishedCall) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  control_->Hold();
  const Accepted running = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  const Accepted waiting = *gpt_->TrainStep(Caller(), Batch(), {});
  absl::Notification done;
  std::optional<CheckpointInfo> saved;
  gpt_->SaveLast(NewToken(), [&](auto answer) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    saved = *answer;
    done.Notify();
  });
  EXPECT_EQ(Settled(*waiting.outcome).state, HandleState::kCancelled) << "no work after the save";
  control_->Resume();
  done.WaitForNotification();
  EXPECT_EQ(Settled(*running.outcome).state, HandleState::kReady);
  ASSERT_TRUE(saved.has_value());
  EXPECT_EQ(saved->id, "step-2");
  EXPECT_EQ(saved->step, 2);
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller(), Batch(), {}).status()), "DRAINING");
}

TEST_F(LastSaveTest, SavesOnlyWhatHasChanged) {
  EXPECT_EQ(*SaveLast(), std::nullopt) << "what was just made";
  EXPECT_TRUE(gpt_->ListCheckpoints().empty());
}

TEST_F(LastSaveTest, DoesNotRepeatACheckpoint) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Save("mine").ok());
  Settled(*gpt_->Infer(Caller(), Ask(1))->outputs);
  EXPECT_EQ(*SaveLast(), std::nullopt);
}

TEST_F(LastSaveTest, RepeatsWhatWasSavedAndThenDeleted) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Save("mine").ok());
  ASSERT_TRUE(Save("again").ok());
  ASSERT_TRUE(Remove("again").ok());
  const auto saved = SaveLast();
  ASSERT_TRUE(saved.ok() && saved->has_value()) << saved.status();
  EXPECT_EQ((*saved)->id, "step-1");
}

TEST_F(LastSaveTest, DoesNotRepeatWhatWasRestored) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Save("mine").ok());
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Restore("mine").ok());
  EXPECT_EQ(*SaveLast(), std::nullopt);
}

TEST_F(LastSaveTest, GradientsAreInNoCheckpointAndMakeNone) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Save("mine").ok());
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  const int64_t warnings = LoggedLines(LogLevel::kWarning);
  EXPECT_EQ(*SaveLast(), std::nullopt);
  EXPECT_EQ(LoggedLines(LogLevel::kWarning), warnings + 1) << "that they are lost";
}

TEST_F(LastSaveTest, DiscardedGradientsMakeNone) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Save("mine").ok());
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  Settled(*gpt_->OptimizerStep(Caller(), {.discard = true})->outcome);
  EXPECT_EQ(*SaveLast(), std::nullopt);
}

TEST_F(LastSaveTest, FindsAFreeName) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Save("step-2").ok());
  ASSERT_TRUE(Save("step-2-end").ok());
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  const auto saved = SaveLast();
  ASSERT_TRUE(saved.ok() && saved->has_value()) << saved.status();
  EXPECT_EQ((*saved)->id, "step-2-end-2");
}

TEST_F(LastSaveTest, AFullDiskIsAnErrorAndCounted) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  files_.SetFreeBytes(10);
  EXPECT_EQ(ReasonOf(SaveLast().status()), "STORAGE_FULL");
  EXPECT_EQ(Metrics()->checkpoint_failures[CheckpointOperation::kSave].value(), 1);
  EXPECT_TRUE(gpt_->ListCheckpoints().empty());
}

TEST_F(LastSaveTest, CanBeGivenUpAndLeavesNothing) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  const auto cancel = NewToken();
  cancel->Cancel();
  EXPECT_EQ(ReasonOf(SaveLast(cancel).status()), "WORK_CANCELLED");
  EXPECT_TRUE(gpt_->ListCheckpoints().empty());
  EXPECT_EQ(Metrics()->checkpoint_failures[CheckpointOperation::kSave].value(), 1);
}

TEST_F(LastSaveTest, IsAnsweredByAPipelineThatHasStopped) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  gpt_->Stop();
  EXPECT_EQ(ReasonOf(SaveLast().status()), "WORK_CANCELLED");
}

TEST_F(LastSaveTest, TheTableSavesAllAndNamesThoseThatFail) {
  ASSERT_TRUE(Create("mlp").ok());
  ASSERT_TRUE(Create("new").ok());
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  Settled(*(*table_->Find("mlp"))->TrainStep(Caller(), Batch(), {})->outcome);
  const auto save_all = [this] {
    LastSaves all;
    absl::Notification done;
    table_->SaveLast({}, NewToken(), [&](LastSaves saves) {
      all = std::move(saves);
      done.Notify();
    });
    done.WaitForNotification();
    std::sort(all.failed.begin(), all.failed.end());
    return all;
  };
  files_.SetFreeBytes(10);
  EXPECT_EQ(save_all().failed, (std::vector<std::string>{"gpt", "mlp"}));
  files_.SetFreeBytes(-1);
  const auto saved = [this] {
    return gpt_->ListCheckpoints().size() + (*table_->Find("mlp"))->ListCheckpoints().size();
  };
  EXPECT_TRUE(save_all().failed.empty());
  EXPECT_EQ(saved(), 2);
  EXPECT_TRUE(save_all().failed.empty());
  EXPECT_EQ(saved(), 2) << "nothing has changed since";
}

TEST_F(LastSaveTest, AfterADrainThatWasAbortedAllGoesOn) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  absl::Notification idle, saved;
  table_->Drain([&] { idle.Notify(); });
  idle.WaitForNotification();
  table_->SaveLast({.force = false}, NewToken(), [&](const LastSaves&) { saved.Notify(); });
  saved.WaitForNotification();
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller(), Batch(), {}).status()), "DRAINING");
  EXPECT_EQ(ReasonOf(Create("mlp").status()), "DRAINING");
  table_->Resume();
  EXPECT_EQ(table_->Get("gpt")->state, PipelineEntry::State::kReady);
  EXPECT_EQ(Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome).state, HandleState::kReady);
  EXPECT_TRUE(Create("mlp").ok());
}

TEST_F(LastSaveTest, OneWithoutForceCancelsNothing) {
  control_->Hold();
  const Accepted running = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  const Accepted waiting = *gpt_->TrainStep(Caller(), Batch(), {});
  absl::Notification saved;
  table_->SaveLast({.force = false}, NewToken(), [&](const LastSaves&) { saved.Notify(); });
  control_->Resume();
  saved.WaitForNotification();
  EXPECT_EQ(Settled(*waiting.outcome).state, HandleState::kReady);
  EXPECT_EQ(gpt_->ListCheckpoints().front().step, 2);
}

TEST_F(LastSaveTest, WithoutAJournalThereIsNoneToEmpty) {
  EXPECT_TRUE(table_->CheckEmptyJournals().ok());
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  absl::Notification done;
  table_->SaveLast({.empty_journal = true}, NewToken(), [&](const LastSaves& saves) {
    EXPECT_TRUE(saves.failed.empty() && saves.unemptied.empty());
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(gpt_->ListCheckpoints().size(), 1);
}

TEST_F(LastSaveTest, APipelineWhoseWorkDoesNotEndHoldsUpTheSaveOfNoOther) {
  ASSERT_TRUE(Create("z").ok());
  const auto z = *table_->Find("z");
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  AwaitIdle();  // else its save may begin only after the next AwaitIdle() has returned
  control_->Hold();
  ASSERT_TRUE(z->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();
  const auto cancel = NewToken();
  LastSaves all;
  absl::Notification done;
  table_->SaveLast({}, cancel, [&](LastSaves saves) {
    all = std::move(saves);
    done.Notify();
  });
  AwaitIdle();
  EXPECT_EQ(gpt_->ListCheckpoints().size(), 1) << "it has been saved";
  cancel->Cancel();
  control_->Resume();
  done.WaitForNotification();
  EXPECT_EQ(all.failed, std::vector<std::string>{"z"});
  EXPECT_TRUE(z->ListCheckpoints().empty());
}

TEST_F(LastSaveTest, OneThatFindsNoMemoryIsAnswered) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  AwaitIdle();  // from here on it is this thread that saves
  int answered = 0;
  int failures = 0;
  for (bool failed = true; failed; ++failures) {
    const auto cancel = NewToken();
    absl::Notification done;
    int answers = 0;
    const std::function<void(absl::StatusOr<std::optional<CheckpointInfo>>)> tell = [&](const auto&) {
      ++answers;
      done.Notify();
    };
    bool thrown = false;
    FailNewOnce(failures);
    try {
      gpt_->SaveLast(cancel, tell);
    } catch (const std::bad_alloc&) {
      thrown = true;
    }
    failed = StopFailingNew();
    if (thrown) continue;
    done.WaitForNotification();
    EXPECT_EQ(answers, 1);
    ++answered;
  }
  EXPECT_GT(answered, 1);
}

TEST_F(LastSaveTest, TheTableSavesNothingThatIsBeingDeleted) {
  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "gpt", false, false, [&](const absl::Status&) { deleted.Notify(); });
  absl::Notification saved;
  table_->SaveLast({}, NewToken(), [&](const LastSaves&) { saved.Notify(); });
  EXPECT_TRUE(saved.HasBeenNotified()) << "it waits for no work of a pipeline that nobody wants";
  gpt_.reset();
  control_->Resume();
  deleted.WaitForNotification();
  saved.WaitForNotification();
}

}  // namespace
}  // namespace penstock::testing
