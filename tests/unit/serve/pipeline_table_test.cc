#include "engine/serve/pipeline_table.h"

#include <gmock/gmock.h>

#include <functional>
#include <new>
#include <stdexcept>

#include "engine/serve/plan_queue.h"
#include "tests/support/failing_new.h"
#include "tests/unit/serve/hosting_fixture.h"

namespace penstock::testing {
namespace {

using PipelineTableTest = HostingFixture;

TEST_F(PipelineTableTest, CreatesFindsListsAndDeletes) {
  ASSERT_TRUE(Create("mlp").ok());
  EXPECT_EQ(table_->Get("mlp")->state, PipelineEntry::State::kReady);
  EXPECT_EQ(table_->Get("mlp")->spec.sample, nullptr) << "it is only measured with";
  ASSERT_EQ(table_->List("", 10).size(), 2);
  EXPECT_EQ(table_->List("gpt", 10)[0].name, "mlp");
  EXPECT_NE(registry_.Find("mlp"), nullptr);
  ASSERT_TRUE(Delete("mlp").ok());
  EXPECT_EQ(registry_.Find("mlp"), nullptr);
  const absl::Status gone = table_->Find("mlp").status();
  EXPECT_EQ(ReasonOf(gone), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(ValuesOf(gone)["pipeline"], "mlp");
  EXPECT_TRUE(Create("mlp").ok()) << "the name is free again";
}

TEST_F(PipelineTableTest, ABrokenPipelineIsToldAsFailedUntilItIsMended) {
  control_->SetHealth(Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_BROKEN", "a step failed half-way"));
  const PipelineEntry broken = *table_->Get("gpt");
  EXPECT_EQ(broken.state, PipelineEntry::State::kFailed);
  EXPECT_EQ(ReasonOf(broken.error), "PIPELINE_BROKEN");
  EXPECT_EQ(table_->List("", 10).at(0).state, PipelineEntry::State::kFailed);
  EXPECT_TRUE(table_->Find("gpt").ok()) << "a restore must find it";
  control_->SetHealth(absl::OkStatus());
  EXPECT_EQ(table_->Get("gpt")->state, PipelineEntry::State::kReady);
  EXPECT_TRUE(table_->Get("gpt")->error.ok());
}

TEST_F(PipelineTableTest, LanesAreCountedWithTheLayersOfAllTheirChunks) {
  plan_.emplace();
  int layer = 0;
  for (const int lane : {0, 1, 1, 0}) {
    plan_->stages.push_back({.first_layer = layer, .layers = {"a", "b"}, .device = lane == 0 ? "cpu:0" : "cpu:1"});
    plan_->stages.back().lane = lane;
    layer += 2;
  }
  plan_->schedule = {.kind = "zbv", .micro_batches = 8, .chunks = 2};
  plan_->ideal_bubble = 1.0 / 17;
  ASSERT_TRUE(Create("v").ok());
  const std::shared_ptr<PipelineMetrics> metrics = registry_.Find("v");
  ASSERT_EQ(metrics->lane_count(), 2);
  for (const int lane : {0, 1}) {
    const LaneDescription& description = metrics->lane(lane).description;
    EXPECT_EQ(description.lane, lane);
    EXPECT_EQ(description.device, lane == 0 ? "cpu:0" : "cpu:1");
    EXPECT_EQ(description.layers, lane == 0 ? "0-1,6-7" : "2-3,4-5");
    EXPECT_EQ(description.ideal_bubble, 1.0 / 17);
  }
  EXPECT_EQ(metrics->schedule().stages, 2);
  EXPECT_EQ(metrics->schedule().chunks, 2);
}

TEST_F(PipelineTableTest, RefusesTakenBadAndTooManyNames) {
  EXPECT_EQ(ReasonOf(Create("gpt").status()), "PIPELINE_EXISTS");
  EXPECT_EQ(ReasonOf(Create("../x").status()), "NAME_INVALID");
  ASSERT_TRUE(Create("a").ok());
  ASSERT_TRUE(Create("b").ok());
  EXPECT_EQ(ReasonOf(Create("c").status()), "CALLER_QUOTA");
  EXPECT_EQ(ReasonOf(Delete("c")), "PIPELINE_NOT_FOUND");
}

TEST_F(PipelineTableTest, ACallerHasAQuarterOfThePipelinesWhileAnotherHasSome) {
  ASSERT_TRUE(Create("b", "fake", "", "bob").ok()) << "the first of a caller needs room only";
  const absl::Status refused = Create("c").status();
  EXPECT_EQ(ReasonOf(refused), "CALLER_QUOTA");
  EXPECT_EQ(ValuesOf(refused)["limit_value"], "1") << "a quarter of three, rounded up";
  ASSERT_TRUE(Delete("b").ok());
  EXPECT_TRUE(Create("c").ok());
}

TEST_F(PipelineTableTest, APipelineThatCannotBeMadeLeavesNothing) {
  EXPECT_EQ(ReasonOf(Create("bad", "broken", "id").status()), "SPEC_INVALID");
  EXPECT_EQ(ReasonOf(table_->Get("bad").status()), "PIPELINE_NOT_FOUND");
  EXPECT_TRUE(Create("bad", "fake", "id").ok()) << "the failed attempt is not recorded";
}

TEST_F(PipelineTableTest, PipelinesTogetherStayWithinTheMemory) {
  ASSERT_TRUE(Create("a", "half").ok());
  const absl::Status refused = Create("b", "more", "id").status();
  EXPECT_EQ(ReasonOf(refused), "HOST_MEMORY");
  EXPECT_EQ(ValuesOf(refused)["pipeline"], "b");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("held: pipelines (pipeline a, caller ann) 524288"));
  EXPECT_EQ(ReasonOf(table_->Get("b").status()), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(memory_.bytes(), kMemory / 2) << "what is refused takes nothing";
  ASSERT_TRUE(Delete("a").ok());
  EXPECT_EQ(memory_.bytes(), 0);
  EXPECT_TRUE(Create("b", "more", "id").ok()) << "the same request again";
}

TEST_F(PipelineTableTest, WhatASearchForPlansPlacesIsClaimedToo) {
  ASSERT_TRUE(Create("a", "half").ok());
  absl::Status within, beyond;
  before_plan_ = [&](const Pipeline::Options& engine) {
    within = engine.claim_memory(kMemory / 2);
    beyond = engine.claim_memory(kMemory / 2 + 1);
  };
  EXPECT_EQ(AskForPlan("bob")->Reason(), "");
  EXPECT_TRUE(within.ok());
  EXPECT_EQ(ReasonOf(beyond), "HOST_MEMORY");
  EXPECT_THAT(std::string(beyond.message()), ::testing::HasSubstr("pipelines (pipeline a, caller ann) 524288"));
  ASSERT_TRUE(Delete("a").ok());  // behind the search's end
  EXPECT_EQ(memory_.bytes(), 0);
}

TEST_F(PipelineTableTest, AFailedCreationReturnsItsClaim) {
  EXPECT_EQ(ReasonOf(Create("bad", "broken").status()), "SPEC_INVALID");
  EXPECT_EQ(memory_.bytes(), 0);
}

TEST_F(PipelineTableTest, ARetryJoinsTheFirstAttempt) {
  absl::Notification making;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options&) {
    making.Notify();
    go.WaitForNotification();
  };
  absl::Notification first;
  absl::Notification second;
  const CallContext context{.caller = "ann", .request_id = "id", .payload_digest = "d"};
  const auto answered = [](absl::Notification* done) {
    return [done](absl::StatusOr<PipelineEntry> entry) {
      EXPECT_TRUE(entry.ok()) << entry.status();
      done->Notify();
    };
  };
  table_->Create(context, "mlp", {}, nullptr, answered(&first));
  making.WaitForNotification();
  EXPECT_EQ(ReasonOf(table_->Find("mlp").status()), "PIPELINE_NOT_READY");
  EXPECT_EQ(table_->Get("mlp")->state, PipelineEntry::State::kCreating);
  EXPECT_TRUE(table_->Find("gpt").ok()) << "others are served meanwhile";
  table_->Create(context, "mlp", {}, nullptr, answered(&second));
  go.Notify();
  first.WaitForNotification();
  second.WaitForNotification();
  before_create_ = nullptr;
  EXPECT_TRUE(Create("mlp", "fake", "").status().code() == absl::StatusCode::kAlreadyExists);
}

TEST_F(PipelineTableTest, DeletionFinishesAcceptedWorkAndReleasesHandles) {
  control_->Hold();
  const Accepted work = *gpt_->TrainStep(Caller(), Batch(), {});
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "gpt", false, false, [&](absl::Status status) {
    EXPECT_TRUE(status.ok()) << status;
    deleted.Notify();
  });
  EXPECT_EQ(ReasonOf(table_->Find("gpt").status()), "PIPELINE_NOT_READY");
  // A call that found it before: the daemon goes on, so that asking it again by itself is of no use.
  const absl::Status late = gpt_->Infer(Caller(), Ask()).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(late), "PIPELINE_NOT_READY");
  EXPECT_EQ(std::string(late.message()), "pipeline gpt is being deleted");
  EXPECT_EQ(ValuesOf(late)["pipeline"], "gpt");
  EXPECT_EQ(ReasonOf(Save("late").status()), "PIPELINE_NOT_READY");
  control_->Resume();
  deleted.WaitForNotification();
  EXPECT_EQ(ReasonOf(handles_->Get("ann", *work.outcome).status()), "HANDLE_RELEASED");
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller(), Batch(), {}).status()), "PIPELINE_NOT_READY")
      << "an old reference is safe";
}

TEST_F(PipelineTableTest, OpenGradientsNeedForce) {
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  EXPECT_EQ(ReasonOf(Delete("gpt")), "PIPELINE_IN_USE");
  EXPECT_TRUE(table_->Find("gpt").ok());
  EXPECT_TRUE(Delete("gpt", /*force=*/true).ok());
}

TEST_F(PipelineTableTest, OpenGraphsNeedForce) {
  Settled(*gpt_->Forward(Caller(), {.inputs = {X(1)}})->graph);
  const absl::Status refused = Delete("gpt");
  EXPECT_EQ(ReasonOf(refused), "PIPELINE_IN_USE");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("holds open graphs"));
  EXPECT_TRUE(Delete("gpt", /*force=*/true).ok());
}

TEST_F(PipelineTableTest, CheckpointsOutliveTheirPipelineUnlessPurged) {
  ASSERT_TRUE(Save("kept").ok());
  gpt_.reset();
  ASSERT_TRUE(Delete("gpt").ok());
  ASSERT_TRUE(Create("gpt").ok());
  EXPECT_EQ((*table_->Find("gpt"))->ListCheckpoints().size(), 1);
  ASSERT_TRUE(Delete("gpt", false, /*purge=*/true).ok());
  ASSERT_TRUE(Create("gpt").ok());
  EXPECT_TRUE((*table_->Find("gpt"))->ListCheckpoints().empty());
}

TEST_F(PipelineTableTest, ADeletionThatMeetsAFaultIsAnsweredAndFreesTheName) {
  ASSERT_TRUE(Save("kept").ok());
  gpt_.reset();
  files_.ThrowIn("RemoveAll");
  const absl::Status left = Delete("gpt", false, /*purge=*/true);
  EXPECT_EQ(ReasonOf(left), "HOST_MEMORY") << "there are checkpoints still";
  EXPECT_EQ(ValuesOf(left)["pipeline"], "gpt");
  EXPECT_THAT(std::string(left.message()), ::testing::HasSubstr("is deleted, but not all of its checkpoints"));
  ASSERT_TRUE(Create("gpt").ok());
  EXPECT_EQ((*table_->Find("gpt"))->ListCheckpoints().size(), 1);
  EXPECT_TRUE(Delete("gpt", false, /*purge=*/true).ok());
}

TEST_F(PipelineTableTest, ARefusedPipelineLeavesNoFolder) {
  EXPECT_EQ(ReasonOf(Create("refused", "broken").status()), "SPEC_INVALID");
  EXPECT_FALSE(files_.Exists(temporary_.path() + "/pipelines/refused"));
}

// Memory is short from the moment on in which the pipeline itself is gone.
TEST_F(PipelineTableTest, ADeletionIsAnsweredAndFreesTheNameWhateverFails) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  gpt_.reset();
  control_->AtTheEnd([] { FailNew(); });
  absl::Status answer;
  bool failed = false;
  absl::Notification done;
  table_->Delete({.caller = "ann"}, "gpt", false, false, [&](absl::Status status) {
    failed = StopFailingNew();
    answer = std::move(status);
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_TRUE(failed);
  EXPECT_TRUE(answer.ok()) << answer;
  EXPECT_TRUE(Create("gpt").ok());
}

TEST_F(PipelineTableTest, AForcedDeletionSettlesAllThatWaitedThoughOneOfThemThrows) {
  ASSERT_TRUE(Create("other").ok());
  control_->Hold();
  const Accepted runs = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  gpt_->SaveCheckpoint(Caller(), {.id = "one"}, [](const auto&) { throw std::runtime_error("x"); });
  const Accepted waits = *gpt_->TrainStep(Caller(), Batch(), {});
  gpt_.reset();
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "gpt", /*force=*/true, false, [&](const absl::Status&) { deleted.Notify(); });
  EXPECT_EQ(Settled(*waits.outcome).state, HandleState::kCancelled);
  control_->Resume();
  deleted.WaitForNotification();
  EXPECT_TRUE(Delete("other").ok());
}

// A creation that throws after the engine has told its lanes.
TEST_F(PipelineTableTest, ACreationThatThrowsLeavesNoMetrics) {
  before_create_ = [](const Pipeline::Options& engine) {
    engine.metrics(FakePipeline(std::make_shared<FakePipelineControl>()).plan());
    throw std::bad_alloc();
  };
  EXPECT_EQ(ReasonOf(Create("other").status()), "HOST_MEMORY");
  EXPECT_EQ(registry_.Find("other"), nullptr);
}

TEST_F(PipelineTableTest, WhatACreationMeasuresIsClaimedFromTheMemoryOfAll) {
  absl::Status all;
  absl::Status more;
  before_create_ = [&](const Pipeline::Options& engine) {
    ASSERT_TRUE(engine.profile.claim_memory);
    all = engine.profile.claim_memory(kMemory);
    more = engine.profile.claim_memory(kMemory + 1);
    EXPECT_TRUE(engine.profile.claim_memory(0).ok());
  };
  EXPECT_TRUE(Create("other").ok());
  EXPECT_TRUE(all.ok()) << all;
  EXPECT_EQ(ReasonOf(more), "HOST_MEMORY");
}

TEST_F(PipelineTableTest, WhetherCandidatesMayRunIsAskedWhenTheModelIsRead) {
  gpt_.reset();
  before_load_ = [&] { EXPECT_TRUE(Delete("gpt").ok()); };
  bool rehearses = false;
  before_create_ = [&](const Pipeline::Options& engine) { rehearses = engine.rehearse; };
  ASSERT_TRUE(Create("other").ok());
  EXPECT_TRUE(rehearses) << "no pipeline works on the devices any more";
}

TEST_F(PipelineTableTest, WhoIsToldOfANewPipelineHoldsItAloneWithTheTable) {
  long holders = 0;
  absl::Notification done;
  table_->Create(Caller("ann", "", "a"), "a", {}, nullptr, [&](absl::StatusOr<PipelineEntry> entry) {
    holders = entry->pipeline.use_count();
    entry = absl::CancelledError("");
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(holders, 2) << "a deletion that follows at once frees its memory";
}

TEST_F(PipelineTableTest, PlansWithoutCreating) {
  absl::Notification done;
  table_->Plan("ann", {}, std::make_shared<CancelToken>(), [&](absl::StatusOr<Plan> plan) {
    EXPECT_EQ(plan->predicted_bubble, 0.25);
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(table_->List("", 10).size(), 1);
}

TEST_F(PipelineTableTest, SearchesHaveTheSpecificationsTimeAndRunStepsOnlyOnFreeDevices) {
  const auto search = [this] {
    PipelineSpec spec;
    spec.limits.planning_seconds = 10;
    absl::Notification done;
    absl::Status answer;
    table_->Search("ann", spec, std::make_shared<CancelToken>(), [&](const absl::StatusOr<PlanSearch>& found) {
      answer = found.status();
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  };
  before_plan_ = [this](const Pipeline::Options& engine) {
    EXPECT_FALSE(engine.rehearse) << "gpt is there";
    engine.profile.planning->Enter(PlanPhase::kBuilding, 1);
    clock_.Advance(absl::Seconds(9));
    EXPECT_FALSE(engine.profile.planning->OutOfTime());
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(engine.profile.planning->OutOfTime());
  };
  EXPECT_TRUE(search().ok());
  gpt_.reset();
  ASSERT_TRUE(Delete("gpt").ok());
  before_plan_ = [this](const Pipeline::Options& engine) {
    EXPECT_TRUE(engine.rehearse);
    EXPECT_TRUE(engine.profile.planning->CheckWanted().ok());
    table_->Drain([] {});
    EXPECT_EQ(ReasonOf(engine.profile.planning->CheckWanted()), "WORK_CANCELLED");
  };
  EXPECT_TRUE(search().ok());
  EXPECT_EQ(ReasonOf(search()), "DRAINING");
}

TEST_F(PipelineTableTest, ACreationIsWatchedUntilItIsReady) {
  absl::Notification half;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options& engine) {
    engine.profile.planning->Enter(PlanPhase::kMeasuring, 2);
    clock_.Advance(absl::Seconds(3));
    engine.profile.planning->PartDone();
    half.Notify();
    go.WaitForNotification();
  };
  absl::Notification ready;
  PipelineSpec spec;
  spec.limits.planning_seconds = 50;
  table_->Create({.caller = "ann"}, "mlp", {.spec = spec}, nullptr,
                 [&](const absl::StatusOr<PipelineEntry>&) { ready.Notify(); });
  half.WaitForNotification();
  const PipelineEntry entry = *table_->Get("mlp");
  ASSERT_NE(entry.planning, nullptr);
  const PlanProgress progress = entry.planning->progress();
  EXPECT_EQ(progress.phase, PlanPhase::kMeasuring);
  EXPECT_DOUBLE_EQ(progress.done, 0.2);
  EXPECT_DOUBLE_EQ(progress.elapsed_seconds, 3);
  EXPECT_DOUBLE_EQ(progress.budget_seconds, 50);
  go.Notify();
  ready.WaitForNotification();
  EXPECT_EQ(table_->Get("mlp")->planning, nullptr);
}

TEST_F(PipelineTableTest, ADeletionDoesNotWaitForTheCreationOfAnother) {
  ASSERT_TRUE(Create("old").ok());
  absl::Notification under_way;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options&) {
    under_way.Notify();
    go.WaitForNotification();
  };
  absl::Notification ready;
  table_->Create({.caller = "ann"}, "new", {}, nullptr, [&](const absl::StatusOr<PipelineEntry>&) { ready.Notify(); });
  under_way.WaitForNotification();
  absl::Notification deleted;
  table_->Delete({.caller = "ann"}, "old", false, false, [&](absl::Status) { deleted.Notify(); });
  EXPECT_TRUE(deleted.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_EQ(ReasonOf(table_->Get("old").status()), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(table_->Get("new")->state, PipelineEntry::State::kCreating);
  go.Notify();
  ready.WaitForNotification();
  deleted.WaitForNotification();
}

// Each allocation of the call fails once.
TEST_F(PipelineTableTest, ACreationThatFindsNoMemoryLeavesNothingAndMayBeRepeated) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  int thrown = 0;
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    const std::string id = "id-" + std::to_string(spared);
    const CallContext context{.caller = "ann", .request_id = id, .payload_digest = "made"};
    PipelineRecipe recipe{.spec_digest = "digest"};
    recipe.spec.model.name = "fake";
    std::function<void(absl::StatusOr<PipelineEntry>)> ignored = [](const absl::StatusOr<PipelineEntry>&) {};
    FailNewOnce(spared);
    try {
      table_->Create(context, "made", std::move(recipe), nullptr, std::move(ignored));
    } catch (const std::bad_alloc&) {
      ++thrown;
      StopFailingNew();
      EXPECT_EQ(ReasonOf(table_->Get("made").status()), "PIPELINE_NOT_FOUND");
      ASSERT_TRUE(Create("made", "fake", id).ok());
      ASSERT_TRUE(Delete("made").ok());
      continue;
    }
    failed = StopFailingNew();
    ASSERT_TRUE(Create("made", "fake", id).ok());
    ASSERT_TRUE(Delete("made").ok());
  }
  EXPECT_GT(thrown, 5);
}

// Each allocation of the call fails once, that of the job behind the drain too.
TEST_F(PipelineTableTest, ADeletionThatFindsNoMemoryIsAnsweredAndMayBeRepeated) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  int refused = 0;
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    ASSERT_TRUE(Create("made").ok());
    const CallContext context{.caller = "ann", .request_id = "id-" + std::to_string(spared), .payload_digest = "made"};
    absl::Status answer = absl::UnknownError("none");
    absl::Notification done;
    const PipelineTable::DeleteCallback callback = [&](absl::Status status) {
      answer = std::move(status);
      done.Notify();
    };
    std::string name = "made";
    FailNewOnce(spared);
    try {
      table_->Delete(context, std::move(name), false, false, callback);
      done.WaitForNotification();
    } catch (const std::bad_alloc&) {
      answer = absl::ResourceExhaustedError("thrown");
    }
    failed = StopFailingNew();
    if (answer.ok()) continue;
    ++refused;
    EXPECT_EQ(answer.code(), absl::StatusCode::kResourceExhausted) << answer;
    ASSERT_TRUE(Delete("made").ok());
  }
  EXPECT_GT(refused, 10);
}

// As one operator that is measured may: nothing interrupts it.
TEST_F(PipelineTableTest, ACreationThatIsLateKeepsNoOtherWaiting) {
  absl::Notification started;
  absl::Notification go;
  before_create_ = [&](const Pipeline::Options&) {
    if (started.HasBeenNotified()) return;
    started.Notify();
    go.WaitForNotification();
  };
  absl::Notification slow;
  absl::Notification quick;
  const auto answered = [](absl::Notification* done) {
    return [done](absl::StatusOr<PipelineEntry> entry) {
      EXPECT_TRUE(entry.ok()) << entry.status();
      done->Notify();
    };
  };
  PipelineRecipe recipe;
  recipe.spec.limits.planning_seconds = 5;
  table_->Create(Caller(), "slow", recipe, nullptr, answered(&slow));
  started.WaitForNotification();
  table_->Create(Caller(), "quick", {}, nullptr, answered(&quick));
  const absl::Duration turn = absl::Seconds(5) + PipelineTable::kPatience;
  clock_.Advance(turn - absl::Seconds(1));
  timers_.SettleForTest();
  EXPECT_FALSE(quick.HasBeenNotified());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(quick.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_FALSE(slow.HasBeenNotified());
  go.Notify();
  slow.WaitForNotification();
  EXPECT_TRUE(table_->Find("slow").ok());
  before_create_ = nullptr;
}

TEST_F(PipelineTableTest, ASearchThatIsLateKeepsNoOtherWaiting) {
  absl::Notification started;
  absl::Notification go;
  before_plan_ = [&](const Pipeline::Options&) {
    if (started.HasBeenNotified()) return;
    started.Notify();
    go.WaitForNotification();
  };
  const std::shared_ptr<PlanAnswer> slow = AskForPlan();
  started.WaitForNotification();
  const std::shared_ptr<PlanAnswer> quick = AskForPlan();
  clock_.Advance(absl::Seconds(20) + PipelineTable::kPatience);
  EXPECT_TRUE(quick->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_FALSE(slow->done.HasBeenNotified());
  go.Notify();
  EXPECT_EQ(slow->Reason(), "");
  before_plan_ = nullptr;
}

// A plan that is being looked for until it is cancelled, or told to go on.
class RunningPlan : public PipelineTableTest {
 protected:
  void StartPlan() {
    before_plan_ = [this](const Pipeline::Options& engine) {
      if (started_.HasBeenNotified()) return;  // the others come after it
      started_.Notify();
      while (engine.profile.planning->CheckWanted().ok() &&
             !go_.WaitForNotificationWithTimeout(absl::Milliseconds(1))) {
      }
    };
    plan_answer_ = AskForPlan();
    started_.WaitForNotification();
  }
  ~RunningPlan() override {
    if (!go_.HasBeenNotified()) go_.Notify();
    table_->Close();
  }

  absl::Notification started_;
  absl::Notification go_;
  std::shared_ptr<PlanAnswer> plan_answer_;
};

TEST_F(RunningPlan, BlocksNoCreationAndNoDeletion) {
  StartPlan();
  ASSERT_TRUE(Create("mlp").ok());
  EXPECT_TRUE(Delete("mlp").ok());
  EXPECT_FALSE(plan_answer_->done.HasBeenNotified());
}

TEST_F(RunningPlan, EndsWhenItIsCancelled) {
  StartPlan();
  const std::shared_ptr<PlanAnswer> next = AskForPlan();
  plan_answer_->cancel->Cancel();
  EXPECT_EQ(plan_answer_->Reason(), "WORK_CANCELLED");
  EXPECT_EQ(next->Reason(), "");
}

TEST_F(RunningPlan, EndsWhenTheServerStops) {
  StartPlan();
  table_->Drain([] {});
  EXPECT_EQ(plan_answer_->Reason(), "DRAINING");
}

TEST_F(RunningPlan, LetsOnlySoManyOthersWait) {
  StartPlan();
  std::vector<std::shared_ptr<PlanAnswer>> waiting;
  for (int i = 0; i < PlanQueue::kMaxWaiting; ++i) waiting.push_back(AskForPlan("caller" + std::to_string(i % 8)));
  const std::shared_ptr<PlanAnswer> refused = AskForPlan("late");
  EXPECT_EQ(refused->Reason(), "QUEUE_FULL");
  EXPECT_EQ(refused->status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ValuesOf(refused->status)["queue"], "planning");
  EXPECT_EQ(ValuesOf(refused->status)["retry_after_ms"], "1000");
  waiting[3]->cancel->Cancel();
  const std::shared_ptr<PlanAnswer> in_its_place = AskForPlan("late");
  EXPECT_EQ(waiting[3]->Reason(), "WORK_CANCELLED") << "while the first still runs: nothing of it is kept until then";
  go_.Notify();
  EXPECT_EQ(in_its_place->Reason(), "");
  for (size_t i = 0; i < waiting.size(); ++i) EXPECT_EQ(waiting[i]->Reason(), i == 3 ? "WORK_CANCELLED" : "");
}

TEST_F(RunningPlan, KeepsRoomForOtherCallers) {
  StartPlan();
  std::shared_ptr<PlanAnswer> last;
  for (int i = 0; i <= PlanQueue::kMaxWaiting * 3 / 4; ++i) last = AskForPlan();
  EXPECT_EQ(last->Reason(), "CALLER_QUOTA");
  const std::shared_ptr<PlanAnswer> other = AskForPlan("bob");
  go_.Notify();
  EXPECT_EQ(other->Reason(), "");
}

TEST_F(PipelineTableTest, ADrainingTableDeletesNothing) {
  table_->Drain([] {});
  EXPECT_EQ(ReasonOf(Delete("gpt")), "DRAINING");
  EXPECT_TRUE(table_->Get("gpt").ok());
}

TEST_F(PipelineTableTest, DrainWaitsForWorkAndRefusesNewPipelines) {
  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  absl::Notification drained;
  table_->Drain([&] { drained.Notify(); });
  EXPECT_EQ(ReasonOf(Create("mlp").status()), "DRAINING");
  EXPECT_EQ(table_->Get("gpt")->state, PipelineEntry::State::kDraining);
  EXPECT_FALSE(drained.HasBeenNotified());
  control_->Resume();
  drained.WaitForNotification();
  table_->Close();
  EXPECT_EQ(handles_->TotalCounts().live(), 0);
}

TEST_F(PipelineTableTest, APipelineThatIsMadeWhileTheServerBeginsToStopTakesNoWork) {
  before_create_ = [this](const Pipeline::Options&) { table_->Drain([] {}); };
  const absl::StatusOr<PipelineEntry> made = Create("late");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(ReasonOf(made->pipeline->TrainStep(Caller(), Batch(), {}).status()), "DRAINING");
}

TEST_F(PipelineTableTest, ClosesWithWorkQueued) {
  control_->Hold();
  const Accepted runs = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->Resume();
  gpt_.reset();
  table_->Close();
  EXPECT_EQ(ReasonOf(handles_->Get("ann", *runs.outcome).status()), "HANDLE_RELEASED");
}

}  // namespace
}  // namespace penstock::testing
