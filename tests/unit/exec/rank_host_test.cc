// A leader that says what can't be: its rank refuses by name, and goes on.

#include "engine/exec/rank_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/exec/rank_host_builder.h"
#include "tests/support/failing_new.h"
#include "tests/support/small_specs.h"
#include "tests/unit/exec/over_ranks.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;

// Notes what the rank tells.
class FakeLeader : public RankEvents {
 public:
  void Failed(Rank, int64_t run, const absl::Status& why) override {
    if (fails_new_) return FailNew();
    Note(absl::StrCat(run, " failed: ", ReasonOf(why), " ", why.message()));
  }
  void HasTies(Rank, int64_t run, TiedGradients) override { Note(absl::StrCat(run, " has ties")); }
  void HasNorms(Rank, int64_t run, std::vector<NormsOfStage>, Measures) override {
    Note(absl::StrCat(run, " has norms"));
  }
  void Left(Rank, int64_t run, bool, Measures) override {
    StopFailingNew();
    Note(absl::StrCat(run, " left"));
  }
  void Lost(Rank, const absl::Status&) override { Note("lost"); }

  // What fails lacks memory until it is left.
  void FailNewOnceFailed() { fails_new_ = true; }

  // Everything until this was told.
  std::vector<std::string> Until(const std::string& event) {
    absl::MutexLock lock(&mu_);
    const auto told = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !told_.empty() && told_.back() == event; };
    mu_.Await(absl::Condition(&told));
    return std::exchange(told_, {});
  }

 private:
  void Note(std::string event) {
    absl::MutexLock lock(&mu_);
    told_.push_back(std::move(event));
  }
  std::atomic<bool> fails_new_ = false;
  absl::Mutex mu_;
  std::vector<std::string> told_ ABSL_GUARDED_BY(mu_);
};

// A rank that has all stages. What a leader sends by the transport never comes, so runs stay open until they are stopped.
class RankHostTest : public ::testing::Test {
 protected:
  std::unique_ptr<RankHost> Make(const PipelineSpec& spec, Pipeline::Options options = {}) {
    options.devices = &devices_;
    Plan plan = Pipeline::MakePlan(spec, options).value();
    for (StagePlan& stage : plan.stages) stage.rank = Rank(1);
    return BuildRankHost(spec, options, plan, Rank(1), /*transport=*/{}, &leader_).value();
  }
  static RunOrder Order(int64_t run, SchedulePurpose purpose, int micro_batches) {
    RunOrder order;
    order.spec.id = run;
    order.spec.purpose = purpose;
    order.spec.micro_batches = micro_batches;
    order.spec.rows.assign(micro_batches, 1);
    return order;
  }
  static RunOrder Inference(int64_t run) {
    RunOrder order = Order(run, SchedulePurpose::kForwardOnly, 1);
    order.spec.inference = true;
    return order;
  }

  // A Forward of one micro-batch whose passes the rank keeps, and a Backward of it.
  void KeepForward(RankHost& host, int64_t run) {
    RunOrder forward = Order(run, SchedulePurpose::kForwardOnly, 1);
    forward.spec.keep_graph = true;
    host.Start(forward);
    EndEarly(host, run);
  }
  static RunOrder BackwardOf(int64_t graph, int64_t run) {
    RunOrder backward = Order(run, SchedulePurpose::kBackwardOnly, 1);
    backward.spec.graph = graph;
    return backward;
  }
  // What the rank tells until then.
  std::vector<std::string> EndEarly(RankHost& host, int64_t run) {
    host.Stop(run);
    auto told = leader_.Until(absl::StrCat(run, " left"));
    host.End(run);
    return told;
  }
  // Runs on the thread of the rank's commands, behind those that it was given.
  static void OnCommands(RankHost& host, const std::function<void()>& work) {
    absl::Notification done;
    host.ReadFacts([&](const absl::StatusOr<FactsOfRank>&) {
      work();
      done.Notify();
    });
    done.WaitForNotification();
  }

  DevicePool devices_{ThreeCpus(), DevicePool::Mode::kThreads};
  FakeLeader leader_;
};

TEST_F(RankHostTest, RunsMayStartInAnyOrderButNoneTwice) {
  const auto host = Make(SmallMlp(2, 2));
  host->Start(Inference(2));
  host->Start(Inference(1));
  host->Start(Inference(2));
  EXPECT_THAT(leader_.Until("2 left"),
              ElementsAre("2 failed: RANK_MESSAGE start.run: must be above 0, and not open, got 2", "2 left"));
  host->Start(Inference(0));
  EXPECT_THAT(leader_.Until("0 left"),
              ElementsAre("0 failed: RANK_MESSAGE start.run: must be above 0, and not open, got 0", "0 left"));
  for (const int run : {1, 2}) {
    host->Stop(run);
    EXPECT_THAT(leader_.Until(absl::StrCat(run, " left")), ElementsAre(absl::StrCat(run, " left")));
    host->End(run);
  }
}

TEST_F(RankHostTest, ABackwardHasTheMicroBatchesOfItsForward) {
  const auto host = Make(SmallMlp(2, 2));
  RunOrder forward = Order(1, SchedulePurpose::kForwardOnly, 1);
  forward.spec.keep_graph = true;
  host->Start(forward);
  host->Stop(1);
  leader_.Until("1 left");
  host->End(1);
  RunOrder backward = Order(2, SchedulePurpose::kBackwardOnly, 2);
  backward.spec.graph = 1;
  host->Start(backward);
  host->Stop(2);
  EXPECT_THAT(leader_.Until("2 left"),
              ElementsAre("2 failed: RANK_MESSAGE start.micro_batches: must be 1, as of its Forward, got 2", "2 left"));
  backward.spec.id = 3;
  backward.spec.graph = 9;
  host->Start(backward);
  host->Stop(3);
  EXPECT_THAT(
      leader_.Until("3 left"),
      ElementsAre("3 failed: RANK_MESSAGE start.graph: must be a Forward whose passes are here, got 9", "3 left"));
  // It was not used up.
  backward = Order(4, SchedulePurpose::kBackwardOnly, 1);
  backward.spec.graph = 1;
  host->Start(backward);
  host->Stop(4);
  EXPECT_THAT(leader_.Until("4 left"), ElementsAre("4 left"));
  host->End(4);
}

TEST_F(RankHostTest, AForwardThatIsForgottenWhileItRunsIsNotKept) {
  const auto host = Make(SmallMlp(2, 2));
  RunOrder forward = Order(1, SchedulePurpose::kForwardOnly, 1);
  forward.spec.keep_graph = true;
  host->Start(forward);
  host->ForgetGraph(1);
  EndEarly(*host, 1);
  host->Start(BackwardOf(1, 2));
  EXPECT_THAT(
      EndEarly(*host, 2),
      ElementsAre("2 failed: RANK_MESSAGE start.graph: must be a Forward whose passes are here, got 1", "2 left"));
}

TEST_F(RankHostTest, AForwardThatIsForgottenWhileABackwardRetainsItIsNotKept) {
  const auto host = Make(SmallMlp(2, 2));
  KeepForward(*host, 1);
  RunOrder backward = BackwardOf(1, 2);
  backward.spec.retain_graph = true;
  backward.spec.keep_graph = true;
  host->Start(backward);
  host->ForgetGraph(1);
  EXPECT_THAT(EndEarly(*host, 2), ElementsAre("2 left"));
  host->Start(BackwardOf(1, 3));
  EXPECT_THAT(
      EndEarly(*host, 3),
      ElementsAre("3 failed: RANK_MESSAGE start.graph: must be a Forward whose passes are here, got 1", "3 left"));
}

// Wherever memory fails, at its start or at its end.
TEST_F(RankHostTest, ABackwardWithoutMemoryLeavesTheForwardThatItRetains) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const auto host = Make(SmallMlp(2, 2));
  KeepForward(*host, 1);
  bool failed = true;
  int64_t run = 1;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    ASSERT_LT(spared, 10'000);
    OnCommands(*host, [spared] { FailNewOnce(spared); });
    RunOrder backward = BackwardOf(1, ++run);
    backward.spec.retain_graph = true;
    backward.spec.keep_graph = true;
    host->Start(backward);
    const auto told = EndEarly(*host, run);
    OnCommands(*host, [&] { failed = StopFailingNew(); });
    if (told.size() > 1) {
      EXPECT_THAT(told[0], ::testing::HasSubstr("HOST_MEMORY"));
    }
    backward.spec.id = ++run;
    host->Start(backward);
    ASSERT_THAT(EndEarly(*host, run), ElementsAre(absl::StrCat(run, " left")));
  }
}

TEST_F(RankHostTest, AMessageThatIsRefusedFailsTheOpenRunsAndALostEdgeTheLaterOnes) {
  const auto host = Make(SmallMlp(2, 2));
  host->Start(Inference(1));
  OnCommands(*host, [] {});
  host->FailRuns(Error(absl::StatusCode::kInvalidArgument, "RANK_MESSAGE", "a lie"));
  EXPECT_THAT(EndEarly(*host, 1), ElementsAre("1 failed: RANK_MESSAGE a lie", "1 left"));
  host->Start(Inference(2));
  EXPECT_THAT(EndEarly(*host, 2), ElementsAre("2 left"));
  OnCommands(*host, [] {});
  host->FailRuns(Error(absl::StatusCode::kUnavailable, "RANK_LOST", "the edge has broken off"));
  host->Start(Inference(3));
  EXPECT_THAT(EndEarly(*host, 3), ElementsAre("3 failed: RANK_LOST the edge has broken off", "3 left"));
}

TEST_F(RankHostTest, TiesAreOfAllUses) {
  const auto host = Make(TiedAroundBatchNorm());
  host->Start(Order(1, SchedulePurpose::kOptimizerOnly, 0));
  leader_.Until("1 has ties");
  host->PutTies(1, {{at::Tensor()}});
  host->Stop(1);
  EXPECT_THAT(leader_.Until("1 left"),
              ElementsAre("1 failed: RANK_MESSAGE put_ties.ties.uses: must be those of the tied parameters, got others",
                          "1 left"));
  host->End(1);
}

TEST_F(RankHostTest, TiesComeOnce) {
  const auto host = Make(TiedAroundBatchNorm());
  host->Start(Order(1, SchedulePurpose::kOptimizerOnly, 0));
  leader_.Until("1 has ties");
  const TiedGradients ties = {{at::Tensor(), at::Tensor()}};
  host->PutTies(1, ties);
  leader_.Until("1 has norms");
  host->PutTies(1, ties);
  host->Stop(1);
  EXPECT_THAT(
      leader_.Until("1 left"),
      ElementsAre("1 failed: RANK_MESSAGE put_ties: must come once, when this rank has told its own, got others",
                  "1 left"));
  host->End(1);
}

TEST_F(RankHostTest, TheDecisionComesOnceAndNotBeforeTheNorms) {
  const auto host = Make(TiedAroundBatchNorm());
  const std::string early =
      " failed: RANK_MESSAGE grant: must come once, when this rank has told its norms, got another";
  host->Start(Order(1, SchedulePurpose::kOptimizerOnly, 0));
  leader_.Until("1 has ties");
  host->Grant(1, {});
  host->Stop(1);
  EXPECT_THAT(leader_.Until("1 left"), ElementsAre("1" + early, "1 left"));
  host->End(1);

  const auto untied = Make(SmallMlp(2, 2));
  untied->Start(Order(2, SchedulePurpose::kOptimizerOnly, 0));
  leader_.Until("2 has norms");
  untied->Grant(2, {});
  leader_.Until("2 left");
  untied->Grant(2, {});
  leader_.Until("2" + early);
  untied->End(2);
}

TEST_F(RankHostTest, ARunThatEndsForWantOfMemoryIsLeft) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  Pipeline::Options options;
  options.before_action = [](const Action&) { throw std::bad_alloc(); };
  leader_.FailNewOnceFailed();
  const auto host = Make(SmallMlp(1, 2), std::move(options));
  host->Start(Order(1, SchedulePurpose::kOptimizerOnly, 0));
  EXPECT_THAT(leader_.Until("1 left"), ElementsAre("1 left"));
  host->End(1);
}

TEST_F(RankHostTest, AnActionForWhichThereIsNoMemoryIsTriedOnceAndLeft) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  Pipeline::Options options;
  std::atomic<int> tried = 0;
  options.before_action = [&](const Action&) {
    ++tried;
    FailNew();  // until the run is left
    throw std::bad_alloc();
  };
  const auto host = Make(SmallMlp(1, 2), std::move(options));
  host->Start(Order(1, SchedulePurpose::kOptimizerOnly, 0));
  EXPECT_THAT(leader_.Until("1 left"), ElementsAre("1 left"));
  EXPECT_EQ(tried, 1);
  host->End(1);
}

}  // namespace
}  // namespace penstock::testing
