// A pipeline with a journal, whose power fails at every sync.

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/serve/journalled_engine.h"

namespace penstock {
namespace {

using testing::JournalledEngine;
using testing::Same;
using testing::UnsyncedDisk;

// Every so many syncs one is taken: all of them, where that takes seconds.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kStride = 7;
#else
constexpr int64_t kStride = 1;
#endif

// What a call has told, but for how long it took.
struct Told {
  double loss = 0;
  int64_t step = 0;
  std::string token;
  bool operator==(const Told&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Told& told) {
    return out << "loss " << told.loss << " step " << told.step << " token " << told.token;
  }
};

Told ToldBy(const CallOutcome& outcome) {
  return {outcome.run.loss.value_or(0), outcome.run.step, outcome.state_token};
}

// One piece of work after another, each with request ids of its own, so that it can be asked for again.
class Work {
 public:
  static constexpr int kCount = 14;

  explicit Work(JournalledEngine* engine) : engine_(engine) {}

  absl::StatusOr<Told> Do(int number) {
    ServedPipeline& hosted = engine_->hosted();
    const auto context = [&] { return JournalledEngine::As(absl::StrCat("id ", number)); };
    switch (number) {
      case 0:
      case 5:
      case 11:
        return Outcome(hosted.TrainStep(context(), engine_->Batch(static_cast<float>(number)), {}));
      case 1:
      case 2:
      case 12:
        return Outcome(hosted.ForwardBackward(context(), engine_->Batch(static_cast<float>(number))));
      case 3:
      case 8:
        return Outcome(hosted.OptimizerStep(context(), {}));
      case 4:
        return State([&](auto done) { hosted.SaveCheckpoint(context(), {.id = "a"}, done); });
      case 6:
        return State([&](auto done) { hosted.RestoreCheckpoint(context(), "a", /*force=*/false, done); });
      case 7:
        return Halves(context());
      case 9:
        return State([&](auto done) { hosted.DeleteCheckpoint(context(), "a", done); });
      case 10:
        return Write(context());
      default:
        return Outcome(hosted.OptimizerStep(context(), {.discard = true}));
    }
  }

 private:
  absl::StatusOr<Told> Outcome(const absl::StatusOr<Accepted>& accepted) {
    const absl::StatusOr<CallOutcome> outcome = engine_->OutcomeOf(accepted);
    if (!outcome.ok()) return outcome.status();
    return ToldBy(*outcome);
  }
  static absl::StatusOr<Told> State(const std::function<void(StateCallback)>& call) {
    const absl::StatusOr<StateAnswer> answer = JournalledEngine::Wait(call);
    if (!answer.ok()) return answer.status();
    return Told{0, answer->step, answer->state_token};
  }
  absl::StatusOr<Told> Halves(CallContext context) {
    ServedPipeline& hosted = engine_->hosted();
    ForwardCall forward;
    forward.inputs = engine_->Batch(7).inputs;
    const absl::StatusOr<Accepted> made = hosted.Forward(JournalledEngine::As("id forward"), std::move(forward));
    if (absl::Status durable = JournalledEngine::Durable(made); !durable.ok()) return durable;
    engine_->Await(*made->outputs);
    absl::StatusOr<HandlePin> outputs = engine_->handles().Pin("ann", *made->outputs);
    if (!outputs.ok()) return outputs.status();
    const absl::StatusOr<NamedTensors> tensors = outputs->tensors();
    if (!tensors.ok()) return tensors.status();
    BackwardCall backward{.graph = *made->graph};
    backward.gradients.push_back({(*tensors)[0].name, (*tensors)[0].tensor.div(12)});
    return Outcome(hosted.Backward(std::move(context), std::move(backward)));
  }
  absl::StatusOr<Told> Write(CallContext context) {
    const NamedTensor shape = engine_->hosted().pipeline().StateShapes()[0];
    const NamedTensors written = {{shape.name, at::full(shape.tensor.sizes(), 0.25F)}};
    const HandleName put = *engine_->handles().Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
    engine_->handles().Fulfil(put.id, written);
    return State([&](auto done) { engine_->hosted().WriteParameters(std::move(context), {.handles = {put}}, done); });
  }

  JournalledEngine* const engine_;
};

// Tokens by how many others came before. A call whose record has failed leaves a hole in the numbers of calls, of which
// tokens are made; whether a failing sync is the call's own or that of a checkpoint beside it, is nobody's promise.
std::vector<Told> WithCountedTokens(std::vector<Told> told) {
  std::vector<std::string> seen;
  for (Told& one : told) {
    auto found = std::find(seen.begin(), seen.end(), one.token);
    if (found == seen.end()) found = seen.insert(seen.end(), one.token);
    one.token = absl::StrCat(found - seen.begin());
  }
  return told;
}

struct Story {
  std::vector<Told> told;
  NamedTensors state;
  int64_t syncs = 0;
};

Story Undisturbed(AutomaticCheckpoints::Limits limits = {}) {
  JournalledEngine engine(limits);
  EXPECT_TRUE(engine.Begin().ok());
  Story run;
  for (int i = 0; i < Work::kCount; ++i) {
    const absl::StatusOr<Told> told = Work(&engine).Do(i);
    EXPECT_TRUE(told.ok()) << i << ": " << told.status();
    run.told.push_back(told.value_or(Told()));
  }
  run.state = engine.State();
  run.syncs = engine.disk.syncs();
  return run;
}

// All of the work over lives that end at that sync, and at that one once more.
Story Killed(JournalledEngine& engine, int64_t at_sync) {
  Story run;
  int lives = 0;
  const auto live = [&] {
    if (++lives <= 2) engine.disk.FailSync(at_sync);
    while (!engine.Begin().ok()) {
      EXPECT_LE(lives, 2) << "it does not begin again";
      engine.Crash();
      if (++lives > 4) return;
    }
  };
  live();
  for (int i = 0; i < Work::kCount && lives <= 4;) {
    const absl::StatusOr<Told> told = Work(&engine).Do(i);
    if (told.ok()) {
      run.told.push_back(*told);
      ++i;
      continue;
    }
    EXPECT_LE(lives, 2) << i << ": " << told.status();
    engine.Crash();
    live();
  }
  run.state = engine.State();
  return run;
}

TEST(JournalledPipeline, PowerThatFailsAtAnySyncLosesNothingAndRepeatsNothing) {
  const Story wanted = Undisturbed();
  ASSERT_GT(wanted.syncs, 20);
  for (int64_t sync = 0; sync < wanted.syncs; sync += kStride) {
    SCOPED_TRACE(sync);
    JournalledEngine engine;
    const Story run = Killed(engine, sync);
    EXPECT_EQ(WithCountedTokens(run.told), WithCountedTokens(wanted.told));
    EXPECT_TRUE(Same(run.state, wanted.state));
    if (HasFailure()) return;
  }
}

TEST(JournalledPipeline, TheSameWhereEveryStepIsFollowedByACheckpointAndACut) {
  const AutomaticCheckpoints::Limits limits{.replay_bytes = 0, .replay_nanos = 0, .kept = 2};
  const Story wanted = Undisturbed(limits);
  for (int64_t sync = 0; sync < wanted.syncs; sync += 3 * kStride) {
    SCOPED_TRACE(sync);
    JournalledEngine engine(limits);
    const Story run = Killed(engine, sync);
    EXPECT_EQ(WithCountedTokens(run.told), WithCountedTokens(wanted.told));
    EXPECT_TRUE(Same(run.state, wanted.state));
    if (HasFailure()) return;
  }
}

// Whatever the training thread has still had to do is done.
absl::Status CompactStatus(JournalledEngine& engine) {
  return JournalledEngine::Wait([&](auto done) { engine.hosted().CompactJournal({.caller = "ann"}, done); }).status();
}

TEST(JournalledPipeline, AnAccumulationGoesOnFromTheCheckpointThatHoldsIt) {
  JournalledEngine alone;
  ASSERT_TRUE(alone.Begin().ok());
  std::vector<Told> wanted;
  for (int i = 0; i < 6; ++i) wanted.push_back(Work(&alone).Do(i).value());

  JournalledEngine engine({.replay_bytes = 0, .replay_nanos = 0, .kept = 2});
  ASSERT_TRUE(engine.Begin().ok());
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(Work(&engine).Do(i).value(), wanted[static_cast<size_t>(i)]) << i;
    ASSERT_EQ(CompactStatus(engine), absl::OkStatus());
    EXPECT_EQ(engine.hosted().statistics().journal_calls, 0) << "the journal stays short";
    engine.Crash();
    ASSERT_EQ(engine.Begin(), absl::OkStatus());
    const bool open = i == 1 || i == 2;
    EXPECT_EQ(engine.hosted().statistics().accumulating, open);
    if (!open) continue;
    const absl::StatusOr<Accepted> other = engine.hosted().ForwardBackward({.caller = "bob"}, engine.Batch(1));
    EXPECT_EQ(ReasonOf(other.status()), "ACCUMULATION_HELD");
    EXPECT_EQ(ValuesOf(other.status())["holder"], "ann");
  }
  EXPECT_TRUE(Same(engine.State(), alone.State()));
}

TEST(JournalledPipeline, ACheckpointOfAnAccumulationBringsNobodyItsGradients) {
  JournalledEngine engine({.replay_bytes = 0, .replay_nanos = 0, .kept = 3});
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  const NamedTensors state = engine.State();
  ASSERT_TRUE(Work(&engine).Do(1).ok());
  ASSERT_EQ(CompactStatus(engine), absl::OkStatus());
  std::string newest;
  int64_t sequence = 0;
  for (const CheckpointInfo& info : engine.Checkpoints()) {
    if (info.place.sequence > sequence) newest = info.id;
    sequence = std::max(sequence, info.place.sequence);
  }
  const absl::StatusOr<StateAnswer> restored = JournalledEngine::Wait([&](auto done) {
    engine.hosted().RestoreCheckpoint(JournalledEngine::As("restore"), newest, /*force=*/true, done);
  });
  ASSERT_EQ(restored.status(), absl::OkStatus());
  EXPECT_FALSE(engine.hosted().statistics().accumulating);
  EXPECT_TRUE(Same(engine.State(), state));
}

TEST(JournalledPipeline, WhoseGradientsWereLostIsToldAfterARestartToo) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const auto context = [](const std::string& id, const std::string& session) {
    CallContext context = JournalledEngine::As(id);
    context.session = session;
    return context;
  };
  ASSERT_TRUE(engine.OutcomeOf(engine.hosted().ForwardBackward(context("a", "one"), engine.Batch(1))).ok());
  ASSERT_TRUE(engine.OutcomeOf(engine.hosted().OptimizerStep(context("b", "two"), {.discard = true})).ok());
  ASSERT_EQ(CompactStatus(engine), absl::OkStatus());
  // A caller's own checkpoint does not say who has lost what: no restart goes on from it.
  const auto save = [&](StateCallback done) {
    engine.hosted().SaveCheckpoint(JournalledEngine::As("save"), {.id = "a"}, std::move(done));
  };
  ASSERT_EQ(JournalledEngine::Wait(save).status(), absl::OkStatus());
  engine.Crash();
  ASSERT_EQ(engine.Begin(), absl::OkStatus());
  const auto step = engine.hosted().OptimizerStep(context("c", "one"), {});
  EXPECT_EQ(ReasonOf(step.status()), "ACCUMULATION_LOST");
}

absl::StatusOr<Accepted> AForward(JournalledEngine& engine, const std::string& request_id,
                                  absl::Duration lease = absl::ZeroDuration()) {
  CallContext context = JournalledEngine::As(request_id);
  context.lease = lease;
  ForwardCall forward;
  forward.inputs = engine.Batch(7).inputs;
  return engine.hosted().Forward(std::move(context), std::move(forward));
}

absl::Status GraphOf(JournalledEngine& engine, const Accepted& accepted) {
  const absl::StatusOr<HandlePin> pin = engine.handles().Pin("ann", *accepted.graph);
  return pin.ok() ? pin->graph().status() : pin.status();
}

TEST(JournalledPipeline, WhileAGraphIsOpenTheJournalIsNotCut) {
  JournalledEngine engine({.replay_bytes = 0, .replay_nanos = 0, .kept = 2});
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(1).ok());
  ASSERT_EQ(CompactStatus(engine), absl::OkStatus());
  const absl::StatusOr<Accepted> made = AForward(engine, "forward");
  ASSERT_TRUE(made.ok());
  engine.Await(*made->outputs);
  EXPECT_EQ(ReasonOf(CompactStatus(engine)), "GRAPH_OPEN");
  EXPECT_EQ(ReasonOf(engine.hosted().CheckEmptyJournal()), "GRAPH_OPEN");
  EXPECT_EQ(engine.hosted().statistics().journal_calls, 1);
  ASSERT_TRUE(engine.handles().Release("ann", *made->graph).ok());
  // The call that made it may hold it for a moment longer.
  while (ReasonOf(engine.hosted().CheckEmptyJournal()) == "GRAPH_OPEN") std::this_thread::yield();
  EXPECT_EQ(engine.hosted().CheckEmptyJournal(), absl::OkStatus());
  EXPECT_EQ(CompactStatus(engine), absl::OkStatus());
  EXPECT_EQ(engine.hosted().statistics().journal_calls, 0);
  ASSERT_TRUE(Work(&engine).Do(7).ok()) << "a Forward and its Backward";
  EXPECT_EQ(engine.hosted().CheckEmptyJournal(), absl::OkStatus());
  // Its own checkpoint follows the Backward, so that halves without end keep no long journal.
  while (engine.hosted().statistics().journal_calls > 0) std::this_thread::yield();
}

TEST(JournalledPipeline, WhoIsToldThatItHasGoneFindsItsJournalFree) {
  const testing::TemporaryFolder folder;
  JournalledEngine gpt;
  gpt.KeepJournalIn(folder.path());
  ASSERT_TRUE(gpt.Begin().ok());
  EXPECT_EQ(ReasonOf(gpt.OpenJournal()), "JOURNAL_LOCKED");
  int told = 0;
  gpt.on_gone = [&] {
    ++told;
    const absl::Status opened = gpt.OpenJournal();
    EXPECT_TRUE(opened.ok()) << opened;
  };
  gpt.End();
  EXPECT_EQ(told, 1);
}

TEST(JournalledPipeline, ARetryAfterARestartGetsTheFirstAnswer) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  std::vector<Told> told;
  for (int i = 0; i < Work::kCount; ++i) told.push_back(Work(&engine).Do(i).value());
  const NamedTensors state = engine.State();
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  for (int i : {0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13}) {  // the halves' graph is of a step that is over
    const absl::StatusOr<Told> again = Work(&engine).Do(i);
    ASSERT_TRUE(again.ok()) << i << ": " << again.status();
    EXPECT_EQ(*again, told[i]) << i;
  }
  EXPECT_EQ(ReasonOf(Work(&engine).Do(7).status()), "EPOCH_MISMATCH");
  EXPECT_TRUE(Same(engine.State(), state));
}

TEST(JournalledPipeline, AReplayLeavesNoHandles) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  for (int i : {7, 8, 10}) ASSERT_TRUE(Work(&engine).Do(i).ok()) << i;  // a Forward, its Backward, a step, a write
  for (int i = 0; i < 20; ++i) {
    const Accepted made = AForward(engine, absl::StrCat("forward ", i)).value();
    engine.Await(*made.outputs);
    for (const HandleName& name : made.handles()) ASSERT_TRUE(engine.handles().Release("ann", name).ok());
  }
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_EQ(engine.handles().TotalCounts().live(), 0);
  EXPECT_EQ(engine.handles().CountsOf("gpt").open_graphs, 0);
  EXPECT_TRUE(AForward(engine, "new").ok());
}

TEST(JournalledPipeline, AForwardIsAskedForAgainWithinItsLease) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const auto forward = [&](const char* id, absl::Duration lease) { return AForward(engine, id, lease).value(); };
  engine.Await(*forward("short", absl::ZeroDuration()).outputs);
  engine.Await(*forward("long", absl::Minutes(30)).outputs);
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_EQ(ReasonOf(engine.hosted().CheckEmptyJournal()), "GRAPH_OPEN");
  engine.Pass(absl::Minutes(2));
  EXPECT_EQ(ReasonOf(GraphOf(engine, forward("short", absl::ZeroDuration()))), "EPOCH_MISMATCH");
  const Accepted again = forward("long", absl::Minutes(30));
  EXPECT_EQ(GraphOf(engine, again), absl::OkStatus());
  ASSERT_TRUE(engine.handles().Release("ann", *again.graph).ok());
  EXPECT_EQ(engine.hosted().CheckEmptyJournal(), absl::OkStatus());
}

TEST(JournalledPipeline, TheGraphOfAForwardThatIsAskedForAgainAfterItsBackwardIsUsedUp) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(7).ok());
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_EQ(ReasonOf(GraphOf(engine, AForward(engine, "id forward").value())), "GRAPH_CONSUMED");
  EXPECT_TRUE(Work(&engine).Do(7).ok()) << "both again";
}

// A call of the journal restores it, and while the journal is held no automatic checkpoint comes behind that call.
TEST(JournalledPipeline, ACheckpointThatAReplayRestoresIsNotDeleted) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const auto state_call = [](auto call) { return JournalledEngine::Wait(call).status(); };
  const auto remove = [&](const std::string& request_id) {
    return state_call(
        [&](auto done) { engine.hosted().DeleteCheckpoint(JournalledEngine::As(request_id), "a", std::move(done)); });
  };
  const auto replace = [&](const std::string& request_id) {
    return state_call([&](auto done) {
      engine.hosted().SaveCheckpoint(JournalledEngine::As(request_id), {.id = "a", .replace = true}, std::move(done));
    });
  };
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  ASSERT_TRUE(replace("save").ok());
  const NamedTensors saved = engine.State();
  ASSERT_TRUE(Work(&engine).Do(5).ok());
  engine.hosted().HoldJournal();
  ASSERT_TRUE(state_call([&](auto done) {
                engine.hosted().RestoreCheckpoint(JournalledEngine::As("restore"), "a", /*force=*/true,
                                                  std::move(done));
              }).ok());
  EXPECT_EQ(ReasonOf(remove("1")), "CHECKPOINT_IN_USE");
  EXPECT_EQ(ReasonOf(replace("2")), "CHECKPOINT_IN_USE");
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Same(engine.State(), saved));
  engine.hosted().HoldJournal();
  EXPECT_EQ(ReasonOf(remove("3")), "CHECKPOINT_IN_USE") << "the replay has restored it";
  engine.hosted().ReleaseJournal();
  EXPECT_TRUE(remove("4").ok()) << "an automatic checkpoint is saved first";
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Same(engine.State(), saved));
}

TEST(JournalledPipeline, ACallIsAcknowledgedWhenItIsDurableAndNotBefore) {
  absl::Notification reached;
  absl::Notification go_on;
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  engine.before_commit = [&] {
    if (!reached.HasBeenNotified()) reached.Notify();
    go_on.WaitForNotification();
  };
  const absl::StatusOr<Accepted> step = engine.hosted().TrainStep(JournalledEngine::As("a"), engine.Batch(0), {});
  ASSERT_TRUE(step.ok());
  absl::Notification acknowledged;
  step->WhenDurable([&](const absl::Status& durable) {
    EXPECT_TRUE(durable.ok());
    acknowledged.Notify();
  });
  reached.WaitForNotification();
  EXPECT_FALSE(acknowledged.HasBeenNotified());
  go_on.Notify();
  acknowledged.WaitForNotification();
  engine.Await(*step->outcome);
}

TEST(JournalledPipeline, ARequestIdOfALifeBeforeWithAnotherPayloadIsRefused) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  CallContext context = JournalledEngine::As("id 0");
  context.recorded_digest = "another";
  context.payload_digest = "another";
  EXPECT_EQ(ReasonOf(engine.hosted().TrainStep(context, engine.Batch(0), {}).status()), "REQUEST_ID_REUSED");
}

TEST(JournalledPipeline, ACopiedCheckpointOutlivesThePipelineThatItCameFrom) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  const std::shared_ptr<CheckpointFolder> source = *engine.checkpoints().FolderOf("source");
  ASSERT_TRUE(source->Save("saved", {.spec_digest = "d"}, engine.State()).ok());
  const absl::StatusOr<StateAnswer> copied = JournalledEngine::Wait([&](auto done) {
    engine.hosted().CopyCheckpoint(JournalledEngine::As("copy"), {.source = source, .source_id = "saved"}, done);
  });
  ASSERT_TRUE(copied.ok()) << copied.status();
  ASSERT_TRUE(Work(&engine).Do(5).ok());
  const NamedTensors state = engine.State();
  engine.Crash();
  const absl::Status begun = engine.Begin();
  ASSERT_TRUE(begun.ok()) << begun;
  EXPECT_TRUE(Same(engine.State(), state));
  EXPECT_TRUE(engine.checkpoints().Find("gpt", "saved").ok());
}

TEST(JournalledPipeline, ASyncThatIsLeftOutIsSeen) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  engine.disk.Ignore(UnsyncedDisk::SyncOf::kLog);
  ASSERT_TRUE(Work(&engine).Do(11).ok());
  const NamedTensors told = engine.State();
  engine.Crash();
  const absl::Status begun = engine.Begin();
  EXPECT_TRUE(!begun.ok() || !Same(engine.State(), told)) << "nothing of these tests would see a missing sync";
}

TEST(JournalledPipeline, AFullDiskRefusesTheCallAndNothingIsLost) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  const NamedTensors state = engine.State();
  engine.disk.SetFreeBytes(1 << 10);
  EXPECT_EQ(ReasonOf(Work(&engine).Do(5).status()), "STORAGE_FULL");
  EXPECT_TRUE(Same(engine.State(), state)) << "a call that was refused has had an effect";
  engine.disk.SetFreeBytes(-1);
  EXPECT_TRUE(Work(&engine).Do(5).ok()) << "the same request id is a first attempt";
}

TEST(JournalledPipeline, AFailedSyncStopsWhatChangesTheStateUntilARestart) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  engine.disk.FailSync(0);
  EXPECT_EQ(ReasonOf(Work(&engine).Do(5).status()), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(engine.hosted().statistics().journal_health), "JOURNAL_STOPPED");
  EXPECT_EQ(ReasonOf(Work(&engine).Do(11).status()), "JOURNAL_STOPPED");
  InferCall ask;
  ask.inputs = engine.Batch(1).inputs;
  const absl::StatusOr<Accepted> infer = engine.hosted().Infer({.caller = "ann"}, std::move(ask));
  ASSERT_TRUE(infer.ok());
  engine.Await(*infer->outputs);
  EXPECT_TRUE(engine.handles().Pin("ann", *infer->outputs)->values().ok());
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Work(&engine).Do(5).ok());
}

TEST(JournalledPipeline, AnOutcomeThatTheDiskHasNoRoomForStopsWhatChangesTheStateUntilARestart) {
  JournalledEngine alone;
  ASSERT_TRUE(alone.Begin().ok());
  for (int i : {0, 5}) ASSERT_TRUE(Work(&alone).Do(i).ok());

  JournalledEngine engine;
  engine.before_action = [&] { engine.disk.SetFreeBytes(0); };  // the call itself is durable by then
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_FALSE(Work(&engine).Do(0).ok());
  engine.before_action = nullptr;
  engine.disk.SetFreeBytes(-1);
  EXPECT_EQ(ReasonOf(Work(&engine).Do(0).status()), "STORAGE_FULL") << "a retry gets another answer than the first";
  EXPECT_EQ(ReasonOf(Work(&engine).Do(5).status()), "JOURNAL_STOPPED");
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  for (int i : {0, 5}) EXPECT_TRUE(Work(&engine).Do(i).ok());
  EXPECT_TRUE(Same(engine.State(), alone.State()));
}

// A step that runs until it may go on, and one behind it that is durable.
struct Queued {
  explicit Queued(JournalledEngine& engine) {
    engine.before_action = [this] {
      if (!running.HasBeenNotified()) running.Notify();
      go_on.WaitForNotification();
    };
    EXPECT_TRUE(engine.Begin().ok());
    const auto start = [&](const char* id, float value) {
      return engine.hosted().TrainStep(JournalledEngine::As(id), engine.Batch(value), {}).value();
    };
    first = start("id 0", 0);
    second = start("id 5", 5);
    EXPECT_TRUE(JournalledEngine::Durable(second).ok());
    running.WaitForNotification();
  }
  absl::Notification running, go_on;
  Accepted first, second;
};

// What a restart would make is not told to be cancelled.
TEST(JournalledPipeline, ACancelIsToldWhenItIsDurable) {
  for (const bool fails : {false, true}) {
    JournalledEngine engine;
    Queued queued(engine);
    if (fails) engine.disk.FailSync(0);
    EXPECT_EQ(*engine.handles().RequestCancel("ann", *queued.second.outcome), CancelEffect::kCancelling);
    EXPECT_EQ(ReasonOf(engine.OutcomeOf(queued.second).status()), fails ? "JOURNAL_STOPPED" : "WORK_CANCELLED");
    queued.go_on.Notify();
    EXPECT_EQ(engine.OutcomeOf(queued.first).ok(), !fails);
    engine.Crash();
    engine.before_action = nullptr;
    ASSERT_TRUE(engine.Begin().ok());
    EXPECT_EQ(engine.hosted().statistics().step, fails ? 2 : 1);
  }
}

TEST(JournalledPipeline, ACancelThatTheDiskHasNoRoomForStopsWhatChangesTheStateUntilARestart) {
  JournalledEngine engine;
  Queued queued(engine);
  engine.disk.SetFreeBytes(0);
  ASSERT_TRUE(engine.handles().RequestCancel("ann", *queued.second.outcome).ok());
  EXPECT_NE(ReasonOf(engine.OutcomeOf(queued.second).status()), "WORK_CANCELLED");
  engine.disk.SetFreeBytes(-1);
  queued.go_on.Notify();
  EXPECT_TRUE(engine.OutcomeOf(queued.first).ok());
  EXPECT_EQ(ReasonOf(Work(&engine).Do(11).status()), "JOURNAL_STOPPED") << "it would come after the one that stays";
  engine.Crash();
  engine.before_action = nullptr;
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_EQ(engine.hosted().statistics().step, 2);
}

// In the next life calls get the numbers of the reads that it stands behind, and in the one after that it can be read.
TEST(JournalledPipeline, ACheckpointThatCanBeReadAnotherTimeIsNotPassedOver) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  ASSERT_TRUE(Work(&engine).Do(0).ok());
  engine.State();
  absl::Notification saved;
  engine.hosted().SaveLast(std::make_shared<CancelToken>(), [&](const auto& last) {
    EXPECT_TRUE(last.ok());
    saved.Notify();
  });
  saved.WaitForNotification();
  engine.End();
  engine.files.FailReadsOf("step-1/state");
  EXPECT_FALSE(engine.Begin().ok());
  engine.End();
  engine.files.FailReadsOf("");
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Work(&engine).Do(5).ok());
}

TEST(JournalledPipeline, ACallThatIsForgottenWhileItIsOpenIsNotMadeTwice) {
  JournalledEngine engine;
  engine.request_log_entries = 1;
  Queued queued(engine);
  engine.Pass(absl::Minutes(11));
  InferCall ask;
  ask.inputs = engine.Batch(1).inputs;
  std::vector<Accepted> others;
  for (const char* id : {"infer 1", "infer 2"}) {
    others.push_back(engine.hosted().Infer(JournalledEngine::As(id), ask).value());
  }
  const absl::StatusOr<Accepted> again = engine.hosted().TrainStep(JournalledEngine::As("id 5"), engine.Batch(5), {});
  EXPECT_EQ(ReasonOf(again.status()), "CALL_OPEN");
  queued.go_on.Notify();
  const absl::StatusOr<CallOutcome> outcome = engine.OutcomeOf(queued.second);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(Work(&engine).Do(5).value(), ToldBy(*outcome));
  EXPECT_EQ(engine.hosted().statistics().step, 2);
  for (const Accepted& other : others) engine.PassUntilSettled(*other.outputs);  // they wait for gaps between steps
}

TEST(JournalledPipeline, ACallThatExpectsAnotherStateIsRefusedInTheNextLifeToo) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  CallContext context = JournalledEngine::As("late");
  context.expected_state = engine.hosted().statistics().state_token;
  engine.End();
  Queued queued(engine);
  const absl::StatusOr<Accepted> late = engine.hosted().TrainStep(context, engine.Batch(1), {});
  ASSERT_TRUE(JournalledEngine::Durable(late).ok());
  engine.disk.Crash();
  queued.go_on.Notify();
  engine.Crash();
  engine.before_action = nullptr;
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_EQ(engine.hosted().statistics().step, 2);
  EXPECT_EQ(ReasonOf(engine.OutcomeOf(engine.hosted().TrainStep(context, engine.Batch(1), {})).status()),
            "STATE_MISMATCH");
}

// It waits behind a call that has restored the checkpoint, and in the next life no other checkpoint lies between yet.
TEST(JournalledPipeline, ASaveThatIsMadeAgainDoesNotReplaceACheckpointThatAReplayRestores) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const auto save = [&](const char* request_id, StateCallback done) {
    engine.hosted().SaveCheckpoint(JournalledEngine::As(request_id), {.id = "a", .replace = true}, std::move(done));
  };
  ASSERT_TRUE(Work(&engine).Do(11).ok());
  ASSERT_TRUE(JournalledEngine::Wait([&](auto done) { save("first", done); }).ok());
  engine.hosted().HoldJournal();
  ASSERT_TRUE(Work(&engine).Do(6).ok());  // restores it
  absl::Notification running, go_on;
  engine.before_action = [&] {
    if (!running.HasBeenNotified()) running.Notify();
    go_on.WaitForNotification();
  };
  ASSERT_TRUE(engine.hosted().TrainStep(JournalledEngine::As("id 0"), engine.Batch(0), {}).ok());
  running.WaitForNotification();
  // No replay begins from a checkpoint that is saved beside gradients.
  ASSERT_TRUE(engine.hosted().ForwardBackward(JournalledEngine::As("id 1"), engine.Batch(1)).ok());
  save("second", [](const absl::StatusOr<StateAnswer>&) {});
  while (engine.hosted().statistics().journal_calls < 6) std::this_thread::yield();
  engine.disk.Crash();
  go_on.Notify();
  engine.Crash();
  engine.before_action = nullptr;
  ASSERT_TRUE(engine.Begin().ok());
  const NamedTensors state = engine.State();
  engine.Crash();
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Same(engine.State(), state));
  EXPECT_TRUE(JournalledEngine::Wait([&](auto done) { save("second", done); }).ok()) << "its caller asks again";
}

TEST(JournalledPipeline, ASaveAfterAFailedSyncDoesNotMakeACallCountTwice) {
  JournalledEngine alone;
  ASSERT_TRUE(alone.Begin().ok());
  for (int i : {0, 5}) ASSERT_TRUE(Work(&alone).Do(i).ok());
  for (int64_t sync = 0; sync < 3; ++sync) {  // of the call, or of its outcome
    SCOPED_TRACE(sync);
    JournalledEngine engine;
    ASSERT_TRUE(engine.Begin().ok());
    ASSERT_TRUE(Work(&engine).Do(0).ok());
    engine.disk.FailSync(sync);
    Work(&engine).Do(5).status().IgnoreError();
    engine.disk.FailSync(-1);
    absl::Notification saved;
    engine.hosted().SaveLast(std::make_shared<CancelToken>(), [&](const auto&) { saved.Notify(); });
    saved.WaitForNotification();
    engine.Crash();  // the outcome is lost, and the checkpoint is not
    ASSERT_TRUE(engine.Begin().ok());
    EXPECT_TRUE(Work(&engine).Do(5).ok());
    EXPECT_TRUE(Same(engine.State(), alone.State()));
  }
}

TEST(JournalledPipeline, WhatIsMadeAgainIsNotRefusedWhereTheMemoryIsLessThanItWas) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const int64_t standing = engine.reserved_bytes();
  for (int i : {0, 4, 5, 6, 10}) ASSERT_TRUE(Work(&engine).Do(i).ok()) << i;  // with a save, a restore and a write
  const NamedTensors state = engine.State();
  engine.memory_bytes = standing;
  engine.Crash();
  ASSERT_EQ(engine.Begin(), absl::OkStatus());
  EXPECT_EQ(engine.reserved_bytes(), standing) << "what the replay took is given back";
  const auto restore = [&](StateCallback done) {
    engine.hosted().RestoreCheckpoint(JournalledEngine::As("new"), "a", /*force=*/false, std::move(done));
  };
  EXPECT_EQ(ReasonOf(JournalledEngine::Wait(restore).status()), "HOST_MEMORY");
  engine.End();
  engine.memory_bytes = int64_t{1} << 40;
  ASSERT_TRUE(engine.Begin().ok());
  EXPECT_TRUE(Same(engine.State(), state));
}

TEST(JournalledPipeline, ASaveWaitsUntilTheOutcomesOfWhatItHoldsAreDurable) {
  JournalledEngine engine;
  absl::Notification go_on, held, release;
  engine.before_action = [&] { go_on.WaitForNotification(); };
  ASSERT_TRUE(engine.Begin().ok());
  const auto eventually = [](const auto& holds) {
    while (!holds()) std::this_thread::yield();
  };
  const absl::StatusOr<Accepted> step = engine.hosted().TrainStep(JournalledEngine::As("step"), engine.Batch(0), {});
  absl::Notification saved;
  engine.hosted().SaveCheckpoint(JournalledEngine::As("save"), {.id = "a"}, [&](const auto& answer) {
    EXPECT_TRUE(answer.ok()) << answer.status();
    saved.Notify();
  });
  eventually([&] { return engine.hosted().statistics().journal_calls == 2; });
  // From here on the journal is at a third call: the outcome of the step has to wait.
  engine.before_commit = [&] {
    if (!held.HasBeenNotified()) held.Notify();
    release.WaitForNotification();
  };
  const absl::StatusOr<Accepted> third =
      engine.hosted().ForwardBackward(JournalledEngine::As("third"), engine.Batch(1));
  ASSERT_TRUE(third.ok());
  held.WaitForNotification();
  go_on.Notify();
  eventually([&] { return engine.hosted().pipeline().step() == 1; });
  JournalledEngine other;
  ASSERT_TRUE(other.Begin().ok());
  for (int i = 0; i < 10; ++i) {  // as long as a save takes ten times over
    const auto save = [&](StateCallback done) {
      other.hosted().SaveCheckpoint(JournalledEngine::As(absl::StrCat(i)), {.id = absl::StrCat("b", i)},
                                    std::move(done));
    };
    EXPECT_TRUE(JournalledEngine::Wait(save).ok());
    EXPECT_FALSE(saved.HasBeenNotified());
    for (const CheckpointInfo& info : engine.Checkpoints())
      EXPECT_NE(info.id, "a") << "it holds a call without outcome";
  }
  release.Notify();
  saved.WaitForNotification();
  EXPECT_TRUE(engine.OutcomeOf(step).ok());
  EXPECT_TRUE(engine.OutcomeOf(third).ok());
}

TEST(JournalledPipeline, ACallThatWaitsForItsInputsIsNotAcknowledgedAndIsForgottenWhenItIsCancelled) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const HandleName late = *engine.handles().Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  ContributionCall call = engine.Batch(1);
  call.inputs[0].source = HandleTensor{.handle = late};
  const absl::StatusOr<Accepted> accepted = engine.hosted().TrainStep(JournalledEngine::As("late"), call, {});
  ASSERT_TRUE(accepted.ok());
  absl::Notification known;
  absl::Status durable;
  accepted->WhenDurable([&](const absl::Status& status) {
    durable = status;
    known.Notify();
  });
  EXPECT_FALSE(known.HasBeenNotified());
  ASSERT_TRUE(engine.handles().RequestCancel("ann", *accepted->outcome).ok());
  known.WaitForNotification();
  EXPECT_EQ(ReasonOf(durable), "WORK_CANCELLED");
  EXPECT_TRUE(engine.OutcomeOf(engine.hosted().TrainStep(JournalledEngine::As("late"), engine.Batch(1), {})).ok())
      << "it was never accepted";
}

TEST(JournalledPipeline, ACallThatWaitsForItsInputsKeepsItsPlaceBeforeThoseBehindIt) {
  JournalledEngine engine;
  ASSERT_TRUE(engine.Begin().ok());
  const HandleName late = *engine.handles().Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  ContributionCall call = engine.Batch(1);
  const NamedTensors input = {{"input", std::get<at::Tensor>(call.inputs[0].source)}};
  call.inputs[0].source = HandleTensor{.handle = late};
  const absl::StatusOr<Accepted> first = engine.hosted().TrainStep(JournalledEngine::As("first"), call, {});
  const absl::StatusOr<Accepted> second =
      engine.hosted().TrainStep(JournalledEngine::As("second"), engine.Batch(2), {});
  engine.handles().Fulfil(late.id, input);
  EXPECT_TRUE(JournalledEngine::Durable(first).ok()) << JournalledEngine::Durable(first);
  EXPECT_TRUE(engine.OutcomeOf(first).ok());
  EXPECT_TRUE(engine.OutcomeOf(second).ok());
}

TEST(JournalledPipeline, WhatADrainLeavesRunsInTheNextLife) {
  JournalledEngine alone;
  ASSERT_TRUE(alone.Begin().ok());
  for (int i : {0, 5}) ASSERT_TRUE(Work(&alone).Do(i).ok());

  JournalledEngine engine;
  absl::Notification running, go_on;
  engine.before_action = [&] {
    if (!running.HasBeenNotified()) running.Notify();
    go_on.WaitForNotification();
  };
  ASSERT_TRUE(engine.Begin().ok());
  const auto start = [&](int i) {
    return engine.hosted().TrainStep(JournalledEngine::As(absl::StrCat("id ", i)), engine.Batch(static_cast<float>(i)),
                                     {});
  };
  const absl::StatusOr<Accepted> first = start(0);
  const absl::StatusOr<Accepted> second = start(5);
  ASSERT_TRUE(JournalledEngine::Durable(second).ok());
  Thread watch("watch", [&] {  // the drain waits for what runs
    running.WaitForNotification();
    engine.Await(*second->outcome);
    go_on.Notify();
  });
  absl::Notification saved;
  running.WaitForNotification();
  engine.hosted().SaveLast(std::make_shared<CancelToken>(), [&](const auto&) { saved.Notify(); });
  saved.WaitForNotification();
  watch.Join();
  EXPECT_TRUE(engine.OutcomeOf(first).ok());
  EXPECT_EQ(ReasonOf(engine.OutcomeOf(second).status()), "DRAINING");
  engine.End();
  engine.before_action = nullptr;
  for (int life = 0; life < 2; ++life) {  // the second time it is no longer open, and still not in the checkpoint
    ASSERT_TRUE(engine.Begin().ok());
    EXPECT_TRUE(Same(engine.State(), alone.State())) << life;
    EXPECT_TRUE(Work(&engine).Do(5).ok());
    engine.Crash();
  }
}

TEST(JournalledPipeline, ACheckpointThatAReplayBeginsFromIsNotDeletedAndOldOnesGo) {
  JournalledEngine engine({.replay_bytes = 0, .replay_nanos = 0, .kept = 2});
  ASSERT_TRUE(engine.Begin().ok());
  for (int i : {0, 5, 11}) ASSERT_TRUE(Work(&engine).Do(i).ok());
  ASSERT_EQ(CompactStatus(engine), absl::OkStatus());
  const std::vector<CheckpointInfo> kept = engine.Checkpoints();
  ASSERT_EQ(kept.size(), 2);
  const absl::StatusOr<StateAnswer> removed = JournalledEngine::Wait(
      [&](auto done) { engine.hosted().DeleteCheckpoint(JournalledEngine::As("remove"), kept[1].id, done); });
  EXPECT_EQ(ReasonOf(removed.status()), "CHECKPOINT_IN_USE");
}

}  // namespace
}  // namespace penstock
