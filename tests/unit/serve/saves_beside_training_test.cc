// Saves whose checkpoints are written while later calls run: what goes on, what waits, what a crash leaves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/cancel_token.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "tests/unit/serve/hosting_fixture.h"
#include "tests/unit/serve/journalled_engine.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The answer of a call that is not waited for at once.
class Later {
 public:
  explicit Later(const std::function<void(StateCallback)>& call) {
    call([state = state_](const absl::StatusOr<StateAnswer>& answer) {
      state->answer = answer;
      state->done.Notify();
    });
  }
  bool done() const { return state_->done.HasBeenNotified(); }
  const absl::StatusOr<StateAnswer>& answer() const {
    state_->done.WaitForNotification();
    return state_->answer;
  }
  std::string reason() const { return ReasonOf(answer().status()); }

 private:
  struct State {
    absl::StatusOr<StateAnswer> answer;
    absl::Notification done;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

void Eventually(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::yield();
}

class SavesBesideTrainingTest : public HostingFixture {
 protected:
  void Step() { Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome); }
  Later StartSave(SaveCall save) {
    clock_.Advance(absl::Seconds(1));
    return Later([&](auto done) { gpt_->SaveCheckpoint(Caller(), std::move(save), done); });
  }
  Later StartRestore(const std::string& id) {
    return Later([&](auto done) { gpt_->RestoreCheckpoint(Caller(), id, /*force=*/false, done); });
  }
  Later StartRemoval(const std::string& id) {
    return Later([&](auto done) { gpt_->DeleteCheckpoint(Caller(), id, done); });
  }
  Later StartCopy(const std::string& id, const std::string& as) {
    return Later([&](auto done) {
      gpt_->CopyCheckpoint(Caller(), {.source = checkpoints_->FindFolder("gpt"), .source_id = id, .id = as}, done);
    });
  }
  // A save whose first write stands still.
  Later HeldSave(SaveCall save) {
    files_.HoldWrites();
    Later later = StartSave(std::move(save));
    files_.AwaitHeldWrite();
    return later;
  }
  // Waits until the last call that was accepted has had its turn: it runs, or has run.
  void AwaitTurn() {
    Eventually([this] { return gpt_->statistics().train_queue_calls == 0; });
  }
  std::vector<std::string> Ids() const {
    std::vector<std::string> ids;
    for (const CheckpointInfo& info : gpt_->ListCheckpoints()) ids.push_back(info.id);
    return ids;
  }
};

TEST_F(SavesBesideTrainingTest, StepsGoOnWhileACheckpointIsWrittenWhichHoldsNoneOfThem) {
  Step();
  const float saved = ValueOf(*gpt_->Infer(Caller(), Ask())->outputs);
  const std::string token = gpt_->statistics().state_token;
  const Later save = HeldSave({.id = "mine"});
  Step();
  Step();
  EXPECT_EQ(gpt_->statistics().step, 3);
  EXPECT_GE(gpt_->statistics().running, 1) << "the save";
  EXPECT_FALSE(save.done());
  EXPECT_THAT(Ids(), IsEmpty());
  files_.ResumeWrites();
  ASSERT_TRUE(save.answer().ok()) << save.answer().status();
  EXPECT_EQ(save.answer()->step, 1);
  EXPECT_EQ(save.answer()->state_token, token) << "of its place in the order";
  EXPECT_EQ(save.answer()->checkpoint.step, 1);
  EXPECT_EQ(Metrics()->step_number.value(), 3) << "not the step that was saved";
  ASSERT_TRUE(Restore("mine").ok());
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask())->outputs), saved);
}

TEST_F(SavesBesideTrainingTest, WhatLooksAtCheckpointsWaitsForTheOneThatIsWritten) {
  const auto waits = [&](const std::function<Later()>& start) {
    const Later save = HeldSave({.id = "mine"});
    const Later behind = start();
    AwaitTurn();
    EXPECT_FALSE(behind.done());
    files_.ResumeWrites();
    EXPECT_TRUE(behind.answer().ok()) << behind.answer().status();
    EXPECT_TRUE(save.done()) << "it is told first";
    EXPECT_TRUE(save.answer().ok()) << save.answer().status();
  };
  waits([&] { return StartRemoval("mine"); });
  EXPECT_THAT(Ids(), IsEmpty());
  Step();
  waits([&] { return StartRestore("mine"); });
  ASSERT_TRUE(Remove("mine").ok());
  waits([&] { return StartCopy("mine", "copy"); });
  EXPECT_THAT(Ids(), ElementsAre("copy", "mine"));
}

TEST_F(SavesBesideTrainingTest, ASaveOfTheSameNameIsRefusedWhenTheFirstIsThere) {
  const Later first = HeldSave({.id = "mine"});
  Step();
  const Later second = StartSave({.id = "mine"});
  const Later third = StartSave({.id = "mine", .replace = true});
  files_.ResumeWrites();
  EXPECT_EQ(first.answer()->step, 0);
  EXPECT_EQ(second.reason(), "CHECKPOINT_EXISTS");
  EXPECT_EQ(third.answer()->step, 1);
  EXPECT_EQ(gpt_->ListCheckpoints()[0].step, 1);
}

TEST_F(SavesBesideTrainingTest, OneIsWrittenAtATimeAndTheLedgerHoldsItsCopy) {
  const int64_t standing = memory_.bytes();
  const Later first = HeldSave({.id = "first"});
  const int64_t copy = memory_.bytes() - standing;
  EXPECT_EQ(copy, 8) << "two floats";
  Step();
  const Later second = StartSave({.id = "second"});
  AwaitTurn();
  EXPECT_EQ(memory_.bytes(), standing + copy) << "the second has copied nothing yet";
  EXPECT_FALSE(first.done());
  files_.ResumeWrites();
  EXPECT_EQ(first.answer()->step, 0);
  EXPECT_EQ(second.answer()->step, 1);
  EXPECT_EQ(memory_.bytes(), standing) << "given back before the answer";
}

TEST_F(SavesBesideTrainingTest, ThoseWithKeepRotateInTheirOrder) {
  Step();
  const Later first = HeldSave({.keep = 1});
  Step();
  const Later second = StartSave({.keep = 1});
  files_.ResumeWrites();
  ASSERT_TRUE(first.answer().ok());
  ASSERT_TRUE(second.answer().ok());
  EXPECT_THAT(Ids(), ElementsAre("step-2"));
}

TEST_F(SavesBesideTrainingTest, AWriteThatFailsFailsItsSaveOnly) {
  Step();
  const Later save = HeldSave({.id = "mine"});
  Step();
  const absl::StatusOr<Accepted> behind = gpt_->TrainStep(Caller(), Batch(), {});
  files_.SetFreeBytes(10);
  files_.ResumeWrites();
  EXPECT_EQ(save.reason(), "STORAGE_FULL");
  EXPECT_EQ(Settled(*behind->outcome).state, HandleState::kReady);
  EXPECT_EQ(gpt_->statistics().step, 3);
  EXPECT_EQ(Metrics()->checkpoint_failures[CheckpointOperation::kSave].value(), 1);
  EXPECT_THAT(Ids(), IsEmpty());
  files_.SetFreeBytes(-1);
  EXPECT_TRUE(Save("mine").ok()) << "the name is free";
}

TEST_F(SavesBesideTrainingTest, AnExceptionInAWriteFailsItsSaveOnly) {
  files_.ThrowIn("Create");
  EXPECT_EQ(ReasonOf(Save("mine").status()), "HOST_MEMORY");
  Step();
  EXPECT_TRUE(Save("mine").ok());
}

TEST_F(SavesBesideTrainingTest, StepsBehindASaveAndSavesThatFailedLeaveSomethingToSave) {
  Step();
  const Later save = HeldSave({.id = "mine"});
  Step();
  files_.ResumeWrites();
  ASSERT_TRUE(save.answer().ok());
  std::optional<CheckpointInfo> last;
  absl::Notification done;
  gpt_->SaveLast(std::make_shared<CancelToken>(), [&](auto saved) {
    last = *std::move(saved);
    done.Notify();
  });
  done.WaitForNotification();
  ASSERT_TRUE(last.has_value()) << "the second step is in no checkpoint";
  EXPECT_EQ(last->step, 2);
}

TEST_F(SavesBesideTrainingTest, ADrainWaits) {
  const Later save = HeldSave({.id = "mine"});
  absl::Notification drained;
  gpt_->Drain(/*force=*/true, [&] { drained.Notify(); });
  EXPECT_FALSE(drained.HasBeenNotified());
  files_.ResumeWrites();
  drained.WaitForNotification();
  EXPECT_TRUE(save.done()) << "it is told first";
  EXPECT_TRUE(save.answer().ok()) << save.answer().status();
}

TEST_F(SavesBesideTrainingTest, ADeletionWaitsAndTakesTheCheckpointToo) {
  const Later save = HeldSave({.id = "mine"});
  absl::Notification deleted;
  table_->Delete(Caller(), "gpt", /*force=*/true, /*purge=*/true, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    deleted.Notify();
  });
  Eventually([&] { return table_->Get("gpt")->state == PipelineEntry::State::kDeleting; });
  EXPECT_FALSE(save.done());
  EXPECT_FALSE(deleted.HasBeenNotified());
  gpt_.reset();
  files_.ResumeWrites();
  deleted.WaitForNotification();
  EXPECT_TRUE(save.answer().ok()) << save.answer().status();
  EXPECT_FALSE(std::filesystem::exists(temporary_.path() + "/pipelines/gpt/checkpoints"));
}

TEST_F(SavesBesideTrainingTest, TheLastSaveIsGivenUpInTheMiddleOfItsWrite) {
  Step();
  const auto cancel = std::make_shared<CancelToken>();
  files_.HoldWrites();
  absl::Status answer;
  absl::Notification done;
  gpt_->SaveLast(cancel, [&](const auto& saved) {
    answer = saved.status();
    done.Notify();
  });
  files_.AwaitHeldWrite();
  cancel->Cancel();
  files_.ResumeWrites();
  done.WaitForNotification();
  EXPECT_EQ(ReasonOf(answer), "WORK_CANCELLED");
  EXPECT_THAT(Ids(), IsEmpty());
}

// --- With a journal.

// Steps 0 to 3, with a save behind 0 that a deletion behind 2 undoes, and one behind 1 that stays; all of it at once.
struct Started {
  std::vector<absl::StatusOr<Accepted>> steps;
  std::vector<Later> states;
};

absl::StatusOr<Accepted> StartStep(JournalledEngine& engine, int number) {
  return engine.hosted().TrainStep(JournalledEngine::As(absl::StrCat("step ", number)),
                                   engine.Batch(static_cast<float>(number)), /*step=*/{});
}

Started StartAll(JournalledEngine& engine) {
  Started started;
  ServedPipeline& gpt = engine.hosted();
  const auto save = [&](const char* id) {
    started.states.emplace_back(
        [&](StateCallback done) { gpt.SaveCheckpoint(JournalledEngine::As(id), {.id = id}, std::move(done)); });
  };
  started.steps.push_back(StartStep(engine, 0));
  save("gone");
  started.steps.push_back(StartStep(engine, 1));
  save("stays");
  started.steps.push_back(StartStep(engine, 2));
  started.states.emplace_back(
      [&](StateCallback done) { gpt.DeleteCheckpoint(JournalledEngine::As("delete"), "gone", std::move(done)); });
  started.steps.push_back(StartStep(engine, 3));
  return started;
}

// What each call has told; nothing where one has not gone well.
std::optional<std::vector<std::string>> Told(JournalledEngine& engine, const Started& started) {
  std::vector<std::string> told;
  bool all = true;
  for (const absl::StatusOr<Accepted>& step : started.steps) {
    const absl::StatusOr<CallOutcome> outcome = engine.OutcomeOf(step);
    all &= outcome.ok();
    if (outcome.ok()) told.push_back(absl::StrCat(*outcome->run.loss, " ", outcome->run.step, outcome->state_token));
  }
  for (const Later& state : started.states) {
    all &= state.answer().ok();
    if (state.answer().ok()) told.push_back(absl::StrCat(state.answer()->step, " ", state.answer()->state_token));
  }
  return all ? std::optional(told) : std::nullopt;
}

// Checkpoints that somebody has saved: name, step, damage.
std::vector<std::string> NamedOf(const JournalledEngine& engine) {
  std::vector<std::string> ids;
  for (const CheckpointInfo& info : engine.Checkpoints()) {
    if (!info.place.automatic) ids.push_back(absl::StrCat(info.id, " ", info.step, info.damage));
  }
  return ids;
}

TEST(JournalledSaves, ADeathInTheMiddleOfAWriteLosesNeitherTheSaveNorTheStepBehindIt) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const auto step = [&](int number) { return engine.OutcomeOf(StartStep(engine, number)); };
  const auto save = [&](StateCallback done) {
    engine.hosted().SaveCheckpoint(JournalledEngine::As("save"), {.id = "mine"}, std::move(done));
  };
  ASSERT_TRUE(step(0).ok());
  const NamedTensors saved = engine.State();
  engine.files.HoldWrites();
  const Later cut_off(save);
  engine.files.AwaitHeldWrite();
  const absl::StatusOr<CallOutcome> behind = step(1);
  ASSERT_TRUE(behind.ok()) << "it has settled before the save: " << behind.status();
  EXPECT_FALSE(cut_off.done());
  const NamedTensors state = engine.State();
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Same(engine.State(), state)) << "the step behind the save is there, once";
  EXPECT_THAT(NamedOf(engine), ElementsAre("mine 1")) << "saved again at its place";
  const absl::StatusOr<StateAnswer> again = JournalledEngine::Wait(save);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->step, 1);
  EXPECT_EQ(again->checkpoint.id, "mine");
  EXPECT_EQ(step(1)->state_token, behind->state_token);
  const auto restore = [&](StateCallback done) {
    engine.hosted().RestoreCheckpoint(JournalledEngine::As("restore"), "mine", /*force=*/false, std::move(done));
  };
  ASSERT_TRUE(JournalledEngine::Wait(restore).ok());
  EXPECT_TRUE(Same(engine.State(), saved));
}

// A replay from a checkpoint with a later state would make a save without an outcome in the wrong place.
TEST(JournalledSaves, ACheckpointOfTheJournalWaitsForTheOutcomeOfTheSaveBeforeIt) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  engine.files.HoldWrites();
  const Later save([&](StateCallback done) {
    engine.hosted().SaveCheckpoint(JournalledEngine::As("save"), {.id = "mine"}, std::move(done));
  });
  engine.files.AwaitHeldWrite();
  const Later compaction(
      [&](StateCallback done) { engine.hosted().CompactJournal({.caller = "ann"}, std::move(done)); });
  Eventually([&] { return engine.hosted().statistics().train_queue_calls == 0; });
  // From here on the journal is at another call: the outcome of the save has to wait.
  absl::Notification held, release;
  engine.before_commit = [&] {
    if (!held.HasBeenNotified()) held.Notify();
    release.WaitForNotification();
  };
  const absl::StatusOr<Accepted> step = StartStep(engine, 0);
  held.WaitForNotification();
  engine.files.ResumeWrites();
  Eventually([&] { return !NamedOf(engine).empty(); });
  JournalledEngine other;
  ASSERT_TRUE(other.Begin().ok());
  for (int i = 0; i < 10; ++i) {  // as long as a save takes ten times over
    const auto another = [&](StateCallback done) {
      other.hosted().SaveCheckpoint(JournalledEngine::As(absl::StrCat(i)), {.id = absl::StrCat("b", i)},
                                    std::move(done));
    };
    EXPECT_TRUE(JournalledEngine::Wait(another).ok());
    EXPECT_EQ(engine.Checkpoints().size(), 1) << "the save's alone";
  }
  release.Notify();
  EXPECT_TRUE(save.answer().ok()) << save.answer().status();
  EXPECT_TRUE(compaction.answer().ok()) << compaction.answer().status();
  EXPECT_EQ(compaction.answer()->compacted.calls, 1);
  EXPECT_TRUE(engine.OutcomeOf(step).ok());
}

TEST(JournalledSaves, StepsGoOnWhileAnAutomaticCheckpointIsWrittenWhichHoldsNoneOfThem) {
  const AutomaticCheckpoints::Limits limits{.replay_bytes = 0, .replay_nanos = 0, .kept = 2};
  JournalledEngine engine(limits);
  ASSERT_TRUE(engine.Begin().ok());
  const auto step = [&](int number) { return engine.OutcomeOf(StartStep(engine, number)); };
  const auto compact = [&](StateCallback done) { engine.hosted().CompactJournal({.caller = "ann"}, std::move(done)); };
  ASSERT_TRUE(step(0).ok());
  ASSERT_TRUE(JournalledEngine::Wait(compact).ok());  // all is written
  const size_t checkpoints = engine.Checkpoints().size();
  engine.files.HoldWrites();
  ASSERT_TRUE(step(1).ok());
  engine.files.AwaitHeldWrite();
  ASSERT_TRUE(step(2).ok());
  ASSERT_TRUE(step(3).ok());
  EXPECT_EQ(engine.hosted().statistics().journal_calls, 3) << "nothing is cut before it is written";
  EXPECT_EQ(engine.Checkpoints().size(), checkpoints);
  const Later compaction(compact);
  Eventually([&] { return engine.hosted().statistics().train_queue_calls == 0; });
  EXPECT_FALSE(compaction.done()) << "one is written at a time";
  engine.files.ResumeWrites();
  ASSERT_TRUE(compaction.answer().ok()) << compaction.answer().status();
  EXPECT_EQ(engine.hosted().statistics().journal_calls, 0);
  const NamedTensors state = engine.State();
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Same(engine.State(), state));
}

TEST(JournalledSaves, ADeathWhileAnAutomaticCheckpointIsWrittenLosesNoStep) {
  JournalledEngine engine({.replay_bytes = 0, .replay_nanos = 0, .kept = 2});
  ASSERT_TRUE(engine.Begin().ok());
  const auto step = [&](int number) { return engine.OutcomeOf(StartStep(engine, number)); };
  ASSERT_TRUE(step(0).ok());
  ASSERT_TRUE(JournalledEngine::Wait([&](StateCallback done) {
                engine.hosted().CompactJournal({.caller = "ann"}, std::move(done));
              }).ok());
  engine.files.HoldWrites();
  ASSERT_TRUE(step(1).ok());
  engine.files.AwaitHeldWrite();
  ASSERT_TRUE(step(2).ok());
  const NamedTensors state = engine.State();
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Same(engine.State(), state));
  EXPECT_EQ(engine.hosted().statistics().step, 3);
}

// A save is written whenever a step ends: what a replay would read is bounded all the same.
TEST(JournalledSaves, AnAutomaticCheckpointWaitsForASaveThatIsWrittenAndComes) {
  JournalledEngine engine({.replay_bytes = 0, .replay_nanos = 0, .kept = 2});
  ASSERT_TRUE(engine.Begin().ok());
  const auto save = [&](int number) {
    return Later([&](StateCallback done) {
      engine.hosted().SaveCheckpoint(JournalledEngine::As(absl::StrCat("save", number)),
                                     {.id = absl::StrCat("mine", number)}, std::move(done));
    });
  };
  for (int i = 0; i < 4; ++i) {
    engine.files.HoldWrites();
    const absl::StatusOr<Accepted> step = StartStep(engine, i);
    const Later saved = save(i);
    engine.files.ResumeWrites();
    ASSERT_TRUE(engine.OutcomeOf(step).ok());
    ASSERT_TRUE(saved.answer().ok());
  }
  Eventually([&] { return engine.hosted().statistics().journal_calls <= 1; });
}

// Every so many syncs one is taken: all of them, where that takes seconds.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kStride = 7;
#else
constexpr int64_t kStride = 1;
#endif

void PowerFailsAtAnySync(AutomaticCheckpoints::Limits limits) {
  JournalledEngine alone(limits);
  ASSERT_TRUE(alone.Begin().ok());
  const std::optional<std::vector<std::string>> wanted = Told(alone, StartAll(alone));
  ASSERT_TRUE(wanted.has_value());
  const NamedTensors state = alone.State();
  for (int64_t sync = 0; sync < alone.disk.syncs(); sync += kStride) {
    SCOPED_TRACE(sync);
    JournalledEngine engine(limits);
    engine.disk.FailSync(sync);
    std::optional<std::vector<std::string>> told;
    for (int lives = 0; lives < 3 && !told.has_value(); ++lives) {
      if (engine.Begin().ok()) told = Told(engine, StartAll(engine));
      if (!told.has_value()) engine.Crash();
    }
    ASSERT_EQ(told, wanted);
    EXPECT_THAT(NamedOf(engine), ElementsAre("stays 2"));
    EXPECT_TRUE(Same(engine.State(), state));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(JournalledSaves, PowerThatFailsAtAnySyncLosesNothingOfWhatRunsBesideAWrite) { PowerFailsAtAnySync({}); }

TEST(JournalledSaves, TheSameWhereEveryStepIsFollowedByACheckpointAndACut) {
  PowerFailsAtAnySync({.replay_bytes = 0, .replay_nanos = 0, .kept = 2});
}

}  // namespace
}  // namespace penstock::testing
