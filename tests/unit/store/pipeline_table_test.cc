#include "engine/store/pipeline_table.h"

#include <gmock/gmock.h>

#include "tests/unit/store/hosting_fixture.h"

namespace penstock::testing {
namespace {

using PipelineTableTest = HostingFixture;

TEST_F(PipelineTableTest, CreatesFindsListsAndDeletes) {
  ASSERT_TRUE(Create("mlp").ok());
  EXPECT_EQ(table_->Get("mlp")->state, PipelineEntry::State::kReady);
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
    EXPECT_EQ(description.stage, lane);
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
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("50 are claimed (pipeline a 50) and 50 are left"));
  EXPECT_EQ(ReasonOf(table_->Get("b").status()), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(memory_.claimed_bytes(), 50) << "what is refused claims nothing";
  ASSERT_TRUE(Delete("a").ok());
  EXPECT_EQ(memory_.claimed_bytes(), 0);
  EXPECT_TRUE(Create("b", "more", "id").ok()) << "the same request again";
}

TEST_F(PipelineTableTest, AFailedCreationReturnsItsClaim) {
  EXPECT_EQ(ReasonOf(Create("bad", "broken").status()), "SPEC_INVALID");
  EXPECT_EQ(memory_.claimed_bytes(), 0);
}

TEST_F(PipelineTableTest, ARetryJoinsTheFirstAttempt) {
  absl::Notification making;
  absl::Notification go;
  before_create_ = [&] {
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
  table_->Create(context, "mlp", {}, "", answered(&first));
  making.WaitForNotification();
  EXPECT_EQ(ReasonOf(table_->Find("mlp").status()), "PIPELINE_NOT_READY");
  EXPECT_EQ(table_->Get("mlp")->state, PipelineEntry::State::kCreating);
  EXPECT_TRUE(table_->Find("gpt").ok()) << "others are served meanwhile";
  table_->Create(context, "mlp", {}, "", answered(&second));
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
  control_->Resume();
  deleted.WaitForNotification();
  EXPECT_EQ(ReasonOf(handles_->Get("ann", *work.outcome).status()), "HANDLE_RELEASED");
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller(), Batch(), {}).status()), "DRAINING") << "an old reference is safe";
}

TEST_F(PipelineTableTest, OpenGradientsNeedForce) {
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  EXPECT_EQ(ReasonOf(Delete("gpt")), "PIPELINE_IN_USE");
  EXPECT_TRUE(table_->Find("gpt").ok());
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

TEST_F(PipelineTableTest, PlansWithoutCreating) {
  absl::Notification done;
  table_->Plan({}, [&](absl::StatusOr<Plan> plan) {
    EXPECT_EQ(plan->predicted_bubble, 0.25);
    done.Notify();
  });
  done.WaitForNotification();
  EXPECT_EQ(table_->List("", 10).size(), 1);
}

TEST_F(PipelineTableTest, SearchesRunStepsOnlyOnFreeDevicesAndEndWhenTheServerStops) {
  const auto search = [this] {
    absl::Notification done;
    table_->Search({}, clock_.NowNanos() + 1'000'000'000, [&](const absl::StatusOr<PlanSearch>&) { done.Notify(); });
    done.WaitForNotification();
  };
  search();
  EXPECT_FALSE(searched_with_.rehearse) << "gpt is there";
  EXPECT_FALSE(searched_with_.out_of_time());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(searched_with_.out_of_time()) << "at its end";
  gpt_.reset();
  ASSERT_TRUE(Delete("gpt").ok());
  search();
  EXPECT_TRUE(searched_with_.rehearse);
  EXPECT_FALSE(searched_with_.out_of_time());
  table_->Drain([] {});
  EXPECT_TRUE(searched_with_.out_of_time());
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
