// What the leader and a rank say to each other of one pipeline: questions, events, losses and ends.

#include "server/ranks/rank_conversation.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/thread.h"
#include "engine/transport/frame_header.h"
#include "server/ranks/rank_reporter.h"
#include "server/ranks/remote_rank.h"
#include "tests/support/asleep.h"
#include "tests/support/failing_new.h"
#include "tests/support/quiet_line.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Keeps what the rank is told.
class FakeLine : public testing::QuietLine {
 public:
  void Tell(std::vector<MessagePart> parts) override {
    for (const MessagePart& part : parts) {
      auto whole = reader_.Take(part);
      ASSERT_TRUE(whole.ok()) << whole.status();
      if (whole->has_value()) told.push_back((*whole)->message);
    }
  }

  std::vector<peer::v1::Command> told;

 private:
  MessageReader<peer::v1::Command> reader_;
};

class FakeEvents : public RankEvents {
 public:
  void Failed(Rank rank, int64_t run, const absl::Status& why) override {
    Note(absl::StrCat(rank.value(), " failed in ", run, ": ", std::string(why.message())));
  }
  void HasTies(Rank, int64_t run, TiedGradients own) override { Note(absl::StrCat("ties of ", run, " ", own.size())); }
  void HasNorms(Rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) override {
    Note(absl::StrCat("norms of ", run, " ", norms.at(0).norms.size(), " ", measures.losses.size()));
  }
  void Left(Rank, int64_t run, bool before_the_end, Measures) override {
    Note(absl::StrCat("left ", run, before_the_end ? " early" : ""));
  }
  void Lost(Rank rank, const absl::Status& why) override {
    Note(absl::StrCat("lost ", rank.value(), " ", ReasonOf(why)));
  }

  std::vector<std::string> Take() { return std::exchange(told_, {}); }
  std::function<void()> on_event = [] {};

 private:
  void Note(std::string event) {
    told_.push_back(std::move(event));
    on_event();
  }
  std::vector<std::string> told_;
};

class RankConversationTest : public ::testing::Test {
 protected:
  static absl::Status Lost() { return Error(absl::StatusCode::kUnavailable, "RANK_LOST", "rank 2 is lost"); }
  peer::v1::Report Answer(uint64_t question) {
    peer::v1::Report report;
    report.set_pipeline(17);
    report.set_answer_to(question);
    return report;
  }

  const std::shared_ptr<FakeLine> line_ = std::make_shared<FakeLine>();
  FakeEvents events_;
  const std::shared_ptr<RankConversation> rank_ = std::make_shared<RankConversation>(Rank(2), 17, line_, &events_);
};

TEST_F(RankConversationTest, AnswersFindTheirQuestionsInAnyOrder) {
  RemoteRank commands(rank_);
  std::vector<std::string> answers;
  commands.Undo([&](const absl::Status& status) {
    answers.push_back(absl::StrCat("undo of rank ", ValuesOf(status)["rank"], " ", status.message()));
  });
  commands.ReadState(true, [&](const absl::StatusOr<StatesOfStages>& states) {
    answers.push_back(absl::StrCat("state of ", states->at(0).stage, " ", states->at(0).saved.at(0).name));
  });
  ASSERT_EQ(line_->told.size(), 2u);
  EXPECT_EQ(line_->told[0].pipeline(), 17u);
  EXPECT_TRUE(line_->told[0].has_undo());
  EXPECT_TRUE(line_->told[1].read_state());
  peer::v1::Report report = Answer(line_->told[1].question());
  peer::v1::StageStates::OfStage* stage = report.mutable_states()->add_stages();
  stage->set_stage(3);
  stage->set_saved(1);
  ASSERT_TRUE(rank_->OnReport(report, {{"c.weight", at::ones({2})}}).ok());
  report = Answer(line_->told[0].question());
  report.set_error(EncodeError(Error(absl::StatusCode::kInternal, "BUG", "it went wrong")));
  ASSERT_TRUE(rank_->OnReport(report, {}).ok());
  EXPECT_THAT(answers, ElementsAre("state of 3 c.weight", "undo of rank 2 it went wrong"));
  // The same answer twice, or one to a question that nobody has asked.
  EXPECT_EQ(ReasonOf(rank_->OnReport(report, {})), "RANK_MESSAGE");
}

TEST_F(RankConversationTest, ARankThatCanNotBeToldIsLost) {
  RemoteRank commands(rank_);
  commands.PutTies(4, {{at::ones({2}, at::kComplexFloat)}});
  EXPECT_THAT(events_.Take(), ElementsAre("lost 2 TENSOR_SIGNATURE"));
  EXPECT_THAT(line_->told, IsEmpty());
  commands.Stop(4);
  EXPECT_THAT(line_->told, IsEmpty());
}

// An edge of its has failed, say: its process lives, and would keep the stages.
TEST_F(RankConversationTest, ARankThatIsLostToThePipelineIsToldToDropItsStages) {
  {
    RemoteRank commands(rank_);
    rank_->OnLost(Lost());
    commands.Stop(1);
    EXPECT_THAT(line_->told, IsEmpty());
  }
  ASSERT_EQ(line_->told.size(), 1u);
  EXPECT_TRUE(line_->told[0].has_drop());
  EXPECT_EQ(line_->told[0].pipeline(), 17u);
}

TEST_F(RankConversationTest, EveryQuestionIsAnsweredOnceThoughThereIsNoMemory) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "the sanitizer has operators of its own";
  bool whole = false;
  for (int spared = 0; !whole; ++spared) {
    const auto rank = std::make_shared<RankConversation>(Rank(2), 17, line_, &events_);
    RemoteRank commands(rank);
    int answers = 0;
    commands.ReadState(true, [&](const absl::StatusOr<StatesOfStages>& states) {
      ++answers;
      whole = states.ok();
    });
    peer::v1::Report report = Answer(line_->told.back().question());
    report.mutable_states()->add_stages()->set_saved(1);
    NamedTensors tensors = {{"a name that is longer than a short string", at::ones({2})}};
    testing::FailNewOnce(spared);
    const absl::Status told = Guarded("a report", [&] { return rank->OnReport(report, std::move(tensors)); });
    testing::StopFailingNew();
    if (!told.ok()) rank->OnLost(Lost());  // as the group does
    EXPECT_EQ(answers, 1) << spared;
    ASSERT_LT(spared, 1000);
  }
}

TEST_F(RankConversationTest, AReportThatCanNotBeMadeIsToldAsAFailure) {
  bool full = true;
  MessageReader<peer::v1::Report> reader;
  std::vector<peer::v1::Report> told;
  RankReporter reporter(17, [&](const std::vector<MessagePart>& parts) {
    if (std::exchange(full, false)) throw std::bad_alloc();
    for (const MessagePart& part : parts) {
      auto whole = reader.Take(part);
      ASSERT_TRUE(whole.ok() && whole->has_value());
      EXPECT_THAT((*whole)->tensors, IsEmpty());
      told.push_back((*whole)->message);
    }
  });
  reporter.Answer(3, absl::OkStatus(), [](OutgoingReport* report) { return report->Add("a", at::ones({2})); });
  full = true;
  reporter.HasTies(Rank(1), 5, {{at::ones({2})}});
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].answer_to(), 3u);
  EXPECT_EQ(ReasonOf(DecodeError(told[0].error())), "HOST_MEMORY");
  EXPECT_EQ(told[1].failed().run(), 5);
  EXPECT_EQ(ReasonOf(DecodeError(told[1].failed().error())), "HOST_MEMORY");
  reporter.Answer(6, absl::OkStatus(), [](OutgoingReport* report) {
    EXPECT_TRUE(report->Add("a", at::ones({2})).ok());
    return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", "no more");
  });
  EXPECT_EQ(told.back().answer_to(), 6u);
  EXPECT_EQ(ReasonOf(DecodeError(told.back().error())), "HOST_MEMORY");
}

TEST_F(RankConversationTest, EventsComeAsTheyAre) {
  peer::v1::Report report;
  report.mutable_failed()->set_run(4);
  report.mutable_failed()->set_error(EncodeError(Error(absl::StatusCode::kInternal, "BUG", "a fault")));
  EXPECT_TRUE(rank_->OnReport(report, {}).ok());
  report = {};
  report.mutable_run_ties()->set_run(4);
  report.mutable_run_ties()->mutable_ties()->add_uses(2);
  EXPECT_TRUE(rank_->OnReport(report, {{"", at::ones({1})}, {"", at::Tensor()}}).ok());
  report = {};
  report.mutable_run_norms()->set_run(4);
  report.mutable_run_norms()->add_stages()->set_norms(1);
  report.mutable_run_norms()->mutable_measures()->add_losses(0.5);
  EXPECT_TRUE(rank_->OnReport(report, {{"", at::ones({})}}).ok());
  report = {};
  report.mutable_left()->set_run(4);
  report.mutable_left()->set_before_the_end(true);
  EXPECT_TRUE(rank_->OnReport(report, {}).ok());
  EXPECT_THAT(events_.Take(), ElementsAre("2 failed in 4: a fault", "ties of 4 1", "norms of 4 1 1", "left 4 early"));
  // Tensors that are not there.
  report = {};
  report.mutable_run_ties()->mutable_ties()->add_uses(2);
  EXPECT_EQ(ReasonOf(rank_->OnReport(report, {{"", at::ones({1})}})), "RANK_MESSAGE");
  EXPECT_EQ(ReasonOf(rank_->OnReport({}, {})), "RANK_MESSAGE");
  EXPECT_THAT(events_.Take(), IsEmpty());
}

TEST_F(RankConversationTest, ALostRankAnswersEveryQuestionWithTheLossAndIsToldNothing) {
  RemoteRank commands(rank_);
  std::vector<std::string> answers;
  const auto note = [&](const absl::Status& status) { answers.push_back(ReasonOf(status)); };
  commands.Undo(note);
  rank_->OnLost(Lost());
  rank_->OnLost(Lost());
  commands.Undo(note);
  commands.Stop(1);
  EXPECT_THAT(answers, ElementsAre("RANK_LOST", "RANK_LOST"));
  EXPECT_THAT(events_.Take(), ElementsAre("lost 2 RANK_LOST"));
  EXPECT_EQ(line_->told.size(), 1u);
  EXPECT_TRUE(rank_->OnReport(Answer(1), {}).ok()) << "it had said so before";
}

TEST_F(RankConversationTest, TheEndSaysSoAndNothingIsToldAfterIt) {
  std::vector<std::string> answers;
  {
    RemoteRank commands(rank_);
    commands.Undo([&](const absl::Status& status) { answers.push_back(ReasonOf(status)); });
  }
  EXPECT_TRUE(line_->told.back().has_drop());
  EXPECT_THAT(answers, ElementsAre("WORK_CANCELLED"));
  peer::v1::Report report;
  report.mutable_left()->set_run(4);
  EXPECT_TRUE(rank_->OnReport(report, {}).ok());
  rank_->OnLost(Lost());
  EXPECT_THAT(events_.Take(), IsEmpty());
  const size_t told = line_->told.size();
  rank_->Say({});
  rank_->Ask({}, [&](const absl::StatusOr<RankConversation::Arrived*>& arrived) {
    answers.push_back(ReasonOf(arrived.status()));
  });
  EXPECT_THAT(answers, ElementsAre("WORK_CANCELLED", "WORK_CANCELLED"));
  EXPECT_EQ(line_->told.size(), told);
}

TEST_F(RankConversationTest, TheEndWaitsForAnEventThatIsBeingTold) {
  absl::Notification telling;
  absl::Notification go_on;
  events_.on_event = [&] {
    telling.Notify();
    go_on.WaitForNotification();
  };
  Thread told("told", [&] {
    peer::v1::Report report;
    report.mutable_left()->set_run(4);
    EXPECT_TRUE(rank_->OnReport(report, {}).ok());
  });
  telling.WaitForNotification();
  absl::Notification closed;
  testing::Watched closing;
  Thread closes("closes", [&] {
    closing.Begin();
    rank_->Close();
    closed.Notify();
  });
  closing.AwaitSleep(closed);
  EXPECT_FALSE(closed.HasBeenNotified());
  go_on.Notify();
  closed.WaitForNotification();
}

}  // namespace
}  // namespace penstock
