// Another cut, schedule or batching for a pipeline that serves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/thread.h"
#include "tests/unit/serve/hosting_fixture.h"
#include "tests/unit/serve/journalled_table.h"
#include "tests/unit/serve/served_engine.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;

PipelineSpec OtherCut() {
  PipelineSpec spec = ServedSpec();
  spec.cut.balance = {1, 2};
  spec.schedule.kind = "gpipe";
  return spec;
}

// --- Over the real engine.

class EngineUpdateTest : public ::testing::Test {
 protected:
  // A step of the served pipeline and of one alone, which must be the same.
  void Step() {
    ASSERT_TRUE(served_.TrainStep({.learning_rate = 0.1}).ok());
    ASSERT_TRUE(alone_->TrainStep(served_.AloneBatch(), {.learning_rate = 0.1}).ok());
    ASSERT_TRUE(Same(served_.Read().value(), alone_->ExportState(true).value()));
  }

  TemporaryFolder folder_;
  ServedEngine served_{folder_.path()};
  const std::unique_ptr<Pipeline> alone_ = served_.Alone();
};

TEST_F(EngineUpdateTest, TheStateStaysBitForBitAndTrainingGoesOnFromIt) {
  Step();
  const ServedPipeline::Statistics before = served_.hosted->statistics();
  ASSERT_TRUE(served_.Update(OtherCut()).ok());
  EXPECT_TRUE(Same(served_.Read().value(), alone_->ExportState(true).value()));
  const ServedPipeline::Statistics after = served_.hosted->statistics();
  EXPECT_EQ(after.step, 1);
  EXPECT_EQ(after.state_token, before.state_token);
  const Plan& plan = served_.hosted->pipeline().plan();
  EXPECT_EQ(plan.stages[0].layers.size(), 1);
  EXPECT_EQ(plan.schedule.kind, "gpipe");
  Step();
  Step();
}

TEST_F(EngineUpdateTest, SettingsOfTheOptimizerThatWereChangedStay) {
  OptimizerSpec changed = served_.hosted->pipeline().optimizer();
  changed.clip_norm = 1e-3;
  absl::Notification told;
  served_.hosted->UpdateOptimizer({.caller = "ann"}, changed, [&](const auto& answer) {
    EXPECT_TRUE(answer.ok());
    told.Notify();
  });
  told.WaitForNotification();
  ASSERT_TRUE(alone_->UpdateOptimizer(changed).ok());
  ASSERT_TRUE(served_.Update(OtherCut()).ok());
  EXPECT_EQ(served_.hosted->pipeline().optimizer().clip_norm, 1e-3);
  Step();
}

TEST_F(EngineUpdateTest, WhatIsAccumulatedAndOpenGraphsRefuseItAndStay) {
  ASSERT_TRUE(served_.Contribute().ok());
  EXPECT_EQ(ReasonOf(served_.Update(OtherCut())), "ACCUMULATION_OPEN");
  ASSERT_TRUE(served_.OptimizerStep().ok());
  ASSERT_TRUE(served_.Forward().ok());
  EXPECT_EQ(ReasonOf(served_.Update(OtherCut())), "GRAPH_OPEN");
  EXPECT_EQ(served_.hosted->pipeline().plan().schedule.kind, "1f1b");
  ASSERT_TRUE(served_.TrainStep().ok());  // the graph is stale
  EXPECT_TRUE(served_.Update(OtherCut()).ok());
}

TEST_F(EngineUpdateTest, AnotherModelIsRefusedAndTheOneThatStandsServesOn) {
  PipelineSpec other = ServedSpec();
  other.model.layers.pop_back();
  other.cut.balance = {1, 1};
  EXPECT_EQ(ReasonOf(served_.Update(other)), "MODEL_MISMATCH");
  Step();
  EXPECT_TRUE(served_.Infer().ok());
}

TEST_F(EngineUpdateTest, NoCallFailsUnderLoad) {
  constexpr int kUpdates = 6;
  std::atomic<bool> stop = false;
  std::atomic<int> failures = 0;
  std::atomic<int> inferences = 0;
  std::atomic<int> steps = 0;
  {
    std::vector<std::unique_ptr<Thread>> load;
    for (int i = 0; i < 2; ++i) {
      load.push_back(std::make_unique<Thread>("t-infer", [&] {
        for (; !stop; ++inferences) failures += served_.Infer().ok() ? 0 : 1;
      }));
    }
    load.push_back(std::make_unique<Thread>("t-train", [&] {
      for (; !stop; ++steps) failures += served_.TrainStep({.learning_rate = 0.1}).ok() ? 0 : 1;
    }));
    for (int i = 0; i < kUpdates; ++i) {
      PipelineSpec next = i % 2 == 0 ? OtherCut() : ServedSpec();
      if (i % 3 == 0) next.batching = DynamicBatchingSpec{.max_rows = 16};
      EXPECT_TRUE(served_.Update(next).ok());
      const int infers = inferences;
      const int trained = steps;
      while (inferences == infers || steps == trained) std::this_thread::yield();
    }
    stop = true;
  }
  EXPECT_EQ(failures, 0);
  for (int i = 0; i < steps; ++i) ASSERT_TRUE(alone_->TrainStep(served_.AloneBatch(), {.learning_rate = 0.1}).ok());
  EXPECT_TRUE(Same(served_.Read().value(), alone_->ExportState(true).value()));
}

// --- Through the table, with fake engines.

class TableUpdateTest : public HostingFixture {
 protected:
  struct Pending {
    absl::StatusOr<PipelineEntry> entry = absl::UnknownError("");
    absl::Notification done;
  };
  std::shared_ptr<Pending> Start(const std::string& model = "fake", const std::string& request_id = "",
                                 std::optional<DynamicBatchingSpec> batching = {},
                                 const PipelineTable::AcceptUpdate& accept = nullptr) {
    PipelineRecipe recipe;
    recipe.spec.model.name = model;
    recipe.spec.batching = batching;
    auto pending = std::make_shared<Pending>();
    table_->Update({.caller = "ann", .request_id = request_id, .payload_digest = "d"}, "gpt", recipe, accept,
                   [pending](absl::StatusOr<PipelineEntry> entry) {
                     pending->entry = std::move(entry);
                     pending->done.Notify();
                   });
    return pending;
  }
  static absl::StatusOr<PipelineEntry> End(const std::shared_ptr<Pending>& pending) {
    pending->done.WaitForNotification();
    return pending->entry;
  }
};

TEST_F(TableUpdateTest, InferenceThatRunsEndsOnTheOldOneAndWhatComesMeanwhileRunsOnTheNewOne) {
  control_->HoldInference();
  const HandleName runs = *gpt_->Infer(Caller(), Ask()).value().outputs;
  control_->AwaitInferences(1);
  absl::Notification gone;
  control_->AtTheEnd([&] { gone.Notify(); });
  const auto update = Start();
  while (!gpt_->statistics().paused) std::this_thread::yield();
  const size_t started = control_->inferences().size();
  const HandleName waits = *gpt_->Infer(Caller(), Ask(2)).value().outputs;
  const ServedPipeline::Statistics then = gpt_->statistics();
  EXPECT_EQ(then.infer_queue_calls, 1) << "there are places, and it takes none";
  EXPECT_EQ(control_->inferences().size(), started);
  EXPECT_FALSE(gone.HasBeenNotified());
  EXPECT_FALSE(update->done.HasBeenNotified());
  control_->ResumeInference();
  ASSERT_TRUE(End(update).ok());
  gone.WaitForNotification();
  EXPECT_EQ(ValueOf(runs), 1);
  EXPECT_EQ(ValueOf(waits), 2);
  EXPECT_FALSE(gpt_->statistics().paused);
}

TEST_F(TableUpdateTest, TheEntryHasTheNewSpecificationAndAnotherVersionAndBatchesAsItSays) {
  const PipelineEntry before = *table_->Get("gpt");
  const auto metrics = Metrics();
  const absl::StatusOr<PipelineEntry> after = End(Start("fake", "", DynamicBatchingSpec{.max_rows = 4}));
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_GT(after->version, before.version);
  EXPECT_EQ(after->spec.batching->max_rows, 4);
  EXPECT_EQ(after->pipeline, gpt_);
  EXPECT_NE(Metrics(), metrics);
  EXPECT_EQ(Metrics(), gpt_->metrics());
  EXPECT_EQ(Metrics()->queues[WorkQueue::kTrain].capacity.value(), metrics->queues[WorkQueue::kTrain].capacity.value());

  control_->HoldInference();
  const size_t earlier = control_->inferences().size();
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());  // the only place
  control_->AwaitInferences(1);
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());
  control_->ResumeOneInference();
  control_->AwaitInferences(1);
  EXPECT_EQ(control_->inferences().size(), earlier + 2);
  EXPECT_EQ(control_->inferences().back().first, 4) << "two requests as one";
  control_->ResumeInference();
}

TEST_F(TableUpdateTest, WhatCanNotBeMadeChangesNothing) {
  const PipelineEntry before = *table_->Get("gpt");
  const auto metrics = Metrics();
  const int64_t taken = memory_.bytes();
  EXPECT_EQ(ReasonOf(End(Start("broken")).status()), "SPEC_INVALID");
  control_->RunOutOfMemoryIn("ExportState");
  EXPECT_EQ(ReasonOf(End(Start("half")).status()), "HOST_MEMORY");
  EXPECT_EQ(memory_.bytes(), taken);
  EXPECT_EQ(Metrics(), metrics);
  EXPECT_EQ(gpt_->metrics(), metrics);
  EXPECT_EQ(table_->Get("gpt")->version, before.version);
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask()).value().outputs), 1);
}

TEST_F(TableUpdateTest, MemoryOfTheOldOneComesBackAndTooLittleForBothRefusesIt) {
  ASSERT_TRUE(Create("big", "half").ok());
  const int64_t taken = memory_.bytes();
  EXPECT_EQ(ReasonOf(End(Start("more")).status()), "HOST_MEMORY");
  EXPECT_EQ(memory_.bytes(), taken);
  ASSERT_TRUE(End(Start()).ok());
  EXPECT_EQ(memory_.bytes(), taken);
}

TEST_F(TableUpdateTest, OneAtATimeAndOnlyOfWhatIsAcceptedAndARetryIsNotAskedAgain) {
  absl::Notification building;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options&) {  // of the first
    if (building.HasBeenNotified()) return;
    building.Notify();
    go.WaitForNotification();
  };
  const auto refused = [](const PipelineEntry&) { return absl::AbortedError("another one"); };
  const auto first = Start("fake", "3f0e8a52-93c1-4f6e-9d3f-0a1b2c3d4e5f");
  building.WaitForNotification();
  EXPECT_EQ(ReasonOf(End(Start()).status()), "PIPELINE_NOT_READY");
  const auto again = Start("fake", "3f0e8a52-93c1-4f6e-9d3f-0a1b2c3d4e5f", {}, refused);  // joins the first
  EXPECT_FALSE(again->done.HasBeenNotified());
  go.Notify();
  EXPECT_TRUE(End(first).ok());
  EXPECT_TRUE(End(again).ok());
  EXPECT_EQ(End(again)->version, End(first)->version);
  EXPECT_TRUE(absl::IsAborted(End(Start("fake", "", {}, refused)).status()));
  EXPECT_TRUE(End(Start()).ok());
}

TEST_F(TableUpdateTest, ADeletionEndsOneThatWaitsForItsTurn) {
  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();
  const auto waits = Start();
  while (gpt_->statistics().train_queue_calls < 1) std::this_thread::yield();
  gpt_.reset();
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "gpt", /*force=*/true, /*purge=*/false, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    deleted.Notify();
  });
  control_->Resume();
  deleted.WaitForNotification();
  EXPECT_EQ(ReasonOf(End(waits).status()), "WORK_CANCELLED");
  ASSERT_TRUE(Create("gpt").ok());
  EXPECT_TRUE(End(Start()).ok()) << "the new one of the name is not being updated";
}

TEST_F(TableUpdateTest, ADeletionWithoutForceLetsOneThatWaitsHappen) {
  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();
  const auto waits = Start();
  while (gpt_->statistics().train_queue_calls < 1) std::this_thread::yield();
  gpt_.reset();
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "gpt", /*force=*/false, /*purge=*/false, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok());
    deleted.Notify();
  });
  control_->Resume();
  deleted.WaitForNotification();
  EXPECT_TRUE(End(waits).ok());
  EXPECT_EQ(memory_.bytes(), 0);
}

TEST_F(TableUpdateTest, ADeletionEndsOneThatIsBeingMadeAndWaitsForNoneOfIt) {
  absl::Notification building;
  absl::Notification go;
  std::atomic<bool> wanted = true;
  before_create_ = [&](const Pipeline::Options& engine) {
    building.Notify();
    go.WaitForNotification();
    wanted = engine.profile.planning->CheckWanted().ok();
  };
  const auto update = Start();
  building.WaitForNotification();
  gpt_.reset();
  ASSERT_TRUE(Delete("gpt", /*force=*/true).ok());
  EXPECT_EQ(memory_.bytes(), 0) << "the one that stood is gone";
  go.Notify();
  EXPECT_EQ(ReasonOf(End(update).status()), "PIPELINE_NOT_READY");
  EXPECT_FALSE(wanted);
}

TEST_F(TableUpdateTest, NoPipelineNoUpdateAndADrainRefusesIt) {
  const auto missing = std::make_shared<Pending>();
  table_->Update({.caller = "ann"}, "nobody", {}, nullptr, [missing](absl::StatusOr<PipelineEntry> entry) {
    missing->entry = std::move(entry);
    missing->done.Notify();
  });
  EXPECT_EQ(ReasonOf(End(missing).status()), "PIPELINE_NOT_FOUND");
  table_->Drain([] {});
  EXPECT_EQ(ReasonOf(End(Start()).status()), "DRAINING");
}

// --- With a journal.

class JournalledUpdateTest : public JournalledTable {
 protected:
  JournalledUpdateTest() {
    setup_.recipe = [this](const std::string& specification) -> absl::StatusOr<PipelineRecipe> {
      made_from_.push_back(specification);
      return Described(specification);
    };
  }
  static PipelineRecipe Described(const std::string& specification) {
    PipelineRecipe recipe = Recipe();
    recipe.describe = [specification](const Plan&, const ModelSpec&, const OptimizerSpec&) { return specification; };
    return recipe;
  }
  absl::Status Update(const std::string& specification, const std::string& request_id = "") {
    absl::Status status;
    absl::Notification done;
    table_->Update({.caller = "ann", .request_id = request_id, .payload_digest = "d"}, "gpt", Described(specification),
                   nullptr, [&](const absl::StatusOr<PipelineEntry>& entry) {
                     status = entry.status();
                     done.Notify();
                   });
    done.WaitForNotification();
    return status;
  }
  absl::Status Step() {
    ContributionCall call;
    call.inputs.push_back({"x", at::full({2}, 1.0f)});
    call.target = {"target", at::full({2}, 0.0f)};
    const auto accepted = (*table_->Find("gpt"))->TrainStep({.caller = "ann", .record = "train"}, call, {});
    if (!accepted.ok()) return accepted.status();
    absl::Status error;
    absl::Notification done;
    handles_.OnSettled("ann", {*accepted->outcome}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                       [&](std::vector<HandleStore::HandleAnswer> answers) {
                         error = answers[0].ok() ? answers[0]->error : answers[0].status();
                         done.Notify();
                       });
    done.WaitForNotification();
    return error;
  }
  int64_t step() { return (*table_->Find("gpt"))->statistics().step; }

  std::vector<std::string> made_from_;
};

TEST_F(JournalledUpdateTest, ARestartMakesItAsItWasUpdatedBeforeAnyCallToo) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Update("second").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(made_from_.back(), "second");
  EXPECT_EQ(step(), 0);
}

TEST_F(JournalledUpdateTest, CallsBeforeItAreInItsCheckpointAndThoseBehindItAreMadeAgain) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Step().ok());
  ASSERT_TRUE(Step().ok());
  ASSERT_TRUE(Update("second").ok());
  EXPECT_EQ((*table_->Find("gpt"))->statistics().journal_calls, 0);
  ASSERT_TRUE(Step().ok());
  EXPECT_EQ((*table_->Find("gpt"))->statistics().journal_calls, 1);
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(made_from_.back(), "second");
  EXPECT_EQ(step(), 3);
  ASSERT_TRUE(Update("third").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(made_from_.back(), "third");
  EXPECT_EQ(step(), 3);
}

TEST_F(JournalledUpdateTest, ASaveOfTheSameStateBeforeItDoesNotUndoIt) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Step().ok());
  absl::Notification saved;
  (*table_->Find("gpt"))
      ->SaveCheckpoint({.caller = "ann", .record = "save"}, {.id = "a-save"}, [&](const auto& answer) {
        EXPECT_TRUE(answer.ok());
        saved.Notify();
      });
  saved.WaitForNotification();
  ASSERT_TRUE(Update("second").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(made_from_.back(), "second");
  EXPECT_EQ(step(), 1);
}

TEST_F(JournalledUpdateTest, WhatIsDeletedBehindOneStaysDeleted) {
  ASSERT_TRUE(Create("gpt").ok());
  control_->Hold();
  ContributionCall call;
  call.inputs.push_back({"x", at::full({2}, 1.0f)});
  call.target = {"target", at::full({2}, 0.0f)};
  ASSERT_TRUE((*table_->Find("gpt"))->TrainStep({.caller = "ann", .record = "train"}, call, {}).ok());
  control_->AwaitHeld();
  absl::Notification updated;
  table_->Update({.caller = "ann"}, "gpt", Described("second"), nullptr, [&](const auto&) { updated.Notify(); });
  while ((*table_->Find("gpt"))->statistics().train_queue_calls < 1) std::this_thread::yield();
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "gpt", /*force=*/false, /*purge=*/false, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    deleted.Notify();
  });
  control_->Resume();
  deleted.WaitForNotification();
  updated.WaitForNotification();
  ASSERT_TRUE(Restart().ok());
  EXPECT_TRUE(table_->List("", 10).empty());
}

TEST_F(JournalledUpdateTest, ARetryAfterARestartGetsTheAnswer) {
  const std::string id = "3f0e8a52-93c1-4f6e-9d3f-0a1b2c3d4e5f";
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Update("second", id).ok());
  ASSERT_TRUE(Update("third").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_TRUE(Update("second", id).ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_EQ(made_from_.back(), "third") << "it was not made once more";
}

}  // namespace
}  // namespace penstock::testing
