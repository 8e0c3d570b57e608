// What goes wrong between a leader and its ranks at the worst moments: nothing waits for what will not come.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <new>

#include "engine/base/thread.h"
#include "tests/support/failing_new.h"
#include "tests/support/small_specs.h"
#include "tests/unit/exec/watched_ranks.h"

namespace penstock::testing {
namespace {

// Drops the messages of one rank to the leader when it is told to.
class DroppingCarrier final : public Carrier {
 public:
  DroppingCarrier(std::unique_ptr<Carrier> to, const std::atomic<bool>* drops) : to_(std::move(to)), drops_(*drops) {}
  std::string address() const override { return to_->address(); }
  absl::Status Start(const std::map<Rank, std::string>& peers, Handlers handlers) override {
    return to_->Start(peers, std::move(handlers));
  }
  void Send(Rank to, Frame frame) override {
    if (!drops_ || to != Rank(0)) to_->Send(to, std::move(frame));
  }
  void Disconnect(Rank peer, const absl::Status& why) override { to_->Disconnect(peer, why); }
  void Close() override { to_->Close(); }

 private:
  const std::unique_ptr<Carrier> to_;
  const std::atomic<bool>& drops_;
};

ContributionRequest SixRows() { return Contribution(Range({6, 3}).sin(), Range({6, 3}).cos()); }
ForwardRequest Question() { return Ask(NamedTensors{{"input", Range({4, 3})}}); }

class RankFailure : public ::testing::Test {
 protected:
  std::unique_ptr<Pipeline> Make(const PipelineSpec& spec, const std::vector<int>& ranks,
                                 Pipeline::Options options = {}) {
    options.on_rank_lost = [this](Rank rank, const absl::Status& why) {
      EXPECT_EQ(ReasonOf(why), "RANK_LOST");
      absl::MutexLock lock(&mu_);
      lost_.push_back(rank.value());
    };
    return MakeOver(group_, spec, ranks, std::move(options));
  }
  // The ranks that were told to be lost, once one is: runs may fail before it is told.
  std::vector<int> Lost() {
    absl::MutexLock lock(&mu_);
    const auto told = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !lost_.empty(); };
    mu_.AwaitWithTimeout(absl::Condition(&told), absl::Seconds(60));
    return lost_;
  }
  static void ExpectLost(Pipeline& pipeline) {
    EXPECT_EQ(ReasonOf(pipeline.health()), "RANK_LOST");
    EXPECT_EQ(ReasonOf(pipeline.TrainStep(SixRows(), {}).status()), "RANK_LOST");
    Inference question;
    question.Ask(pipeline, Question());
    EXPECT_EQ(ReasonOf(question.Answer().status()), "RANK_LOST");
  }

  std::atomic<bool> drops_ = false;
  FakeCarrier::Network network_;
  WatchedGroup group_{3, [this](Rank self) -> std::unique_ptr<Carrier> {
                        return std::make_unique<DroppingCarrier>(network_.Make(self), &drops_);
                      }};
  absl::Mutex mu_;
  std::vector<int> lost_ ABSL_GUARDED_BY(mu_);
};

TEST_F(RankFailure, ValuesThatNeverComeEndWithTheirRank) {
  const auto pipeline = Make(TiedAroundBatchNorm(), {0, 1});
  absl::Notification left;
  group_.hooks.on_event = [&](std::string_view event, Rank) {
    if (event == "Left") left.Notify();
  };
  drops_ = true;
  Inference question;
  question.Ask(*pipeline, Question());
  left.WaitForNotification();
  group_.Lose(1);
  EXPECT_EQ(ReasonOf(question.Answer().status()), "RANK_LOST");
  EXPECT_EQ(Lost(), std::vector<int>{1});
}

TEST_F(RankFailure, AnInferenceUnderWayFailsWithARankThatIsLost) {
  absl::Notification began, go_on;
  const auto stop = [&](const Batch& inputs, const LayerContext&, const Tensors&) {
    if (!began.HasBeenNotified()) began.Notify();
    go_on.WaitForNotification();
    return inputs;
  };
  const auto pipeline =
      Make(Pipe({Function({.forward = Multiply, .parameters = {{1}}}), Function(stop)}, {1, 1}, 4), {0, 1});
  Inference question;
  question.Ask(*pipeline, Question());
  began.WaitForNotification();
  group_.Lose(1);
  EXPECT_EQ(ReasonOf(question.Answer().status()), "RANK_LOST") << "though its lane is still at work";
  go_on.Notify();
  ExpectLost(*pipeline);
}

// It was asked while all ranks were there, and waits for the end of a step in which one is lost.
TEST_F(RankFailure, AnInferenceThatStartsWithoutARankFails) {
  const auto pipeline = Make(TiedAroundBatchNorm(), {0, 1});
  Inference question;
  bool asked = false;
  group_.hooks.on_command = [&](std::string_view command, Rank) {
    if (command != "Grant" || std::exchange(asked, true)) return absl::OkStatus();
    question.Ask(*pipeline, Question());
    group_.Lose(1);
    return WatchedGroup::LostStatus(1);
  };
  EXPECT_FALSE(pipeline->TrainStep(SixRows(), {}).ok());
  ASSERT_TRUE(asked);
  EXPECT_EQ(ReasonOf(question.Answer().status()), "RANK_LOST");
}

TEST_F(RankFailure, ARankIsLostOnce) {
  const auto pipeline = Make(TiedAroundBatchNorm(), {0, 1});
  const absl::Status first = WatchedGroup::LostStatus(1);
  group_.LoseWith(1, first);
  group_.LoseWith(1, Error(absl::StatusCode::kUnavailable, "RANK_LOST", "again"));
  EXPECT_EQ(Lost(), std::vector<int>{1});
  EXPECT_EQ(pipeline->health(), first);
}

TEST_F(RankFailure, ARankIsLostAtAnyCommand) {
  for (const std::string at : {"Start", "Stop", "PutTies", "Grant", "End", "Undo", "WriteState", "ReadState",
                               "UpdateOptimizer", "RestoreTiedGradients", "DiscardGradients", "EndContribution"}) {
    SCOPED_TRACE(at);
    group_.hooks = RankHooks();
    std::atomic<bool> faults = false;
    Pipeline::Options options;
    options.fault_point = [&](FaultPoint point, int stage) {
      if (faults && point == FaultPoint::kUpdated && stage == 0) throw std::bad_alloc();
    };
    const auto pipeline = Make(TiedAroundBatchNorm(), {0, 1}, std::move(options));
    const NamedTensors state = pipeline->ExportState(true).value();
    absl::Notification heard;
    group_.hooks.on_command = [&](std::string_view command, Rank) {
      if (command != at || heard.HasBeenNotified()) return absl::OkStatus();
      heard.Notify();
      group_.Lose(1);
      return WatchedGroup::LostStatus(1);
    };
    faults = at == "Undo" || at == "Stop" || at == "RestoreTiedGradients";
    pipeline->ForwardBackward(SixRows()).IgnoreError();
    pipeline->OptimizerStep({}).IgnoreError();
    pipeline->ImportState(state, 0).IgnoreError();
    pipeline->UpdateOptimizer(pipeline->optimizer()).IgnoreError();
    pipeline->ExportState(true).IgnoreError();
    EXPECT_TRUE(heard.HasBeenNotified());
    ExpectLost(*pipeline);
    EXPECT_EQ(Lost(), std::vector<int>{1});
    absl::MutexLock lock(&mu_);
    lost_.clear();
  }
}

// The leader's own lanes may fail before another rank has heard of the run: what they say is then of no run to it.
TEST_F(RankFailure, ARunThatStopsBeforeItsStartIsToldIsStoppedEverywhere) {
  std::atomic<bool> faults = false;
  Pipeline::Options options;
  options.before_action = [&](const Action& action) {
    if (faults && action.stage == 0) throw std::bad_alloc();
  };
  const auto pipeline = Make(SmallMlp(2, 4), {0, 1}, std::move(options));
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  absl::Notification stopped;
  group_.hooks.on_command = [&](std::string_view command, Rank) {
    if (!faults || stopped.HasBeenNotified()) return absl::OkStatus();
    if (command == "Start") stopped.WaitForNotification();
    if (command != "Stop") return absl::OkStatus();
    stopped.Notify();
    return absl::Status(absl::NotFoundError("the run is not open there"));
  };
  faults = true;
  EXPECT_EQ(ReasonOf(pipeline->TrainStep(SmallBatch(4), {}).status()), "HOST_MEMORY");
  faults = false;
  EXPECT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
}

// Memory that fails once where a rank speaks to its leader fails the run, and no other.
TEST_F(RankFailure, WhatARankHasNoMemoryToSayFailsItsRun) {
  for (const std::string at : {"Failed", "HasTies", "HasNorms", "Left"}) {
    SCOPED_TRACE(at);
    group_.hooks = RankHooks();
    std::atomic<bool> faults = false;
    Pipeline::Options options;
    options.fault_point = [&](FaultPoint point, int stage) {
      if (faults && point == FaultPoint::kShareTies && stage == 1) throw std::bad_alloc();
    };
    const auto pipeline = Make(TiedAroundBatchNorm(), {0, 1}, std::move(options));
    std::atomic<bool> fails = true;
    group_.hooks.on_event = [&](std::string_view event, Rank) {
      if (event == at && fails.exchange(false)) throw std::bad_alloc();
    };
    faults = at == "Failed";
    const auto step = pipeline->TrainStep(SixRows(), {});
    EXPECT_FALSE(fails);
    EXPECT_FALSE(step.ok()) << "it does not pass for done";
    faults = false;
    EXPECT_TRUE(pipeline->health().ok()) << pipeline->health();
    EXPECT_TRUE(pipeline->TrainStep(SixRows(), {}).ok());
  }
}

TEST_F(RankFailure, ARankThatCannotEvenSayThatItHasLeftIsLost) {
  const auto pipeline = Make(TiedAroundBatchNorm(), {0, 1});
  group_.hooks.on_event = [](std::string_view event, Rank) {
    if (event == "Left") throw std::bad_alloc();
  };
  EXPECT_FALSE(pipeline->TrainStep(SixRows(), {}).ok());
  EXPECT_FALSE(pipeline->health().ok());
}

TEST_F(RankFailure, TheLossOfARankTakesNoMemory) {
  if (!kCanFailNew) GTEST_SKIP();
  absl::Notification began, go_on;
  Pipeline::Options options;
  options.before_action = [&](const Action& action) {
    if (action.stage != 1 || began.HasBeenNotified()) return;
    began.Notify();
    go_on.WaitForNotification();
  };
  PipelineSpec spec = SmallMlp(3, 4);
  const auto pipeline = Make(spec, {0, 1, 2}, std::move(options));
  absl::StatusOr<RunOutcome> step;
  Thread trainer("trainer", [&] { step = pipeline->TrainStep(SmallBatch(4), {}); });
  began.WaitForNotification();
  const absl::Status why = WatchedGroup::LostStatus(1);
  FailNew();
  group_.LoseWith(1, why);
  EXPECT_TRUE(StopFailingNew()) << "others could not be told, and are lost, too";
  go_on.Notify();
  trainer.Join();
  EXPECT_EQ(ReasonOf(step.status()), "RANK_LOST") << step.status();
  EXPECT_EQ(ReasonOf(pipeline->health()), "RANK_LOST");
}

// Neither is the leader: what they can't say to each other any more fails each run at once.
TEST_F(RankFailure, AnEdgeThatIsLostFailsRunsForGood) {
  const auto pipeline = Make(SmallMlp(3, 4), {0, 1, 2});
  ASSERT_TRUE(pipeline->TrainStep(SmallBatch(4), {}).ok());
  group_.edges(1).Lose(Rank(2), absl::UnavailableError("the cable is cut"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ReasonOf(pipeline->TrainStep(SmallBatch(4), {}).status()), "RANK_LOST");
}

TEST_F(RankFailure, ARankThatTheLeadersTensorsCannotReachIsLost) {
  const auto pipeline = Make(SmallMlp(3, 4), {0, 1, 2});
  group_.edges(0).Lose(Rank(1), absl::UnavailableError("the cable is cut"));
  EXPECT_EQ(ReasonOf(pipeline->TrainStep(SmallBatch(4), {}).status()), "RANK_LOST");
  EXPECT_EQ(ReasonOf(pipeline->health()), "RANK_LOST");
  EXPECT_EQ(Lost(), std::vector<int>{1});
}

}  // namespace
}  // namespace penstock::testing
