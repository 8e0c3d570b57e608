#include "server/drain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/base/log.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

using Words = std::vector<std::string>;

// A daemon that only notes what it is asked to do. Its work and its saves end at once unless a test says otherwise.
class DrainTest : public ::testing::Test {
 protected:
  DrainTest() {
    lifecycle_.Advance(LifecycleState::kReady);
    plan_.checkpoint = absl::Hours(1);
    plan_.finish = absl::Hours(1);
    plan_.lifecycle = &lifecycle_;
    plan_.finish_work = [this](auto done) {
      said_.push_back("finish");
      if (work_ends_) done();
    };
    plan_.save = [this](ServedPipeline::LastSave save, std::shared_ptr<CancelToken> cancel, auto done) {
      said_.push_back("save");
      save_ = save;
      cancel_ = std::move(cancel);
      on_save_(std::move(done));
    };
    plan_.resume = [this] { said_.push_back("resume"); };
    plan_.calls_started = [] { return 0; };
    plan_.close_all = [this](absl::Duration patience) {
      said_.push_back("close");
      patience_ = patience;
    };
  }

  DrainEnd Run() { return RunDrain(plan_, signal_); }

  Lifecycle lifecycle_;
  const std::shared_ptr<DrainSignal> signal_ = std::make_shared<DrainSignal>();
  ServedPipeline::LastSave save_;
  DrainPlan plan_;
  bool work_ends_ = true;
  std::function<void(std::function<void(LastSaves)>)> on_save_ = [](const auto& done) { done({}); };
  std::shared_ptr<CancelToken> cancel_;
  Words said_;
  absl::Duration patience_ = absl::InfiniteDuration();
};

TEST_F(DrainTest, FinishesThenSavesThenCloses) {
  EXPECT_EQ(Run(), DrainEnd::kWhole);
  EXPECT_EQ(said_, (Words{"finish", "save", "close"}));
  EXPECT_FALSE(save_.force || save_.empty_journal);
  EXPECT_EQ(lifecycle_.state(), LifecycleState::kRefusing);
  EXPECT_FALSE(cancel_->cancelled());
}

TEST_F(DrainTest, UnfinishedWorkIsSavedUpToItsLastStepAndTold) {
  work_ends_ = false;
  plan_.finish = absl::ZeroDuration();
  EXPECT_EQ(Run(), DrainEnd::kCutShort);
  EXPECT_EQ(said_, (Words{"finish", "save", "close"}));
}

TEST_F(DrainTest, AFailedSaveIsLoggedAndToldAndClosesAllTheSame) {
  on_save_ = [](const auto& done) { done({.failed = {"gpt", "mlp"}}); };
  const int64_t errors = LoggedLines(LogLevel::kError);
  EXPECT_EQ(Run(), DrainEnd::kStateLost);
  EXPECT_EQ(said_.back(), "close");
  EXPECT_EQ(LoggedLines(LogLevel::kError), errors + 1);
}

TEST_F(DrainTest, ASaveThatTakesTooLongIsGivenUp) {
  plan_.checkpoint = absl::Milliseconds(1);
  plan_.close = absl::Hours(1);
  std::unique_ptr<Thread> disk;
  on_save_ = [&](auto done) {
    disk = std::make_unique<Thread>("ps-test", [this, done = std::move(done)] {
      absl::Mutex mu;
      absl::MutexLock lock(&mu);
      const auto given_up = [this] { return cancel_->cancelled(); };
      while (!given_up()) mu.AwaitWithTimeout(absl::Condition(&given_up), absl::Milliseconds(1));
      done({.failed = {"gpt"}});
    });
  };
  EXPECT_EQ(Run(), DrainEnd::kStateLost);
  EXPECT_EQ(said_.back(), "close");
  EXPECT_EQ(patience_, absl::Hours(1));
}

TEST_F(DrainTest, ADiskThatDoesNotAnswerHoldsNothingUp) {
  plan_.checkpoint = absl::Milliseconds(1);
  plan_.close = absl::Milliseconds(1);
  on_save_ = [](const auto&) {};
  EXPECT_EQ(Run(), DrainEnd::kHangs);
  EXPECT_TRUE(cancel_->cancelled());
  EXPECT_EQ(said_.back(), "save") << "closing would wait for the disk";
}

TEST_F(DrainTest, NothingIsSavedIfThereIsNoTimeForIt) {
  plan_.checkpoint = absl::ZeroDuration();
  EXPECT_EQ(Run(), DrainEnd::kWhole);
  EXPECT_EQ(said_, (Words{"finish", "close"}));
}

TEST_F(DrainTest, ASecondSignalSkipsToTheEnd) {
  plan_.close = absl::Hours(1);
  signal_->Hurry();
  EXPECT_EQ(Run(), DrainEnd::kCutShort);
  EXPECT_EQ(said_, Words{"close"});
  EXPECT_EQ(patience_, absl::ZeroDuration());
}

TEST_F(DrainTest, ASecondSignalGivesTheSaveUp) {
  plan_.close = absl::Hours(1);
  std::unique_ptr<Thread> disk;
  on_save_ = [&](auto done) {
    signal_->Hurry();
    disk = std::make_unique<Thread>("ps-test", [cancel = cancel_, done = std::move(done)] {
      absl::Mutex mu;
      absl::MutexLock lock(&mu);
      const auto given_up = [&cancel] { return cancel->cancelled(); };
      while (!given_up()) mu.AwaitWithTimeout(absl::Condition(&given_up), absl::Milliseconds(1));
      done({.failed = {"gpt"}});
    });
  };
  EXPECT_EQ(Run(), DrainEnd::kCutShort);
  EXPECT_EQ(said_.back(), "close");
}

TEST_F(DrainTest, CallersFetchTheirLastResultsAlsoWhereTheSaveFails) {
  plan_.close = absl::Hours(1);
  int64_t asked = 0;
  plan_.calls_started = [&asked] { return std::min<int64_t>(++asked, 3); };  // three calls come in
  on_save_ = [](const auto& done) { done({.failed = {"gpt"}}); };
  EXPECT_EQ(Run(), DrainEnd::kStateLost);
  EXPECT_EQ(asked, 4) << "until none comes any more";
  EXPECT_EQ(said_.back(), "close");
}

// --- Aborts.

TEST_F(DrainTest, AnAbortWhileItIsAnnouncedChangesNothing) {
  plan_.announce = absl::Hours(1);
  ASSERT_TRUE(signal_->Abort());
  EXPECT_EQ(Run(), DrainEnd::kAborted);
  EXPECT_EQ(said_, Words{"resume"});
  EXPECT_EQ(lifecycle_.state(), LifecycleState::kReady);
}

TEST_F(DrainTest, AnAbortWhileWorkFinishesCancelsNothing) {
  work_ends_ = false;
  plan_.finish_work = [this](const auto&) {
    said_.push_back("finish");
    ASSERT_TRUE(signal_->Abort());
  };
  EXPECT_EQ(Run(), DrainEnd::kAborted);
  EXPECT_EQ(said_, (Words{"finish", "resume"}));
  EXPECT_EQ(lifecycle_.state(), LifecycleState::kReady);
}

TEST_F(DrainTest, AnAbortWhileItSavesGivesTheSaveUpAndWaitsForItsEnd) {
  std::unique_ptr<Thread> disk;
  on_save_ = [&](auto done) {
    ASSERT_TRUE(signal_->Abort());
    disk = std::make_unique<Thread>("ps-test", [this, done = std::move(done)] {
      absl::Mutex mu;
      absl::MutexLock lock(&mu);
      const auto given_up = [this] { return cancel_->cancelled(); };
      while (!given_up()) mu.AwaitWithTimeout(absl::Condition(&given_up), absl::Milliseconds(1));
      said_.push_back("save ends");
      done({.failed = {"gpt"}});
    });
  };
  const int64_t warnings = LoggedLines(LogLevel::kWarning);
  const int64_t errors = LoggedLines(LogLevel::kError);
  EXPECT_EQ(Run(), DrainEnd::kAborted);
  EXPECT_EQ(said_, (Words{"finish", "save", "save ends", "resume"}));
  EXPECT_EQ(LoggedLines(LogLevel::kError), errors) << "no state is lost";
  EXPECT_EQ(LoggedLines(LogLevel::kWarning), warnings) << "it is not given up by its time";
}

TEST_F(DrainTest, WhatIsCutShortCantBeAborted) {
  work_ends_ = false;
  plan_.finish = absl::ZeroDuration();
  on_save_ = [&](const auto& done) {
    EXPECT_FALSE(signal_->Abort());
    done({});
  };
  EXPECT_EQ(Run(), DrainEnd::kCutShort);
  EXPECT_TRUE(save_.force) << "what has not run is cancelled";
  EXPECT_EQ(said_.back(), "close");
}

TEST_F(DrainTest, AClosedDaemonCantBeAborted) {
  plan_.close_all = [&](absl::Duration) { EXPECT_FALSE(signal_->Abort()); };
  EXPECT_EQ(Run(), DrainEnd::kWhole);
  EXPECT_EQ(signal_->view().phase, DrainPhase::kClose);
}

TEST_F(DrainTest, ForAnUpgradeTheJournalsAreEmptiedOrItIsTold) {
  ASSERT_TRUE(signal_->AskForUpgrade());
  on_save_ = [](const auto& done) { done({.unemptied = {"gpt"}}); };
  EXPECT_EQ(Run(), DrainEnd::kUnemptied);
  EXPECT_TRUE(save_.empty_journal);
  EXPECT_EQ(said_.back(), "close");
}

TEST_F(DrainTest, OnceTheSavesHaveBegunItIsTooLateForAnUpgrade) {
  on_save_ = [&](const auto& done) {
    EXPECT_FALSE(signal_->AskForUpgrade());
    done({});
  };
  EXPECT_EQ(Run(), DrainEnd::kWhole);
}

}  // namespace
}  // namespace penstock
