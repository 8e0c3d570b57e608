// Checkpoints that inference sees while training goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/base/thread.h"
#include "engine/serve/checkpoint_pins.h"
#include "engine/serve/published_weights.h"
#include "engine/serve/saved_state.h"
#include "tests/unit/serve/hosting_fixture.h"
#include "tests/unit/serve/journalled_table.h"
#include "tests/unit/serve/served_engine.h"

namespace penstock::testing {
namespace {

TEST(CheckpointPins, WhatIsPinnedDoesNotChangeAndWhatChangesIsNotPinned) {
  CheckpointPins pins;
  auto first = pins.Pin("a");
  auto second = pins.Pin("a");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(ReasonOf(pins.Change("a").status()), "CHECKPOINT_IN_USE");
  EXPECT_TRUE(pins.Change("b").ok());
  *first = nullptr;
  EXPECT_EQ(ReasonOf(pins.Change("a").status()), "CHECKPOINT_IN_USE");
  EXPECT_TRUE(pins.IsPinned("a"));
  *second = nullptr;
  EXPECT_FALSE(pins.IsPinned("a"));
  auto change = pins.Change("a");
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(ReasonOf(pins.Pin("a").status()), "CHECKPOINT_IN_USE");
  *change = nullptr;
  EXPECT_TRUE(pins.Pin("a").ok());
}

TEST(CheckpointPins, AHoldMayOutliveThem) {
  CheckpointPins::Hold hold;
  {
    CheckpointPins pins;
    hold = pins.Pin("a").value();
  }
  hold = nullptr;
}

// --- Over the real engine.

class PublishedEngineTest : public ::testing::Test {
 protected:
  // The weights as they are now, as a publication of that version; and what they answer.
  void Publish(int64_t version) {
    NamedTensors state = served_.Read().value();
    std::erase_if(state, [](const NamedTensor& tensor) { return IsOptimizerSlot(tensor.name); });
    MadeEngine made{.pipeline = served_.Another("sgd")};
    const int64_t step = served_.hosted->statistics().step;
    ASSERT_TRUE(made.pipeline->ImportState(state, step).ok());
    Publication publication{.checkpoint = "c", .version = version, .step = step};
    served_.hosted->Publish(PublishedWeights::Prepare(std::move(publication), std::move(made), nullptr));
  }
  at::Tensor Answer() {
    const absl::StatusOr<Accepted> accepted = served_.StartInfer();
    EXPECT_TRUE(served_.Settled(accepted, &Accepted::outputs).ok());
    return served_.OutputOf(*accepted);
  }

  TemporaryFolder folder_;
  ServedEngine served_{folder_.path()};
};

TEST_F(PublishedEngineTest, InferenceSeesItBitForBitWhileTrainingGoesOnAndThenTheLiveWeightsAgain) {
  ASSERT_TRUE(served_.TrainStep().ok());
  const at::Tensor then = Answer();
  Publish(2);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(served_.TrainStep().ok());
    EXPECT_TRUE(at::equal(Answer(), then));
  }
  const std::unique_ptr<Pipeline> alone = served_.Alone();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(alone->TrainStep(served_.AloneBatch(), {}).ok());
  EXPECT_TRUE(Same(served_.Read().value(), alone->ExportState(true).value()));
  served_.hosted->Publish(PublishedWeights::Prepare({.version = 2}, {}, nullptr));
  EXPECT_TRUE(at::equal(Answer(), served_.AloneInfer(*alone)));
  EXPECT_FALSE(at::equal(Answer(), then));
}

TEST_F(PublishedEngineTest, UnderLoadEachInferenceSeesOneVersionAndNoneFails) {
  constexpr int kPublications = 20;
  absl::Mutex mu;
  std::map<int64_t, at::Tensor> answers;  // by version
  std::atomic<bool> stop = false;
  std::atomic<int> failures = 0;
  std::atomic<int> wrong = 0;
  std::atomic<int> inferences = 0;
  std::atomic<int> steps = 0;
  ASSERT_TRUE(served_.TrainStep().ok());
  Publish(2);
  answers.emplace(2, Answer());
  {
    std::vector<std::unique_ptr<Thread>> load;
    for (int i = 0; i < 2; ++i) {
      load.push_back(std::make_unique<Thread>("t-infer", [&] {
        for (; !stop; ++inferences) {
          const absl::StatusOr<Accepted> accepted = served_.StartInfer();
          if (!served_.Settled(accepted, &Accepted::outputs).ok()) {
            ++failures;
            continue;
          }
          const at::Tensor answer = served_.OutputOf(*accepted);
          absl::MutexLock lock(&mu);
          const auto [expected, first] = answers.emplace(accepted->version, answer);
          if (!at::equal(expected->second, answer)) ++wrong;
        }
      }));
    }
    load.push_back(std::make_unique<Thread>("t-train", [&] {
      for (; !stop; ++steps) failures += served_.TrainStep().ok() ? 0 : 1;
    }));
    for (int i = 0; i < kPublications; ++i) {
      const int infers = inferences;
      const int trained = steps;
      while (inferences == infers || steps == trained) std::this_thread::yield();
      Publish(3 + i);
    }
    stop = true;
  }
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(answers.size(), 2u);
}

// --- Through the table, with fake engines.

class TablePublishTest : public HostingFixture {
 protected:
  struct Pending {
    absl::StatusOr<PipelineEntry> entry = absl::UnknownError("");
    absl::Notification done;
  };
  std::shared_ptr<Pending> Start(const std::string& checkpoint, const std::string& request_id = "",
                                 const std::string& model = "fake") {
    PipelineRecipe recipe{.spec_digest = "digest"};
    recipe.spec.model.name = model;
    auto pending = std::make_shared<Pending>();
    table_->Publish({.caller = "ann", .request_id = request_id, .payload_digest = "d" + checkpoint}, "gpt", checkpoint,
                    recipe, [pending](absl::StatusOr<PipelineEntry> entry) {
                      pending->entry = std::move(entry);
                      pending->done.Notify();
                    });
    return pending;
  }
  static absl::StatusOr<PipelineEntry> End(const std::shared_ptr<Pending>& pending) {
    pending->done.WaitForNotification();
    return pending->entry;
  }
  absl::Status Publish(const std::string& checkpoint) { return End(Start(checkpoint)).status(); }
  void Step() {
    const HandleName outcome = *gpt_->TrainStep(Caller(), Batch(0.25), {}).value().outcome;
    ASSERT_EQ(Settled(outcome).state, HandleState::kReady);
  }
  float Infer(float value = 1) { return ValueOf(*gpt_->Infer(Caller(), Ask(value)).value().outputs); }
};

TEST_F(TablePublishTest, InferenceSeesTheCheckpointUntilTheNextOneAndThenTheLiveWeights) {
  Step();
  ASSERT_TRUE(Save("one").ok());
  Step();
  ASSERT_TRUE(Save("two").ok());
  EXPECT_EQ(Infer(), 0.5f);
  const absl::StatusOr<PipelineEntry> published = End(Start("one"));
  ASSERT_TRUE(published.ok()) << published.status();
  const Publication now = published->pipeline->publication();
  EXPECT_EQ(now.checkpoint, "one");
  EXPECT_EQ(now.step, 1);
  EXPECT_EQ(now.version, 2);
  EXPECT_EQ(Infer(), 0.75f);
  Step();
  EXPECT_EQ(Infer(), 0.75f);
  const HandleName judged = *gpt_->Evaluate(Caller(), Judge()).value().outcome;
  ASSERT_EQ(Settled(judged).state, HandleState::kReady);
  EXPECT_EQ(handles_->Pin("ann", judged)->outcome()->run.loss, 0.25) << "evaluation sees the live weights";
  ASSERT_TRUE(Publish("two").ok());
  EXPECT_EQ(Infer(), 0.5f);
  ASSERT_TRUE(Publish("").ok());
  EXPECT_EQ(Infer(), 0.25f);
  EXPECT_FALSE(gpt_->publication().any());
  ASSERT_TRUE(Publish("one").ok());
  EXPECT_EQ(gpt_->publication().version, 4) << "no version is given twice";
}

TEST_F(TablePublishTest, AVersionSelectsTheWeightsAndOthersAreThereNot) {
  ASSERT_TRUE(Save("one").ok());
  Step();
  ASSERT_TRUE(Publish("one").ok());
  const auto ask = [&](const std::string& version) {
    InferCall call = Ask();
    call.version = version;
    return gpt_->Infer(Caller(), std::move(call));
  };
  EXPECT_EQ(ask("").value().version, 2);
  EXPECT_EQ(ask("1").value().version, 1);
  EXPECT_EQ(ValueOf(*ask("1").value().outputs), 0.75f);
  EXPECT_EQ(ValueOf(*ask("2").value().outputs), 1.0f);
  EXPECT_EQ(ReasonOf(ask("3").status()), "MODEL_NOT_FOUND");
  ASSERT_TRUE(Publish("one").ok());
  EXPECT_EQ(ReasonOf(ask("2").status()), "MODEL_NOT_FOUND");
  EXPECT_TRUE(ask("3").ok());
}

TEST_F(TablePublishTest, WhatWasAcceptedEndsOnWhatItBeganWithAndItsMemoryComesBackThen) {
  ASSERT_TRUE(Save("one").ok());
  Step();
  ASSERT_TRUE(Save("two").ok());
  needs_["small"] = 1000;
  const int64_t taken = memory_.bytes();
  ASSERT_TRUE(End(Start("one", "", "small")).ok());
  const int64_t both = memory_.bytes();
  EXPECT_EQ(both, taken + 1000);
  control_->HoldInference();
  const HandleName runs = *gpt_->Infer(Caller(), Ask()).value().outputs;
  control_->AwaitInferences(1);
  absl::Notification gone;
  control_->AtTheEnd([&] { gone.Notify(); });
  ASSERT_TRUE(End(Start("two", "", "small")).ok()) << "nobody waits for those that run";
  EXPECT_FALSE(gone.HasBeenNotified());
  EXPECT_EQ(memory_.bytes(), both + 1000);
  const HandleName behind = *gpt_->Infer(Caller(), Ask()).value().outputs;
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(runs), 1.0f);
  EXPECT_EQ(ValueOf(behind), 0.75f);
  gone.WaitForNotification();
  while (memory_.bytes() != both) std::this_thread::yield();
  ASSERT_TRUE(Publish("").ok());
  EXPECT_EQ(memory_.bytes(), taken);
}

TEST_F(TablePublishTest, APublishedCheckpointIsNeitherDeletedNorReplacedNorRotatedAway) {
  const auto save = [&](const std::string& id, bool replace, int keep) {
    return Wait([&](auto done) { gpt_->SaveCheckpoint(Caller(), {.id = id, .replace = replace, .keep = keep}, done); })
        .status();
  };
  ASSERT_TRUE(save("one", false, 1).ok());
  ASSERT_TRUE(Publish("one").ok());
  const absl::Status removed = Remove("one");
  EXPECT_EQ(ReasonOf(removed), "CHECKPOINT_IN_USE");
  EXPECT_EQ(ReasonOf(save("one", true, 0)), "CHECKPOINT_IN_USE");
  Step();
  ASSERT_TRUE(save("two", false, 1).ok());
  ASSERT_TRUE(save("three", false, 1).ok());
  std::vector<std::string> left;
  for (const CheckpointInfo& info : gpt_->ListCheckpoints()) left.push_back(info.id);
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("one", "three"));
  ASSERT_TRUE(Publish("three").ok());
  EXPECT_TRUE(Remove("one").ok());
  ASSERT_TRUE(Publish("").ok());
  EXPECT_TRUE(Remove("three").ok());
  // Nor does it take the place of one that is kept.
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(save(id, false, 3).ok());
  ASSERT_TRUE(Publish("c").ok());
  ASSERT_TRUE(save("d", false, 2).ok());
  left.clear();
  for (const CheckpointInfo& info : gpt_->ListCheckpoints()) left.push_back(info.id);
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("b", "c", "d"));
}

TEST_F(TablePublishTest, WhatCanNotBeLoadedChangesNothing) {
  ASSERT_TRUE(Create("big", "half").ok());
  ASSERT_TRUE(Save("one").ok());
  ASSERT_TRUE(Publish("one").ok());
  Step();
  const int64_t taken = memory_.bytes();
  EXPECT_EQ(ReasonOf(Publish("none")), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(End(Start("one", "", "broken")).status()), "SPEC_INVALID");
  EXPECT_EQ(ReasonOf(End(Start("one", "", "more")).status()), "HOST_MEMORY");
  EXPECT_EQ(memory_.bytes(), taken);
  EXPECT_EQ(gpt_->publication().version, 2);
  EXPECT_EQ(Infer(), 1.0f);
  EXPECT_TRUE(Save("another").ok());
  EXPECT_TRUE(Remove("another").ok());
}

TEST_F(TablePublishTest, OneChangeAtATimeAndARetryGetsTheFirstAnswer) {
  ASSERT_TRUE(Save("one").ok());
  absl::Notification building;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options& engine) {
    EXPECT_FALSE(engine.metrics) << "it counts nowhere";
    if (building.HasBeenNotified()) return;
    building.Notify();
    go.WaitForNotification();
  };
  const std::string id = "3f0e8a52-93c1-4f6e-9d3f-0a1b2c3d4e5f";
  const auto first = Start("one", id);
  building.WaitForNotification();
  EXPECT_EQ(ReasonOf(Publish("one")), "PIPELINE_NOT_READY");
  EXPECT_EQ(ReasonOf(Remove("one")), "CHECKPOINT_IN_USE") << "it is about to be published";
  const auto again = Start("one", id);
  go.Notify();
  EXPECT_TRUE(End(first).ok());
  EXPECT_EQ(End(again)->version, End(first)->version);
  EXPECT_EQ(gpt_->publication().version, 2);
  EXPECT_EQ(ReasonOf(End(Start("other", id)).status()), "REQUEST_ID_REUSED");
}

TEST_F(TablePublishTest, ADeletionEndsOneThatIsBeingMadeAndTakesWhatIsPublishedAlong) {
  ASSERT_TRUE(Save("one").ok());
  ASSERT_TRUE(Publish("one").ok());
  absl::Notification building;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options&) {
    building.Notify();
    go.WaitForNotification();
  };
  const auto publication = Start("one");
  building.WaitForNotification();
  gpt_.reset();
  ASSERT_TRUE(Delete("gpt", /*force=*/true).ok());
  EXPECT_EQ(memory_.bytes(), 0);
  go.Notify();
  EXPECT_EQ(ReasonOf(End(publication).status()), "PIPELINE_NOT_READY");
  EXPECT_EQ(ReasonOf(Publish("one")), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(memory_.bytes(), 0);
}

class BatchedPublishTest : public TablePublishTest {
 protected:
  BatchedPublishTest() { batching_ = DynamicBatchingSpec{.max_rows = 16}; }
};

TEST_F(BatchedPublishTest, CallsOfTwoVersionsDoNotShareABatch) {
  ASSERT_TRUE(Save("one").ok());
  Step();
  ASSERT_TRUE(Publish("one").ok());
  control_->HoldInference();
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());  // the only place
  control_->AwaitInferences(1);
  InferCall live = Ask();
  live.version = "1";
  const HandleName first = *gpt_->Infer(Caller(), Ask(2)).value().outputs;
  const HandleName second = *gpt_->Infer(Caller(), std::move(live)).value().outputs;
  const HandleName third = *gpt_->Infer(Caller(), Ask(3)).value().outputs;
  const size_t before = control_->inferences().size();
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(first), 2.0f);
  EXPECT_EQ(ValueOf(second), 0.75f);
  EXPECT_EQ(ValueOf(third), 3.0f);
  EXPECT_EQ(control_->inferences().size(), before + 2) << "the published ones as one, the live one by itself";
}

// --- With a journal.

class JournalledPublishTest : public JournalledTable {
 protected:
  absl::Status Publish(const std::string& checkpoint, const std::string& request_id = "") {
    absl::Status status;
    absl::Notification done;
    table_->Publish({.caller = "ann", .request_id = request_id, .payload_digest = checkpoint}, "gpt", checkpoint,
                    Recipe(), [&](const absl::StatusOr<PipelineEntry>& entry) {
                      status = entry.status();
                      done.Notify();
                    });
    done.WaitForNotification();
    return status;
  }
  absl::Status Save(const std::string& id) {
    return Wait([&](auto done) {
      Pipeline()->SaveCheckpoint({.caller = "ann", .record = "save"}, {.id = id}, std::move(done));
    });
  }
  absl::Status Remove(const std::string& id) {
    return Wait(
        [&](auto done) { Pipeline()->DeleteCheckpoint({.caller = "ann", .record = "delete"}, id, std::move(done)); });
  }
  static absl::Status Wait(const std::function<void(StateCallback)>& call) {
    absl::Status status;
    absl::Notification done;
    call([&](const absl::StatusOr<StateAnswer>& answer) {
      status = answer.status();
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }
  std::shared_ptr<ServedPipeline> Pipeline() { return *table_->Find("gpt"); }
  absl::Status Delete() {
    absl::Status status;
    absl::Notification done;
    table_->Delete({.caller = "ann"}, "gpt", /*force=*/false, /*purge=*/false, [&](const absl::Status& deleted) {
      status = deleted;
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }
  int64_t VersionOfAnInference() {
    InferCall call;
    call.inputs.push_back({"x", at::full({2}, 1.0f)});
    const absl::StatusOr<Accepted> accepted = Pipeline()->Infer({.caller = "ann"}, std::move(call));
    return accepted.ok() ? accepted->version : 0;
  }
};

TEST_F(JournalledPublishTest, ItOutlivesARestartAndSoDoesTheWayBack) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Save("one").ok());
  ASSERT_TRUE(Publish("one").ok());
  ASSERT_TRUE(Restart().ok());
  const Publication again = Pipeline()->publication();
  EXPECT_EQ(again.checkpoint, "one");
  EXPECT_EQ(again.version, 2);
  EXPECT_TRUE(again.error.ok()) << again.error;
  EXPECT_EQ(VersionOfAnInference(), 2);
  EXPECT_EQ(ReasonOf(Remove("one")), "CHECKPOINT_IN_USE");
  ASSERT_TRUE(Publish("").ok());
  ASSERT_TRUE(Restart().ok());
  EXPECT_FALSE(Pipeline()->publication().any());
  EXPECT_EQ(VersionOfAnInference(), 1);
  ASSERT_TRUE(Publish("one").ok());
  EXPECT_EQ(Pipeline()->publication().version, 3) << "the number goes on over restarts";
}

TEST_F(JournalledPublishTest, ARetryAfterARestartChangesNothingASecondTime) {
  const std::string id = "3f0e8a52-93c1-4f6e-9d3f-0a1b2c3d4e5f";
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Save("one").ok());
  ASSERT_TRUE(Publish("one", id).ok());
  ASSERT_TRUE(Restart().ok());
  ASSERT_TRUE(Publish("one", id).ok());
  EXPECT_EQ(Pipeline()->publication().version, 2);
  EXPECT_EQ(ReasonOf(Publish("two", id)), "REQUEST_ID_REUSED");
}

TEST_F(JournalledPublishTest, OneThatCanNotBeLoadedAfterARestartIsToldAndNothingIsAnsweredFromIt) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Save("one").ok());
  ASSERT_TRUE(Publish("one").ok());
  End();
  ASSERT_TRUE(RealFileSystem()->RemoveAll(state_ + "/pipelines/gpt/checkpoints/one").ok());
  Begin();
  absl::Notification done;
  ASSERT_TRUE(table_->Recover([&] { done.Notify(); }).ok());
  done.WaitForNotification();
  EXPECT_EQ(table_->Get("gpt")->state, PipelineEntry::State::kReady);
  EXPECT_EQ(ReasonOf(Pipeline()->publication().error), "CHECKPOINT_NOT_FOUND");
  InferCall call;
  call.inputs.push_back({"x", at::full({2}, 1.0f)});
  EXPECT_EQ(ReasonOf(Pipeline()->Infer({.caller = "ann"}, call).status()), "CHECKPOINT_NOT_FOUND");
  call.version = "1";
  EXPECT_TRUE(Pipeline()->Infer({.caller = "ann"}, call).ok());
  ASSERT_TRUE(Publish("").ok());
  EXPECT_EQ(VersionOfAnInference(), 1);
}

TEST_F(JournalledPublishTest, APipelineOfTheSameNameHasNothingOfTheOneBefore) {
  ASSERT_TRUE(Create("gpt").ok());
  ASSERT_TRUE(Save("one").ok());
  ASSERT_TRUE(Publish("one").ok());
  ASSERT_TRUE(Delete().ok());
  EXPECT_TRUE(journal_->Publications()->empty());
  ASSERT_TRUE(Create("gpt").ok());
  EXPECT_FALSE(Pipeline()->publication().any());
  ASSERT_TRUE(Restart().ok());
  EXPECT_FALSE(Pipeline()->publication().any());
}

}  // namespace
}  // namespace penstock::testing
