#include "engine/serve/served_pipeline.h"

#include <gmock/gmock.h>

#include <atomic>
#include <limits>
#include <new>
#include <stdexcept>

#include "engine/base/thread.h"
#include "engine/serve/parameter_snapshots.h"
#include "tests/support/failing_new.h"
#include "tests/unit/serve/hosting_fixture.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::Not;
using ServedPipelineTest = HostingFixture;

TEST_F(ServedPipelineTest, CallsRunInTheOrderOfAcceptanceAndSayTheirPlace) {
  control_->Hold();
  std::vector<Accepted> accepted;
  for (int i = 0; i < 4; ++i) {
    accepted.push_back(*gpt_->ForwardBackward(Caller(), Batch()));
    EXPECT_EQ(accepted.back().sequence, i + 1);
  }
  accepted.push_back(*gpt_->OptimizerStep(Caller(), {}));
  control_->Resume();
  const HandleInfo last = Settled(*accepted.back().outcome);
  EXPECT_EQ(last.outcome->run.step, 1);
  EXPECT_EQ(last.outcome->sequence, 5);
  EXPECT_EQ(Settled(*accepted[3].outcome).outcome->run.loss, 4);
  EXPECT_THAT(control_->runs(),
              ElementsAre("ForwardBackward", "ForwardBackward", "ForwardBackward", "ForwardBackward", "OptimizerStep"));
}

TEST_F(ServedPipelineTest, ARetryGetsTheFirstAnswerAndTrainsOnce) {
  const Accepted first = *gpt_->TrainStep(Caller("ann", "id-1"), Batch(), {});
  Settled(*first.outcome);
  const Accepted again = *gpt_->TrainStep(Caller("ann", "id-1"), Batch(), {});
  EXPECT_EQ(again.outcome, first.outcome);
  EXPECT_EQ(again.sequence, first.sequence);
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller("ann", "id-1", "other"), Batch(), {}).status()), "REQUEST_ID_REUSED");
  EXPECT_NE(gpt_->TrainStep(Caller("bob", "id-1"), Batch(), {})->outcome, first.outcome) << "a scope of his own";
  EXPECT_EQ(handles_->TotalCounts().created, 2);
}

TEST_F(ServedPipelineTest, TheRateAndTheClipOfACallReachItsStepAndNoOther) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {.learning_rate = 0.5, .clip_norm = 0})->outcome);
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  Settled(*gpt_->OptimizerStep(Caller(), {.request = {.clip_norm = 2}})->outcome);
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  const std::vector<StepRequest> steps = control_->steps();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].learning_rate, 0.5);
  EXPECT_EQ(steps[0].clip_norm, 0);
  EXPECT_EQ(steps[1].learning_rate, std::nullopt);
  EXPECT_EQ(steps[1].clip_norm, 2);
  EXPECT_EQ(steps[2].learning_rate, std::nullopt);
  EXPECT_EQ(steps[2].clip_norm, std::nullopt);
}

TEST_F(ServedPipelineTest, OutOfPlaceCallsAreRefusedAtOnceAsForeseen) {
  EXPECT_EQ(ReasonOf(gpt_->OptimizerStep(Caller(), {}).status()), "ACCUMULATION_EMPTY");
  control_->Hold();
  ASSERT_TRUE(gpt_->ForwardBackward(Caller(), Batch()).ok());
  EXPECT_EQ(ReasonOf(gpt_->ForwardBackward(Caller("bob"), Batch()).status()), "ACCUMULATION_HELD");
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller(), Batch(), {}).status()), "ACCUMULATION_OPEN");
  EXPECT_EQ(ReasonOf(gpt_->OptimizerStep(Caller("bob"), {}).status()), "ACCUMULATION_HELD");
  ASSERT_TRUE(gpt_->OptimizerStep(Caller(), {}).ok());
  EXPECT_TRUE(gpt_->ForwardBackward(Caller("bob"), Batch()).ok()) << "after the step that is queued";
  EXPECT_EQ(ValuesOf(gpt_->TrainStep(Caller(), Batch(), {}).status())["pipeline"], "gpt");
}

// A contribution of a program of ann, whose accumulation has this lease.
ContributionCall Leased(ContributionCall batch, absl::Duration lease) {
  batch.accumulation_lease = lease;
  return batch;
}

TEST_F(ServedPipelineTest, AnAccumulationEndsWithItsLease) {
  CallContext session = Caller();
  session.session = "one";
  Settled(*gpt_->ForwardBackward(session, Leased(Batch(), absl::Seconds(10)))->outcome);
  Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOf(gpt_->ForwardBackward(Caller("bob"), Batch()).status()), "ACCUMULATION_HELD");
  EXPECT_TRUE(gpt_->statistics().accumulating);
  Advance(absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOf(gpt_->OptimizerStep(session, {}).status()), "ACCUMULATION_LOST");
  const Accepted bobs = *gpt_->ForwardBackward(Caller("bob"), Batch(3));
  Settled(*bobs.outcome, "bob");
  const Accepted step = *gpt_->OptimizerStep(Caller("bob"), {});
  EXPECT_EQ(Settled(*step.outcome, "bob").outcome->run.step, 1);
  EXPECT_EQ(ReasonOf(gpt_->ForwardBackward(session, Batch()).status()), "ACCUMULATION_LOST") << "it must know";
  Settled(*gpt_->OptimizerStep(session, {.discard = true})->outcome);
  EXPECT_TRUE(gpt_->ForwardBackward(session, Batch()).ok());
}

TEST_F(ServedPipelineTest, ALeaseThatIsOverInADrainEndsTheAccumulationWhenTheDrainIsAborted) {
  Settled(*gpt_->ForwardBackward(Caller(), Leased(Batch(), absl::Seconds(10)))->outcome);
  gpt_->StopAccepting();
  Advance(absl::Seconds(11));
  EXPECT_TRUE(gpt_->statistics().accumulating);
  gpt_->Resume();
  Advance(absl::Nanoseconds(1));
  EXPECT_TRUE(gpt_->ForwardBackward(Caller("bob"), Batch()).ok());
}

TEST_F(ServedPipelineTest, AFurtherContributionRenewsTheLeaseAndACallInTimeWins) {
  Settled(*gpt_->ForwardBackward(Caller(), Leased(Batch(), absl::Seconds(10)))->outcome);
  Advance(absl::Seconds(9));
  Settled(*gpt_->ForwardBackward(Caller(), Leased(Batch(), absl::Seconds(10)))->outcome);
  Advance(absl::Seconds(9));
  control_->Hold();
  const Accepted in_time = *gpt_->OptimizerStep(Caller(), {});
  Advance(absl::Seconds(60));
  control_->Resume();
  EXPECT_EQ(Settled(*in_time.outcome).outcome->run.step, 1);
  EXPECT_TRUE(gpt_->ForwardBackward(Caller(), Batch()).ok()) << "nothing was lost";
}

// Clients that contribute often, with long leases, leave nothing behind.
TEST_F(ServedPipelineTest, AnAccumulationHasOneTimerWhateverItsContributions) {
  const auto contribute = [&] {
    const Accepted accepted = *gpt_->ForwardBackward(Caller(), Leased(Batch(), absl::Hours(1)));
    Settled(*accepted.outcome);
    ASSERT_TRUE(handles_->Release("ann", *accepted.outcome).ok());
  };
  const int64_t before = timers_.size();
  contribute();
  EXPECT_EQ(timers_.size(), before + 1);
  for (int i = 0; i < 10; ++i) contribute();
  EXPECT_EQ(timers_.size(), before + 1);
  const Accepted step = *gpt_->OptimizerStep(Caller(), {});
  Settled(*step.outcome);
  ASSERT_TRUE(handles_->Release("ann", *step.outcome).ok());
  EXPECT_EQ(timers_.size(), before);
}

TEST_F(ServedPipelineTest, ALeaseEndsTheAccumulationThoughACallOfItsHolderThatCameInTimeIsGivenUp) {
  Settled(*gpt_->ForwardBackward(Caller(), Leased(Batch(), absl::Seconds(10)))->outcome);
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  ContributionCall waits = Batch();
  waits.inputs[0].source = HandleTensor{pending, ""};
  const Accepted given_up = *gpt_->ForwardBackward(Caller(), std::move(waits));
  Advance(absl::Seconds(11));
  EXPECT_TRUE(gpt_->statistics().accumulating) << "the call may still go on with it";
  EXPECT_EQ(*handles_->RequestCancel("ann", *given_up.outcome), CancelEffect::kCancelled);
  Advance(absl::ZeroDuration());
  ASSERT_TRUE(Save("s").ok());  // behind the end of the lease, in the order of calls
  EXPECT_FALSE(gpt_->statistics().accumulating);
}

TEST_F(ServedPipelineTest, AContributionThatCameInTimeRenewsTheLeaseWhenItsInputIsThere) {
  Settled(*gpt_->ForwardBackward(Caller(), Leased(Batch(), absl::Seconds(10)))->outcome);
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  ContributionCall waits = Leased(Batch(), absl::Seconds(10));
  waits.inputs[0].source = HandleTensor{pending, ""};
  const Accepted late = *gpt_->ForwardBackward(Caller(), std::move(waits));
  Advance(absl::Seconds(11));
  handles_->Fulfil(pending.id, NamedTensors{{"x", at::full({2}, 1.0f)}});
  EXPECT_EQ(Settled(*late.outcome).state, HandleState::kReady);
  ASSERT_TRUE(Save("s").ok());  // behind whatever the old lease's end would do, in the order of calls
  EXPECT_TRUE(gpt_->statistics().accumulating);
}

TEST_F(ServedPipelineTest, ALeaseThatEndsBehindAFailedStepEndsTheAccumulationThen) {
  Settled(*gpt_->ForwardBackward(Caller(), Leased(Batch(), absl::Seconds(10)))->outcome);
  control_->Hold();
  control_->FailNext(Error(absl::StatusCode::kAborted, "STEP_ROLLED_BACK", "boom"));
  const Accepted step = *gpt_->OptimizerStep(Caller(), {});
  Advance(absl::Seconds(11));
  control_->Resume();
  EXPECT_EQ(ErrorOf(*step.outcome), "STEP_ROLLED_BACK");
  Advance(absl::ZeroDuration());
  ASSERT_TRUE(Save("s").ok());  // behind the end of the lease, in the order of calls
  EXPECT_FALSE(gpt_->statistics().accumulating);
}

TEST_F(ServedPipelineTest, ARestartedProgramMayDiscardWhatItLeftAndAnyoneByForce) {
  CallContext before = Caller(), after = Caller();
  before.session = "before";
  after.session = "after";
  Settled(*gpt_->ForwardBackward(before, Batch())->outcome);
  EXPECT_EQ(ReasonOf(gpt_->ForwardBackward(after, Batch()).status()), "ACCUMULATION_HELD");
  Settled(*gpt_->OptimizerStep(after, {.discard = true})->outcome);
  Settled(*gpt_->ForwardBackward(after, Batch())->outcome);
  EXPECT_EQ(ReasonOf(gpt_->OptimizerStep(Caller("bob"), {.discard = true}).status()), "ACCUMULATION_HELD");
  EXPECT_TRUE(gpt_->OptimizerStep(Caller("bob"), {.discard = true, .force = true}).ok());
}

TEST_F(ServedPipelineTest, WhatWasForeseenAndDidNotHappenFailsInTheHandle) {
  control_->Hold();
  control_->FailNext(Error(absl::StatusCode::kInternal, "BUG", "boom"));
  const Accepted bad = *gpt_->ForwardBackward(Caller(), Batch());
  const Accepted step = *gpt_->OptimizerStep(Caller(), {});
  control_->Resume();
  EXPECT_EQ(ErrorOf(*bad.outcome), "BUG");
  EXPECT_EQ(ErrorOf(*step.outcome), "ACCUMULATION_EMPTY");
  const Accepted next = *gpt_->TrainStep(Caller("bob"), Batch(), {});
  EXPECT_EQ(Settled(*next.outcome, "bob").outcome->run.step, 1) << "usable afterwards";
}

TEST_F(ServedPipelineTest, AnExceptionInTrainingFailsItsCallByAnIncident) {
  control_->ThrowIn("TrainStep");
  const HandleInfo bad = Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  EXPECT_EQ(ReasonOf(bad.error), "BUG");
  EXPECT_THAT(ValuesOf(bad.error)["incident"], Not(""));
  EXPECT_EQ(Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome).outcome->run.step, 1) << "the thread goes on";
}

TEST_F(ServedPipelineTest, AnExceptionInInferenceFailsItsCallByAnIncident) {
  control_->ThrowIn("InferAsync");
  EXPECT_EQ(ErrorOf(*gpt_->Infer(Caller(), Ask())->outputs), "BUG");
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask(3))->outputs), 3);
}

TEST_F(ServedPipelineTest, AnExceptionInTheCheckOfALateInputFailsItsCallByAnIncident) {
  const auto late = [this] {
    const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
    InferCall call = Ask();
    call.inputs[0].source = HandleTensor{pending, ""};
    const Accepted accepted = *gpt_->Infer(Caller(), std::move(call));
    handles_->Fulfil(pending.id, NamedTensors{{"x", at::full({2}, 3.0f)}});
    return *accepted.outputs;
  };
  control_->ThrowIn("CheckInputs");
  EXPECT_EQ(ErrorOf(late()), "BUG");
  EXPECT_EQ(ValueOf(late()), 3);
}

TEST_F(ServedPipelineTest, AnExceptionInASaveOrAReadFailsItByAnIncident) {
  control_->ThrowIn("ExportState");
  EXPECT_EQ(ReasonOf(Save("one").status()), "BUG");
  EXPECT_TRUE(Save("one").ok());
  control_->ThrowIn("ExportState");
  EXPECT_EQ(ReasonOf(Read({}, false).status()), "BUG");
  EXPECT_TRUE(Read({}, false).ok());
}

// Of two callers who wait for one save, the first throws when it hears.
TEST_F(ServedPipelineTest, ACallbackThatThrowsKeepsNobodyFromHearingAndTheAnswerIsKept) {
  control_->Hold();
  const Accepted runs = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  gpt_->SaveCheckpoint(Caller("ann", "id"), {.id = "one"}, [](const auto&) { throw std::runtime_error("x"); });
  absl::StatusOr<StateAnswer> second;
  absl::Notification heard;
  gpt_->SaveCheckpoint(Caller("ann", "id"), {.id = "one"}, [&](auto answer) {
    second = std::move(answer);
    heard.Notify();
  });
  control_->Resume();
  heard.WaitForNotification();
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::StatusOr<StateAnswer> third = Save("one", "id");
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(third->sequence, second->sequence) << "the same save";
}

// Who wants to hear how calls went, and has no memory for it.
class BrokenObserver : public CallObserver {
 public:
  std::vector<std::pair<std::string, std::string>> Ids() const override { return {}; }
  void OnEnded(const CallEnd&) override { throw std::bad_alloc(); }
};

TEST_F(ServedPipelineTest, AnObserverThatThrowsChangesNoResult) {
  CallContext training = Caller();
  training.observer = std::make_shared<BrokenObserver>();
  const HandleInfo trained = Settled(*gpt_->TrainStep(std::move(training), Batch(), {})->outcome);
  EXPECT_EQ(trained.state, HandleState::kReady) << "the step is made: " << trained.error;
  CallContext inference = Caller();
  inference.observer = std::make_shared<BrokenObserver>();
  EXPECT_EQ(Settled(*gpt_->Infer(std::move(inference), Ask())->outputs).state, HandleState::kReady);
}

TEST_F(ServedPipelineTest, ACallersPlaceIsFreeWhenItHears) {
  const auto place_left = [this](const std::string& request_id) {
    CallContext context = Caller("ann", request_id);
    context.place = std::make_shared<int>();
    const std::weak_ptr<void> place = context.place;
    bool expired = false;
    absl::Notification heard;
    gpt_->SaveCheckpoint(std::move(context), {.id = "one"}, [&](const auto&) {
      expired = place.expired();
      heard.Notify();
    });
    heard.WaitForNotification();
    return expired;
  };
  EXPECT_TRUE(place_left("id")) << "of a save";
  EXPECT_TRUE(place_left("id")) << "of its repetition";
  EXPECT_TRUE(place_left("other")) << "of one that is refused";
  gpt_->StopAccepting();
  EXPECT_TRUE(place_left("late")) << "of one that is not accepted";
}

TEST_F(ServedPipelineTest, AnExceptionInACreationFailsItAndFreesTheName) {
  before_create_ = [](const Pipeline::Options&) { throw std::runtime_error("broken"); };
  EXPECT_EQ(ReasonOf(Create("other").status()), "BUG");
  before_create_ = nullptr;
  EXPECT_TRUE(Create("other").ok());
}

TEST_F(ServedPipelineTest, AnExceptionOfOneWaitDoesNotKeepTheOthersFromHearing) {
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  bool heard = false;
  const auto wait = [&](HandleStore::SettledCallback callback) {
    handles_->OnSettled("ann", {pending}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                        std::move(callback));
  };
  wait([](const auto&) { throw std::runtime_error("broken"); });
  wait([&heard](const auto&) { heard = true; });
  handles_->Fulfil(pending.id, NamedTensors{});
  EXPECT_TRUE(heard);
}

// What becomes of the outputs changes nothing about a step that has been done: its outcome comes first.
TEST_F(ServedPipelineTest, AStepIsToldBeforeItsOutputs) {
  control_->Hold();
  ContributionCall batch = Batch();
  batch.request.outputs = {"y"};
  const Accepted accepted = *gpt_->TrainStep(Caller(), std::move(batch), {});
  HandleState outcome = HandleState::kPending;
  absl::Notification done;
  handles_->OnSettled("ann", {*accepted.outputs}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                      [&](const std::vector<HandleStore::HandleAnswer>&) {
                        outcome = handles_->Get("ann", *accepted.outcome)->state;
                        done.Notify();
                      });
  control_->Resume();
  done.WaitForNotification();
  EXPECT_EQ(outcome, HandleState::kReady);
}

TEST_F(ServedPipelineTest, WhatComesWithACallIsCountedThoughItIsNoTensor) {
  const auto bytes = [&](Value value) {
    std::vector<InputSource> sources;
    sources.push_back({.name = "x"});
    if (value.is_tensor()) {
      sources[0].source = *value.tensor();
    } else {
      sources[0].source = std::move(value);
    }
    return CallInputs::Make(handles_.get(), "ann", std::move(sources), "inputs")->inline_bytes();
  };
  constexpr int64_t kValue = 64;
  constexpr int64_t kTensor = 512;
  EXPECT_EQ(bytes(Value()), kValue);
  EXPECT_EQ(bytes(Value::List(ValueList(63, Value(std::string(64 << 10, 'x'))))), 64 * kValue + 63 * (64 << 10));
  EXPECT_EQ(bytes(Value::Dict({{"key", Value::Tuple({Value("four"), Value(1)})}})), 4 * kValue + 3 + 4);
  EXPECT_EQ(bytes(Value(at::full({3}, 1.0f))), kValue + kTensor + 12);
  ValueList empty;
  for (int i = 0; i < 21'000; ++i) empty.emplace_back(at::full({0}, 1.0f));
  EXPECT_EQ(bytes(Value::List(std::move(empty))), kValue + 21'000 * (kValue + kTensor));
}

TEST_F(ServedPipelineTest, AStaleTokenIsRefused) {
  CallContext context = Caller();
  context.expected_state = gpt_->statistics().state_token;
  control_->Hold();
  const Accepted first = *gpt_->TrainStep(context, Batch(), {});
  const Accepted second = *gpt_->TrainStep(context, Batch(), {});  // the token can be judged at its turn only
  control_->Resume();
  const std::string token = Settled(*first.outcome).outcome->state_token;
  EXPECT_EQ(ErrorOf(*second.outcome), "STATE_MISMATCH");
  context.expected_state = token;
  EXPECT_EQ(Settled(*gpt_->TrainStep(context, Batch(), {})->outcome).outcome->run.step, 2);
}

TEST_F(ServedPipelineTest, PendingInputsKeepTheirPlaceAndInferencePassesBy) {
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  ContributionCall waits = Batch();
  waits.inputs[0].source = HandleTensor{pending, ""};
  const Accepted first = *gpt_->TrainStep(Caller(), std::move(waits), {});
  const Accepted second = *gpt_->TrainStep(Caller(), Batch(), {});
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask(3))->outputs), 3);
  EXPECT_EQ(handles_->Get("ann", *second.outcome)->state, HandleState::kPending);
  ASSERT_TRUE(handles_->Release("ann", pending).ok()) << "accepted work keeps its inputs";
  handles_->Fulfil(pending.id, NamedTensors{{"anything", at::full({2}, 1.0f)}});
  EXPECT_EQ(Settled(*first.outcome).outcome->run.step, 1);
  EXPECT_EQ(Settled(*second.outcome).outcome->run.step, 2);
}

TEST_F(ServedPipelineTest, AFailedInputFailsTheCallWithoutEffect) {
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  ContributionCall waits = Batch();
  waits.inputs[0].source = HandleTensor{pending, ""};
  const Accepted accepted = *gpt_->TrainStep(Caller(), std::move(waits), {});
  handles_->Fail(pending.id, Error(absl::StatusCode::kDataLoss, "CHUNK_CHECKSUM", "bad"));
  EXPECT_EQ(ErrorOf(*accepted.outcome), "CHUNK_CHECKSUM");
  EXPECT_EQ(gpt_->pipeline().step(), 0);
  ContributionCall foreign = Batch();
  foreign.inputs[0].source = HandleTensor{{"gpt", RandomHandleId(handles_->epoch())}, ""};
  const absl::Status refused = gpt_->TrainStep(Caller(), std::move(foreign), {}).status();
  EXPECT_EQ(ReasonOf(refused), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ValuesOf(refused)["field"], "inputs[0].handle");
}

TEST_F(ServedPipelineTest, BadTensorsAreRefusedBeforeAcceptance) {
  InferCall call;
  call.inputs.push_back({"z", at::full({2}, 1.0f)});
  EXPECT_EQ(ReasonOf(gpt_->Infer(Caller(), std::move(call)).status()), "TENSOR_SIGNATURE");
  EXPECT_EQ(handles_->TotalCounts().live(), 0);
  EXPECT_EQ(Metrics()->rejected[RejectReason::kInvalid].value(), 1);
}

// Each allocation of an acceptance fails once, one after another.
TEST_F(ServedPipelineTest, AnAcceptanceThatFindsNoMemoryLeavesNothingAndMayBeRepeated) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const auto counts = [&] { return handles_->CountsOf("gpt"); };
  const auto pending = [&] { return counts().by_state[static_cast<int>(HandleState::kPending)]; };
  // `accept` makes the call with this context; `result` is the handle that tells that it ran.
  const auto sweep = [&](const auto& accept, const auto& result) {
    int thrown = 0;
    int64_t runs = 0;
    for (bool failed = true; failed;) {
      SCOPED_TRACE(runs);
      const std::string id = "id-" + std::to_string(runs);
      const int64_t created = counts().created;
      control_->Hold();
      control_->HoldInference();
      CallContext context = Caller("ann", id);
      const auto place = std::make_shared<int>();
      context.place = place;
      try {
        (void)accept(std::move(context), runs);
      } catch (const std::bad_alloc&) {
        ++thrown;
        EXPECT_EQ(pending(), 0);
        EXPECT_EQ(place.use_count(), 1);
      }
      failed = StopFailingNew();
      const absl::StatusOr<Accepted> accepted = accept(Caller("ann", id), std::nullopt);
      ASSERT_TRUE(accepted.ok()) << accepted.status();
      control_->Resume();
      control_->ResumeInference();
      EXPECT_EQ(Settled(*result(*accepted)).state, HandleState::kReady);
      EXPECT_EQ(pending(), 0);
      EXPECT_EQ(counts().created, created + 1) << "the call was accepted once";
      ++runs;
    }
    EXPECT_GT(thrown, 10);
  };
  const auto fail_at = [](std::optional<int64_t> spared) {
    if (spared.has_value()) FailNewOnce(static_cast<int>(*spared));
  };
  sweep(
      [&](CallContext context, std::optional<int64_t> spared) {
        ContributionCall batch = Batch();
        fail_at(spared);
        return gpt_->TrainStep(std::move(context), std::move(batch), {});
      },
      [](const Accepted& accepted) { return accepted.outcome; });
  sweep(
      [&](CallContext context, std::optional<int64_t> spared) {
        InferCall call = Ask();
        fail_at(spared);
        return gpt_->Infer(std::move(context), std::move(call));
      },
      [](const Accepted& accepted) { return accepted.outputs; });
}

// Each allocation between two inferences fails once: the thread that starts them goes on, and the second runs, or fails by
// name.
TEST_F(ServedPipelineTest, InferenceGoesOnWhenItsThreadFindsNoMemory) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  int unstarted = 0;
  std::atomic<int> begun = 0;
  std::atomic<bool> failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    begun = 0;
    control_->HoldInference();
    control_->At("infer", [&] {
      if (++begun == 2) failed = StopFailingNew();
    });
    control_->At("infer ends", [spared] { FailNewOnce(spared); });  // the second is not held, and doesn't come here
    const Accepted first = *gpt_->Infer(Caller(), Ask());
    control_->AwaitInferences(1);
    control_->ResumeInference();
    const Accepted second = *gpt_->Infer(Caller(), Ask());
    EXPECT_EQ(Settled(*first.outputs).state, HandleState::kReady);
    const HandleInfo end = Settled(*second.outputs);
    if (begun == 2) {
      EXPECT_EQ(end.state, HandleState::kReady) << end.error;
    } else {
      EXPECT_EQ(ReasonOf(end.error), "HOST_MEMORY");
      ++unstarted;
    }
  }
  EXPECT_GT(unstarted, 0);
  EXPECT_EQ(Settled(*gpt_->Infer(Caller(), Ask())->outputs).state, HandleState::kReady);
}

// Each allocation after a forward fails once.
TEST_F(ServedPipelineTest, ARunThatFindsNoMemoryAtItsEndIsNoLongerActive) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    absl::Notification idle;
    control_->At("forward ends", [spared] { FailNewOnce(spared); });
    control_->At("idle", [&] {
      failed = StopFailingNew();
      if (!idle.HasBeenNotified()) idle.Notify();
    });
    ASSERT_TRUE(gpt_->Forward(Caller(), {.inputs = {X(1)}}).ok());
    idle.WaitForNotification();
    control_->At("idle", [] {});
    EXPECT_EQ(Metrics()->runs_active[BatchMode::kForward].value(), 0);
    handles_->ReleasePipeline("gpt");
  }
}

// Each allocation of a cancellation fails once: the call ends all the same, now or when it is cancelled again.
TEST_F(ServedPipelineTest, ACancellationThatFindsNoMemoryLeavesNothingPending) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    control_->Hold();
    const Accepted runs = *gpt_->TrainStep(Caller(), Batch(), {});
    control_->AwaitHeld();
    const Accepted waits = *gpt_->TrainStep(Caller(), Batch(), {});
    FailNewOnce(spared);
    try {
      (void)handles_->RequestCancel("ann", *waits.outcome);
    } catch (const std::bad_alloc&) {
    }
    failed = StopFailingNew();
    if (handles_->Get("ann", *waits.outcome)->state == HandleState::kPending) {
      EXPECT_EQ(*handles_->RequestCancel("ann", *waits.outcome), CancelEffect::kCancelled);
    }
    EXPECT_EQ(Settled(*waits.outcome).state, HandleState::kCancelled);
    control_->Resume();
    EXPECT_EQ(Settled(*runs.outcome).state, HandleState::kReady);
  }
}

class SmallQueuesTest : public HostingFixture {
 protected:
  SmallQueuesTest() : HostingFixture({.train_queue_calls = 2, .infer_queue_calls = 2, .infer_in_flight = 1}) {}
};

TEST_F(SmallQueuesTest, FullQueuesRefuseAndRecover) {
  control_->Hold();
  std::vector<Accepted> accepted = {*gpt_->TrainStep(Caller(), Batch(), {})};
  control_->AwaitHeld();  // it runs: the queue is empty
  accepted.push_back(*gpt_->TrainStep(Caller(), Batch(), {}));
  accepted.push_back(*gpt_->TrainStep(Caller(), Batch(), {}));
  const absl::Status full = gpt_->TrainStep(Caller("ann", "retried"), Batch(), {}).status();
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  EXPECT_EQ(ValuesOf(full)["queue"], "training");
  EXPECT_FALSE(ValuesOf(full)["retry_after_ms"].empty());
  EXPECT_EQ(Metrics()->queues[WorkQueue::kTrain].depth.value(), 4) << "micro-batches";
  std::string read;
  StartRead({}, false, [&](const auto& snapshot) { read = ReasonOf(snapshot.status()); });
  EXPECT_EQ(read, "QUEUE_FULL") << "a read is a call of the training order";
  control_->Resume();
  for (const Accepted& a : accepted) Settled(*a.outcome);
  EXPECT_TRUE(gpt_->TrainStep(Caller("ann", "retried"), Batch(), {}).ok()) << "a refusal is not recorded";
}

class SmallBytesTest : public HostingFixture {
 protected:
  SmallBytesTest() : HostingFixture({.train_queue_bytes = 64 << 10, .infer_queue_bytes = 64 << 10}) {}
};

TEST_F(SmallBytesTest, TextsTakeTheirPartOfTheQueue) {
  InferCall texts = Ask();
  texts.inputs.push_back({"words", Value::List(ValueList(3, Value(std::string(32 << 10, 'x'))))});
  const absl::Status full = gpt_->Infer(Caller(), std::move(texts)).status();
  EXPECT_EQ(ReasonOf(full), "QUEUE_FULL");
  EXPECT_EQ(ValuesOf(full)["queue"], "inference");
  EXPECT_TRUE(gpt_->Infer(Caller(), Ask()).ok());
}

TEST_F(SmallQueuesTest, CountsRefusalsByTheirReason) {
  const auto counted = [this] {
    std::vector<int64_t> counts;
    for (const RejectReason reason : {RejectReason::kQueueFull, RejectReason::kMemory, RejectReason::kDeadline,
                                      RejectReason::kDraining, RejectReason::kQuota, RejectReason::kInvalid}) {
      counts.push_back(Metrics()->rejected[reason].value());
    }
    return counts;
  };
  const HandleName rest =
      *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = handles_->options().budget.bytes_per_owner});
  EXPECT_EQ(ReasonOf(gpt_->Infer(Caller(), Ask()).status()), "HANDLE_BUDGET");
  EXPECT_THAT(counted(), ElementsAre(0, 1, 0, 0, 0, 0));
  ASSERT_TRUE(handles_->Release("ann", rest).ok());

  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();
  CallContext hurried = Caller();
  hurried.work_timeout = absl::Seconds(5);
  const Accepted waits = *gpt_->TrainStep(hurried, Batch(), {});
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller(), Batch(), {}).status()), "QUEUE_FULL");
  EXPECT_THAT(counted(), ElementsAre(1, 1, 0, 0, 0, 0));
  Advance(absl::Seconds(5));
  EXPECT_EQ(ErrorOf(*waits.outcome), "QUEUE_DEADLINE");
  EXPECT_THAT(counted(), ElementsAre(1, 1, 1, 0, 0, 0));

  gpt_->Drain(/*force=*/false, [] {});
  EXPECT_EQ(ReasonOf(gpt_->Infer(Caller(), Ask()).status()), "DRAINING");
  EXPECT_THAT(counted(), ElementsAre(1, 1, 1, 1, 0, 0));
}

TEST_F(SmallQueuesTest, InferenceHasItsOwnQueueAndLimitInFlight) {
  control_->HoldInference();
  const Accepted runs = *gpt_->Infer(Caller(), Ask());
  control_->AwaitInferences(1);
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());
  EXPECT_EQ(ValuesOf(gpt_->Infer(Caller(), Ask()).status())["queue"], "inference");
  EXPECT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(*runs.outputs), 1);
}

TEST_F(SmallQueuesTest, OfWaitingInferenceTheHighestPriorityGoesFirst) {
  control_->HoldInference();
  const Accepted runs = *gpt_->Infer(Caller(), Ask());
  control_->AwaitInferences(1);
  InferCall usual = Ask();
  const Accepted last = *gpt_->Infer(Caller(), std::move(usual));
  InferCall urgent = Ask();
  urgent.request.priority = 1;
  const Accepted first = *gpt_->Infer(Caller(), std::move(urgent));
  control_->ResumeInference();
  for (const Accepted* accepted : {&runs, &last, &first}) EXPECT_EQ(ValueOf(*accepted->outputs), 1);
  EXPECT_THAT(control_->inference_priorities(), ElementsAre(0, 1, 0));
}

TEST_F(SmallQueuesTest, AnEvaluationGoesByItsPriorityToo) {
  control_->HoldInference();
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());
  control_->AwaitInferences(1);
  const Accepted last = *gpt_->Infer(Caller(), Ask());
  EvaluateCall urgent = Judge();
  urgent.priority = 1;
  const Accepted first = *gpt_->Evaluate(Caller(), urgent);
  control_->ResumeInference();
  EXPECT_EQ(Settled(*first.outcome).state, HandleState::kReady);
  EXPECT_EQ(ValueOf(*last.outputs), 1);
  EXPECT_THAT(control_->inference_priorities(), ElementsAre(0, 1, 0));
}

TEST_F(SmallQueuesTest, OfOnePriorityTheFirstGoesFirst) {
  control_->HoldInference();
  ASSERT_TRUE(gpt_->Infer(Caller(), Ask()).ok());
  control_->AwaitInferences(1);
  const Accepted first = *gpt_->Infer(Caller(), Ask());
  const Accepted second = *gpt_->Infer(Caller(), Ask());
  control_->ResumeOneInference();
  control_->AwaitInferences(1);
  EXPECT_EQ(*handles_->RequestCancel("ann", *second.outputs), CancelEffect::kCancelled) << "it waits";
  EXPECT_EQ(*handles_->RequestCancel("ann", *first.outputs), CancelEffect::kCancelling) << "it runs";
}

class SharedQueuesTest : public HostingFixture {
 protected:
  SharedQueuesTest() : HostingFixture({.train_queue_calls = 8, .infer_queue_calls = 64, .infer_in_flight = 4}) {}
};

TEST_F(SharedQueuesTest, ACallerHasAShareOfTheQueueAndLeavesRoomForOthers) {
  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();  // it runs: the queue is empty
  for (int i = 0; i < 6; ++i)
    EXPECT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok()) << "alone, three quarters: " << i;
  const absl::Status alone = gpt_->TrainStep(Caller(), Batch(), {}).status();
  EXPECT_EQ(ReasonOf(alone), "CALLER_QUOTA");
  EXPECT_EQ(ValuesOf(alone)["queue"], "training");
  EXPECT_EQ(ValuesOf(alone)["limit_value"], "6");
  EXPECT_TRUE(gpt_->TrainStep(Caller("bob"), Batch(), {}).ok());
  EXPECT_TRUE(gpt_->TrainStep(Caller("bob"), Batch(), {}).ok());
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller("carl"), Batch(), {}).status()), "QUEUE_FULL");
  EXPECT_EQ(Metrics()->rejected[RejectReason::kQuota].value(), 1);
}

TEST_F(SharedQueuesTest, TheHighestPriorityDoesNotKeepOthersWaiting) {
  control_->HoldInference();
  std::vector<Accepted> accepted;
  const auto ask = [&](const std::string& caller, int32_t priority) {
    InferCall call = Ask();
    call.request.priority = priority;
    accepted.push_back(*gpt_->Infer(Caller(caller), std::move(call)));
  };
  for (int i = 0; i < 10; ++i) ask("ann", 9);
  control_->AwaitInferences(4);
  for (int i = 0; i < 2; ++i) ask("bob", 0);
  control_->AwaitInferences(5);
  EXPECT_THAT(control_->inference_priorities(), ElementsAre(9, 9, 9, 9, 0)) << "bob's first";
  for (int i = 0; i < 2; ++i) control_->ResumeOneInference();
  control_->AwaitInferences(4);
  EXPECT_THAT(control_->inference_priorities(), ElementsAre(9, 9, 9, 9, 0, 0));
  control_->ResumeOneInference();
  control_->AwaitInferences(4);
  EXPECT_THAT(control_->inference_priorities(), ElementsAre(9, 9, 9, 9, 0, 0, 9)) << "nobody else can start";
}

TEST_F(SharedQueuesTest, ACallerWithoutARunWaitsForNoRunOfOthersUpToAQuarterMore) {
  control_->HoldInference();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(gpt_->Infer(Caller("ann"), Ask()).ok());
  control_->AwaitInferences(4);
  const HandleName first = *gpt_->Infer(Caller("bob"), Ask())->outputs;
  const HandleName next = *gpt_->Infer(Caller("bob"), Ask())->outputs;
  const HandleName beyond = *gpt_->Infer(Caller("carl"), Ask())->outputs;
  control_->AwaitInferences(5);
  EXPECT_EQ(*handles_->RequestCancel("bob", first), CancelEffect::kCancelling) << "it runs, as the fifth of four";
  EXPECT_EQ(*handles_->RequestCancel("bob", next), CancelEffect::kCancelled) << "he has a run";
  EXPECT_EQ(*handles_->RequestCancel("carl", beyond), CancelEffect::kCancelled) << "a quarter of four is one";
}

TEST_F(SharedQueuesTest, CallersOfOnePriorityTakeTurnsHoweverManyCallsOneHas) {
  control_->HoldInference();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(gpt_->Infer(Caller("ann"), Ask()).ok());
  control_->AwaitInferences(4);
  std::vector<HandleName> flood;
  for (int i = 0; i < 3; ++i) flood.push_back(*gpt_->Infer(Caller("ann"), Ask())->outputs);
  std::vector<HandleName> few;
  for (int i = 0; i < 2; ++i) few.push_back(*gpt_->Infer(Caller("bob"), Ask())->outputs);
  for (int ended = 0; ended < 3; ++ended) {
    control_->ResumeOneInference();
    control_->AwaitInferences(4);
  }
  EXPECT_THAT(control_->inference_turns(), ElementsAre(2, 4, 6, 8, 2, 4, 10)) << "in rows; the lanes are told";
  const auto effect = [&](const char* caller, const HandleName& name) {
    return *handles_->RequestCancel(caller, name);
  };
  EXPECT_EQ(effect("bob", few[0]), CancelEffect::kCancelling) << "it runs";
  EXPECT_EQ(effect("bob", few[1]), CancelEffect::kCancelling);
  EXPECT_EQ(effect("ann", flood[0]), CancelEffect::kCancelling);
  EXPECT_EQ(effect("ann", flood[1]), CancelEffect::kCancelled) << "it waits";
  EXPECT_EQ(effect("ann", flood[2]), CancelEffect::kCancelled);
}

TEST_F(SharedQueuesTest, ATurnOfACallerGoesToItsHighestPriorityOnly) {
  control_->HoldInference();
  for (const char* caller : {"ann", "bob", "ann", "bob"}) ASSERT_TRUE(gpt_->Infer(Caller(caller), Ask()).ok());
  control_->AwaitInferences(4);
  InferCall urgent = Ask();
  urgent.request.priority = 1;
  const HandleName first = *gpt_->Infer(Caller("ann"), std::move(urgent))->outputs;
  const HandleName second = *gpt_->Infer(Caller("bob"), Ask())->outputs;
  control_->ResumeOneInference();
  control_->AwaitInferences(4);
  EXPECT_EQ(*handles_->RequestCancel("ann", first), CancelEffect::kCancelling) << "it runs";
  EXPECT_EQ(*handles_->RequestCancel("bob", second), CancelEffect::kCancelled) << "it waits, though it is bob's turn";
}

// A place in the admission, as the edge hands it over.
TEST_F(ServedPipelineTest, ThePlaceOfACallerLivesAsLongAsItsWork) {
  const auto place_of = [](CallContext& context) {
    context.place = std::make_shared<int>(0);
    return std::weak_ptr<void>(context.place);
  };
  control_->Hold();
  CallContext runs = Caller();
  CallContext cancelled = Caller();
  CallContext saves = Caller();
  const std::weak_ptr<void> running = place_of(runs);
  const std::weak_ptr<void> queued = place_of(cancelled);
  const std::weak_ptr<void> saving = place_of(saves);
  const Accepted first = *gpt_->TrainStep(std::move(runs), Batch(), {});
  const Accepted second = *gpt_->TrainStep(std::move(cancelled), Batch(), {});
  absl::Notification saved;
  gpt_->SaveCheckpoint(std::move(saves), {.id = "a"}, [&](const auto&) {
    EXPECT_TRUE(saving.expired()) << "free before the caller hears of the end";
    saved.Notify();
  });
  EXPECT_FALSE(running.expired() || queued.expired() || saving.expired());
  EXPECT_EQ(*handles_->RequestCancel("ann", *second.outcome), CancelEffect::kCancelled);
  EXPECT_TRUE(queued.expired());
  EXPECT_FALSE(running.expired());
  control_->Resume();
  Settled(*first.outcome);
  EXPECT_TRUE(running.expired());
  saved.WaitForNotification();

  control_->HoldInference();
  CallContext stopped = Caller();
  const std::weak_ptr<void> stopping = place_of(stopped);
  const Accepted inference = *gpt_->Infer(std::move(stopped), Ask());
  control_->AwaitInferences(1);
  EXPECT_EQ(*handles_->RequestCancel("ann", *inference.outputs), CancelEffect::kCancelling);
  EXPECT_FALSE(stopping.expired()) << "it was told to stop, and has not yet";
  control_->ResumeInference();
  EXPECT_TRUE(stopping.expired());
}

TEST_F(ServedPipelineTest, QueuedTrainingCanBeCancelledStartedTrainingCannot) {
  control_->Hold();
  const Accepted runs = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  const Accepted waits = *gpt_->TrainStep(Caller(), Batch(), {});
  EXPECT_EQ(*handles_->RequestCancel("ann", *runs.outcome), CancelEffect::kNotCancellable);
  EXPECT_EQ(*handles_->RequestCancel("ann", *waits.outcome), CancelEffect::kCancelled);
  EXPECT_EQ(ErrorOf(*waits.outcome), "WORK_CANCELLED");
  control_->Resume();
  EXPECT_EQ(Settled(*runs.outcome).outcome->run.step, 1);
  EXPECT_EQ(Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome).outcome->run.step, 2);
}

TEST_F(ServedPipelineTest, InferenceIsCancelledAtOnceAndByItsLastRelease) {
  control_->HoldInference();
  const Accepted first = *gpt_->Infer(Caller(), Ask());
  control_->AwaitInferences(1);
  EXPECT_EQ(*handles_->RequestCancel("ann", *first.outputs), CancelEffect::kCancelling);
  EXPECT_EQ(ErrorOf(*first.outputs), "WORK_CANCELLED");
  control_->Hold();
  const Accepted forward = *gpt_->Forward(Caller(), {.inputs = {X(1)}});
  control_->AwaitHeld();
  ASSERT_TRUE(handles_->Release("ann", *forward.outputs).ok());
  EXPECT_EQ(handles_->Get("ann", *forward.graph)->state, HandleState::kPending) << "one of two is still wanted";
  ASSERT_TRUE(handles_->Release("ann", *forward.graph).ok());
  const Accepted next = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->Resume();  // the forward has stopped by its token, or does now
  Settled(*next.outcome);
  EXPECT_EQ(control_->graphs(), 0);
}

// Meant for ThreadSanitizer: two threads must not let go of the same inputs.
TEST_F(ServedPipelineTest, ACancellationThatMeetsTheEndLetsGoOfInputsOnce) {
  const HandleName input = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  handles_->Fulfil(input.id, NamedTensors{{"x", at::full({2}, 1.0f)}});
  for (int i = 0; i < 100; ++i) {
    control_->HoldInference();
    InferCall call = Ask();
    call.inputs[0].source = HandleTensor{input, ""};
    const Accepted accepted = *gpt_->Infer(Caller(), std::move(call));
    control_->AwaitInferences(1);
    {
      const Thread end("end", [this] { control_->ResumeInference(); });
      EXPECT_TRUE(handles_->RequestCancel("ann", *accepted.outputs).ok());
    }
    const HandleState state = Settled(*accepted.outputs).state;
    EXPECT_TRUE(state == HandleState::kReady || state == HandleState::kCancelled);
  }
  const Accepted last = *gpt_->Infer(Caller(), {.inputs = {{"x", HandleTensor{input, ""}}}});
  EXPECT_EQ(ValueOf(*last.outputs), 1) << "the input is still there";
}

TEST_F(ServedPipelineTest, ACancelledBatchIsCountedAsSuch) {
  control_->HoldInference();
  const Accepted infer = *gpt_->Infer(Caller(), Ask());
  control_->AwaitInferences(1);
  EXPECT_EQ(*handles_->RequestCancel("ann", *infer.outputs), CancelEffect::kCancelling);
  control_->ResumeInference();
  absl::Notification drained;
  gpt_->Drain(/*force=*/false, [&] { drained.Notify(); });
  drained.WaitForNotification();
  EXPECT_EQ(Metrics()->batches[BatchMode::kInfer][BatchOutcome::kCancelled].value(), 1);
  EXPECT_EQ(Metrics()->batches[BatchMode::kInfer][BatchOutcome::kFailed].value(), 0);
}

// The budget has room for the outcome, which has no bytes yet, and none for the outputs.
TEST_F(ServedPipelineTest, ARefusedCallLeavesNoHandle) {
  ASSERT_TRUE(
      handles_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = handles_->options().budget.bytes_per_owner}).ok());
  ContributionCall call = Batch();
  call.request.outputs = {"y"};
  EXPECT_EQ(ReasonOf(gpt_->ForwardBackward(Caller(), std::move(call)).status()), "HANDLE_BUDGET");
  EXPECT_EQ(handles_->TotalCounts().live(), 1);
}

// As by a deletion: the call is in no queue yet, and the names of its handles are still being written.
TEST_F(ServedPipelineTest, HandlesMayEndWhileTheirCallIsBeingAccepted) {
  std::atomic<bool> stop = false;
  {
    const Thread deletes("deletes", [&] {
      while (!stop) handles_->ReleasePipeline("gpt");
    });
    for (int i = 0; i < 3000; ++i) (void)gpt_->Infer(Caller(), Ask());  // refused where the queue is full
    stop = true;
  }
  absl::StatusOr<Accepted> last = gpt_->Infer(Caller(), Ask(3));
  while (!last.ok()) last = gpt_->Infer(Caller(), Ask(3));
  EXPECT_EQ(ValueOf(*last->outputs), 3);
}

TEST_F(ServedPipelineTest, DeadlinesFireWhenTheySay) {
  control_->Hold();
  control_->HoldInference();
  CallContext hurried = Caller();
  hurried.work_timeout = absl::Seconds(5);
  const Accepted runs = *gpt_->TrainStep(hurried, Batch(), {});
  control_->AwaitHeld();
  const Accepted waits = *gpt_->TrainStep(hurried, Batch(), {});
  const Accepted infer = *gpt_->Infer(Caller(), Ask());  // 60 s
  control_->AwaitInferences(1);
  Advance(absl::Seconds(5) - absl::Nanoseconds(1));
  EXPECT_EQ(handles_->Get("ann", *waits.outcome)->state, HandleState::kPending);
  Advance(absl::Nanoseconds(1));
  EXPECT_EQ(ErrorOf(*waits.outcome), "QUEUE_DEADLINE");
  EXPECT_EQ(ErrorOf(*runs.outcome), "WORK_DEADLINE");
  EXPECT_EQ(gpt_->pipeline().step(), 0);
  Advance(absl::Seconds(55));
  EXPECT_EQ(ErrorOf(*infer.outputs), "WORK_DEADLINE");
}

TEST_F(ServedPipelineTest, AGraphIsUsedOnceAndGoesStaleWithAStep) {
  const Accepted forward = *gpt_->Forward(Caller(), {.inputs = {X(2)}});
  EXPECT_EQ(ValueOf(*forward.outputs), 2);
  control_->AwaitIdleReason(Pipeline::IdleReason::kWaitClient);
  const auto back = [&](const HandleName& graph) {
    BackwardCall call;
    call.graph = graph;
    call.gradients.push_back({"y", at::full({2}, 1.0f)});
    return gpt_->Backward(Caller(), std::move(call));
  };
  control_->Hold();
  const Accepted one = *back(*forward.graph);
  const Accepted two = *back(*forward.graph);
  control_->Resume();
  EXPECT_EQ(Settled(*one.outcome).state, HandleState::kReady);
  EXPECT_EQ(ErrorOf(*two.outcome), "GRAPH_CONSUMED");
  EXPECT_EQ(ReasonOf(back(*forward.graph).status()), "GRAPH_CONSUMED") << "known at once";
  EXPECT_EQ(control_->graphs(), 0);

  const Accepted other = *gpt_->Forward(Caller(), {.inputs = {X(2)}});
  Settled(*other.graph);
  Settled(*gpt_->OptimizerStep(Caller(), {})->outcome);
  EXPECT_EQ(ReasonOf(handles_->Get("ann", *other.graph)->error), "GRAPH_STALE");
  EXPECT_EQ(control_->graphs(), 0);
  control_->AwaitIdleReason(Pipeline::IdleReason::kNoWork);
  EXPECT_EQ(ReasonOf(back(*one.outcome).status()), "HANDLE_KIND");
}

TEST_F(ServedPipelineTest, AReplacedStateIsAnotherThoughItsStepIsTheSame) {
  ASSERT_TRUE(Save("first").ok());
  const auto first = *Read({"scale.weight"}, false);
  const HandleName put = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  handles_->Fulfil(put.id, NamedTensors{{"scale.weight", first->tensors[0].tensor.clone().fill_(5)}});
  const auto stale = [&](const Accepted& forward) { return ReasonOf(handles_->Get("ann", *forward.graph)->error); };

  const Accepted before_write = *gpt_->Forward(Caller(), {.inputs = {X(1)}});
  ASSERT_TRUE(Wait([&](auto done) { gpt_->WriteParameters(Caller(), {.handles = {put}}, done); }).ok());
  EXPECT_EQ(stale(before_write), "GRAPH_STALE");
  const auto written = *Read({"scale.weight"}, false);
  EXPECT_EQ(written->tensors[0].tensor.item<float>(), 5);

  const Accepted before_restore = *gpt_->Forward(Caller(), {.inputs = {X(1)}});
  ASSERT_TRUE(Restore("first").ok());
  EXPECT_EQ(stale(before_restore), "GRAPH_STALE");
  EXPECT_TRUE((*Read({"scale.weight"}, false))->tensors[0].tensor.equal(first->tensors[0].tensor));
  EXPECT_EQ(gpt_->statistics().step, 0);
}

TEST_F(ServedPipelineTest, AParameterIsNamedOnceThoughItHasTwoNames) {
  const std::string slot = "optimizer/scale.weight/momentum";
  const std::string on_the_wire = "optimizer.scale.weight.momentum";
  const auto before = *Read({}, true);
  for (const auto& [first, second] : {std::pair(slot, on_the_wire), std::pair(on_the_wire, slot)}) {
    const HandleName put = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
    handles_->Fulfil(put.id, NamedTensors{{first, at::full({1}, 0.25)}, {second, at::full({1}, 0.75)}});
    const absl::Status twice =
        Wait([&](auto done) { gpt_->WriteParameters(Caller(), {.handles = {put}}, done); }).status();
    EXPECT_EQ(ReasonOf(twice), "FIELD_INVALID");
    EXPECT_EQ(std::string(twice.message()), "handles[0]: names a parameter twice, got " + second);
    EXPECT_EQ(ValuesOf(twice)["value"], second);
  }
  EXPECT_TRUE((*Read({}, true))->tensors[0].tensor.equal(before->tensors[0].tensor));

  EXPECT_EQ((*Read({"partitions.0.0.weight"}, false))->tensors[0].name, "scale.weight");
  for (const auto& [first, second] : {std::pair("scale.weight", "partitions.0.0.weight"),
                                      std::pair("partitions.0.scale.weight", "partitions.0.0.weight")}) {
    const absl::Status again = Read({first, second}, false).status();
    EXPECT_EQ(ReasonOf(again), "FIELD_INVALID") << again;
    EXPECT_EQ(ValuesOf(again)["field"], "names[1]");
    EXPECT_EQ(ValuesOf(again)["value"], second);
  }
}

TEST_F(ServedPipelineTest, ARetryOfAWriteGetsTheFirstAnswerThoughItsHandlesAreReleased) {
  const HandleName put = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  handles_->Fulfil(put.id, NamedTensors{{"scale.weight", at::full({1}, 5.0f)}});
  const auto write = [&](const std::string& id, const std::string& digest) {
    return Wait([&](auto done) { gpt_->WriteParameters(Caller("ann", id, digest), {.handles = {put}}, done); });
  };
  const absl::StatusOr<StateAnswer> first = write("id", "d");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(handles_->Release("ann", put).ok());
  const absl::StatusOr<StateAnswer> again = write("id", "d");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->state_token, first->state_token);
  EXPECT_EQ(again->sequence, first->sequence);
  EXPECT_EQ(ReasonOf(write("id", "other").status()), "REQUEST_ID_REUSED");
  EXPECT_EQ(ReasonOf(write("another", "d").status()), "HANDLE_RELEASED");
}

TEST_F(ServedPipelineTest, TheOptimizerTakesOtherSettingsInTheOrderOfCalls) {
  const auto update = [&](double clip_norm, const CallContext& context, StateCallback done) {
    gpt_->UpdateOptimizer(context, {.clip_norm = clip_norm}, std::move(done));
  };
  const Accepted forward = *gpt_->Forward(Caller(), {.inputs = {X(1)}});
  Settled(*forward.outputs);
  const std::string token = gpt_->statistics().state_token;
  control_->Hold();
  const Accepted before = *gpt_->TrainStep(Caller(), Batch(), {});
  absl::StatusOr<StateAnswer> first;
  absl::Notification done;
  update(2, Caller("ann", "id-1"), [&](absl::StatusOr<StateAnswer> answer) {
    first = std::move(answer);
    done.Notify();
  });
  const Accepted after = *gpt_->TrainStep(Caller(), Batch(), {});
  EXPECT_EQ(gpt_->pipeline().optimizer().clip_norm, 0) << "it waits for its turn";
  control_->Resume();
  done.WaitForNotification();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->step, 1);
  EXPECT_NE(first->state_token, token);
  Settled(*after.outcome);
  EXPECT_THAT(control_->runs(), ElementsAre("Forward", "TrainStep", "UpdateOptimizer", "TrainStep"));
  EXPECT_EQ((*table_->Get("gpt")).spec.optimizer.clip_norm, 2);

  // A retry gets the first answer, and a stale token is refused.
  update(7, Caller(), [](const auto&) {});
  EXPECT_EQ(Wait([&](auto call) { update(2, Caller("ann", "id-1"), call); })->state_token, first->state_token);
  CallContext stale = Caller();
  stale.expected_state = token;
  EXPECT_EQ(ReasonOf(Wait([&](auto call) { update(9, stale, call); }).status()), "STATE_MISMATCH");
  EXPECT_EQ(gpt_->pipeline().optimizer().clip_norm, 7);

  // Graphs of the settings before are stale, though the step is the same.
  const Accepted open = *gpt_->Forward(Caller(), {.inputs = {X(1)}});
  ASSERT_TRUE(Wait([&](auto call) { update(3, Caller(), call); }).ok());
  EXPECT_EQ(ReasonOf(handles_->Get("ann", *open.graph)->error), "GRAPH_STALE");

  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  EXPECT_EQ(ReasonOf(Wait([&](auto call) { update(4, Caller(), call); }).status()), "ACCUMULATION_OPEN");
  EXPECT_EQ(ReasonOf(Wait([&](auto call) { update(4, Caller("bob"), call); }).status()), "ACCUMULATION_HELD");
  EXPECT_EQ(gpt_->pipeline().optimizer().clip_norm, 3);
}

TEST_F(ServedPipelineTest, GradientsOfInputsNeedAForwardThatPreparedThem) {
  const auto back = [&](const Accepted& forward) {
    BackwardCall call;
    call.graph = *forward.graph;
    call.gradients.push_back({"y", at::full({2}, 1.0f)});
    call.input_gradients = true;
    return Settled(*gpt_->Backward(Caller(), std::move(call))->outcome);
  };
  const absl::Status refused = back(*gpt_->Forward(Caller(), {.inputs = {X(2)}})).error;
  EXPECT_EQ(ValuesOf(refused)["field"], "input_gradients");
  EXPECT_FALSE(gpt_->statistics().accumulating);
  const Accepted prepared = *gpt_->Forward(Caller(), {.inputs = {X(2)}, .request = {.input_gradients = true}});
  EXPECT_EQ(back(prepared).state, HandleState::kReady);
}

TEST_F(ServedPipelineTest, ATensorOfACallGoesWithItsRun) {
  const at::Tensor target = at::full({2}, 1.0f);
  ContributionCall call = Batch();
  call.target = {"target", target};
  const Accepted accepted = *gpt_->TrainStep(Caller(), std::move(call), {});
  Settled(*accepted.outcome);
  ASSERT_TRUE(Save("behind").ok());  // the run has ended
  EXPECT_EQ(target.use_count(), 1) << "though its handle is still there";
}

class FewGraphsTest : public HostingFixture {
 protected:
  FewGraphsTest() : HostingFixture({.open_graphs = 2}) {}
};

TEST_F(FewGraphsTest, OpenGraphsAreLimitedAndFreedByTheirLease) {
  ASSERT_TRUE(gpt_->Forward(Caller(), {.inputs = {X(1)}}).ok());
  const Accepted second = *gpt_->Forward(Caller(), {.inputs = {X(1)}});
  EXPECT_EQ(ReasonOf(gpt_->Forward(Caller(), {.inputs = {X(1)}}).status()), "GRAPH_LIMIT");
  Settled(*second.graph);
  Advance(absl::Seconds(61));
  EXPECT_EQ(control_->graphs(), 0);
  control_->AwaitIdleReason(Pipeline::IdleReason::kNoWork);
  EXPECT_TRUE(gpt_->Forward(Caller(), {.inputs = {X(1)}}).ok());
}

TEST_F(ServedPipelineTest, SavesAndRestoresInOrder) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);  // w = 1 - 1 = 0
  const absl::StatusOr<StateAnswer> saved = Save("", "save-1");
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->checkpoint.id, "step-1");
  EXPECT_EQ(Metrics()->checkpoint_bytes.value(), static_cast<double>(saved->checkpoint.bytes));
  EXPECT_EQ(Save("", "save-1")->checkpoint.digest, saved->checkpoint.digest) << "a retry";
  EXPECT_EQ(ReasonOf(Save("step-1").status()), "CHECKPOINT_EXISTS");
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);  // w = -1
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask(1))->outputs), -1);
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  EXPECT_EQ(ReasonOf(Restore("step-1").status()), "ACCUMULATION_OPEN");
  const absl::StatusOr<StateAnswer> restored = Restore("step-1", /*force=*/true);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->step, 1);
  EXPECT_FALSE(gpt_->statistics().accumulating);
  EXPECT_EQ(gpt_->statistics().state_token, restored->state_token);
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask(1))->outputs), 0);
  EXPECT_EQ(ReasonOf(Restore("none").status()), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(gpt_->ListCheckpoints().size(), 1);
}

TEST_F(ServedPipelineTest, DeletesCheckpointsInOrderAndARetryGetsTheFirstAnswer) {
  ASSERT_TRUE(Save("a").ok());
  Settled(*gpt_->ForwardBackward(Caller("bob"), Batch())->outcome, "bob");  // an open accumulation is no obstacle
  const std::string token = gpt_->statistics().state_token;
  EXPECT_TRUE(Remove("a", "id").ok());
  EXPECT_TRUE(gpt_->ListCheckpoints().empty());
  EXPECT_TRUE(gpt_->statistics().accumulating);
  EXPECT_EQ(gpt_->statistics().state_token, token);
  EXPECT_TRUE(Remove("a", "id").ok()) << "a retry";
  EXPECT_EQ(ReasonOf(Remove("a", "other")), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Restore("a", /*force=*/true).status()), "CHECKPOINT_NOT_FOUND");
}

TEST_F(ServedPipelineTest, AFailedSaveHasNoEffectAndMayBeTriedAgain) {
  files_.SetFreeBytes(10);
  EXPECT_EQ(ReasonOf(Save("a", "id").status()), "STORAGE_FULL");
  files_.SetFreeBytes(-1);
  EXPECT_TRUE(Save("a", "id").ok());
  EXPECT_EQ(Metrics()->checkpoint_failures[CheckpointOperation::kSave].value(), 1);
}

TEST_F(ServedPipelineTest, ReadsParametersBetweenCallsOfOneStep) {
  EXPECT_EQ((*Read({}, false))->tensors.size(), 1);
  EXPECT_EQ((*Read({}, true))->tensors.size(), 2);
  EXPECT_EQ((*Read({"scale.weight"}, false))->tensors[0].name, "scale.weight");
  const absl::Status unknown = Read({"scale.wait"}, false).status();
  EXPECT_EQ(ReasonOf(unknown), "PARAMETER_NOT_FOUND");
  EXPECT_EQ(ValuesOf(unknown)["value"], "scale.wait");
}

TEST_F(ServedPipelineTest, GradientsAreReadInTheirPlaceAmongTheCallsOfTraining) {
  const auto read = [&](absl::Notification& done, float& value) {
    StartRead(ReadCall{.content = ReadContent::kGradients, .done = [&](const auto& snapshot) {
                         value = snapshot.ok() ? (*snapshot)->tensors[0].tensor.template item<float>() : -1;
                         done.Notify();
                       }});
  };
  control_->Hold();
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  ASSERT_TRUE(gpt_->ForwardBackward(Caller(), Batch(1)).ok());
  ContributionCall waits = Batch();
  waits.inputs[0].source = HandleTensor{pending, ""};
  const Accepted second = *gpt_->ForwardBackward(Caller(), std::move(waits));
  absl::Notification both, all;
  float of_both = 0, of_all = 0;
  read(both, of_both);
  const Accepted third = *gpt_->ForwardBackward(Caller(), Batch(4));
  read(all, of_all);
  control_->Resume();
  EXPECT_FALSE(both.HasBeenNotified());
  handles_->Fulfil(pending.id, NamedTensors{{"x", at::full({2}, 2.0f)}});
  Settled(*third.outcome);
  both.WaitForNotification();
  all.WaitForNotification();
  EXPECT_EQ(of_both, 3);
  EXPECT_EQ(of_all, 7);
}

TEST_F(ServedPipelineTest, GradientsAreReadByTheirCallerAlone) {
  const auto reason = [&](const std::string& caller, const std::string& session) {
    CallContext context = Caller(caller);
    context.session = session;
    return ReasonOf(Read(ReadCall{.content = ReadContent::kGradients}, context).status());
  };
  EXPECT_EQ(reason("ann", "one"), "ACCUMULATION_EMPTY");
  CallContext session = Caller();
  session.session = "one";
  Settled(*gpt_->ForwardBackward(session, Leased(Batch(), absl::Seconds(10)))->outcome);
  EXPECT_EQ(reason("ann", "one"), "");
  EXPECT_EQ(reason("ann", "two"), "") << "a shell beside the program";
  EXPECT_EQ(reason("bob", "one"), "ACCUMULATION_HELD");
  Advance(absl::Seconds(10));
  EXPECT_EQ(reason("ann", "one"), "ACCUMULATION_LOST");
  EXPECT_EQ(reason("ann", "two"), "ACCUMULATION_EMPTY");
  session.session = "two";
  Settled(*gpt_->ForwardBackward(session, Batch())->outcome);
  EXPECT_EQ(reason("ann", "one"), "ACCUMULATION_LOST") << "these are not its own";
}

TEST_F(ServedPipelineTest, ReadersOfTheSameGradientsShareOneCopy) {
  const ReadCall call = {.content = ReadContent::kGradients};
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  const auto first = Read(call).value();
  const auto again = Read(call).value();
  EXPECT_EQ(first->tensors[0].tensor.data_ptr(), again->tensors[0].tensor.data_ptr());
  EXPECT_EQ(memory_.BytesOf(MemoryClass::kSnapshots), 4) << "of one number";
  const auto weights = Read({}, false).value();
  EXPECT_NE(first->tensors[0].tensor.data_ptr(), weights->tensors[0].tensor.data_ptr());
  Settled(*gpt_->ForwardBackward(Caller(), Batch())->outcome);
  EXPECT_EQ(Read(call).value()->tensors[0].tensor.item<float>(), 2) << "not the copy of before";
  EXPECT_EQ(first->tensors[0].tensor.item<float>(), 1);
  ReadCall unknown = call;
  unknown.names = {"scale.bias"};
  EXPECT_EQ(ReasonOf(Read(unknown).status()), "PARAMETER_NOT_FOUND");
  unknown.names = {"optimizer/scale.weight/momentum"};
  EXPECT_EQ(ReasonOf(Read(unknown).status()), "PARAMETER_NOT_FOUND");
}

TEST_F(ServedPipelineTest, AnEvaluationTellsLossAndMetricsAndWhichStateItsWeightsCameWith) {
  const auto evaluate = [&] { return *Settled(*gpt_->Evaluate(Caller(), Judge())->outcome).outcome; };
  const CallOutcome first = evaluate();
  EXPECT_EQ(first.run.loss, 1);
  EXPECT_EQ(first.run.metrics.at("rows"), 2);
  EXPECT_EQ(first.run.counted, 2);
  EXPECT_EQ(first.sequence, 0);
  EXPECT_EQ(first.state_token, gpt_->statistics().state_token);
  Settled(*gpt_->TrainStep(Caller(), Batch(0.5), {})->outcome);
  const CallOutcome second = evaluate();
  EXPECT_EQ(second.run.loss, 0.5);
  EXPECT_EQ(second.run.step, 1);
  EXPECT_EQ(second.state_token, gpt_->statistics().state_token);
  EXPECT_NE(second.state_token, first.state_token);
  CallContext expects = Caller();
  expects.expected_state = second.state_token;
  Settled(*gpt_->ForwardBackward(expects, Batch())->outcome);
  EXPECT_EQ(evaluate().state_token, second.state_token) << "the state has moved on, its weights have not";
  EXPECT_NE(gpt_->statistics().state_token, second.state_token);
  Settled(*gpt_->OptimizerStep(Caller(), {.discard = true})->outcome);
  ASSERT_TRUE(Save("s").ok());
  ASSERT_TRUE(Restore("s").ok());
  EXPECT_EQ(evaluate().state_token, gpt_->statistics().state_token) << "restored weights are others";
  EXPECT_EQ(Metrics()->batches[BatchMode::kEvaluate][BatchOutcome::kOk].value(), 4);
  EXPECT_EQ(Metrics()->samples[BatchMode::kEvaluate].value(), 8);
}

TEST_F(ServedPipelineTest, EvaluationsRunBesideTrainingInTheQueueOfInference) {
  control_->Hold();
  const Accepted runs = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  EXPECT_EQ(Settled(*gpt_->Evaluate(Caller(), Judge())->outcome).state, HandleState::kReady);
  control_->HoldInference();
  EvaluateCall urgent = Judge();
  urgent.priority = 7;
  const Accepted kept = *gpt_->Evaluate(Caller("ann", "id-1"), urgent);
  EXPECT_EQ(gpt_->Evaluate(Caller("ann", "id-1"), urgent)->outcome, kept.outcome) << "a retry gets the first answer";
  control_->AwaitInferences(1);
  EXPECT_EQ(control_->inference_priorities().back(), 7);
  EXPECT_EQ(*handles_->RequestCancel("ann", *kept.outcome), CancelEffect::kCancelling);
  EXPECT_EQ(ErrorOf(*kept.outcome), "WORK_CANCELLED");
  control_->ResumeInference();
  control_->Resume();
  Settled(*runs.outcome);
}

TEST_F(ServedPipelineTest, AnEvaluationOfAnUnknownMetricIsRefusedAtOnceOrWhenItsInputsAreThere) {
  EvaluateCall unknown = Judge();
  unknown.metrics = {"f1"};
  EXPECT_EQ(ValuesOf(gpt_->Evaluate(Caller(), unknown).status())["field"], "metrics[0]");
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  unknown.batch.inputs[0].source = HandleTensor{pending, ""};
  const Accepted later = *gpt_->Evaluate(Caller(), unknown);
  handles_->Fulfil(pending.id, NamedTensors{{"x", at::full({2}, 2.0f)}});
  EXPECT_EQ(ErrorOf(*later.outcome), "FIELD_INVALID");
}

TEST_F(ServedPipelineTest, ReadersOfOneStepShareOneCopyOfTheParameters) {
  using Snapshot = absl::StatusOr<std::shared_ptr<const ParameterSnapshot>>;
  const auto read = [&](std::vector<std::string> names = {}) { return Read(std::move(names), true); };
  const auto bytes = [&] { return gpt_->statistics().snapshot_bytes; };
  std::vector<Snapshot> held = {read(), read(), read({"scale.weight"})};
  ASSERT_TRUE(held[0].ok() && held[1].ok() && held[2].ok());
  for (const Snapshot& one : held) {
    EXPECT_EQ((*one)->tensors[0].tensor.data_ptr(), (*held[0])->tensors[0].tensor.data_ptr());
  }
  EXPECT_EQ(bytes(), 8) << "two numbers, once";
  EXPECT_EQ(memory_.BytesOf(MemoryClass::kSnapshots), 8);
  const auto step = [&] { Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome); };
  for (int i = 1; i < ParameterSnapshots::kMaxSnapshots; ++i) {
    step();
    held.push_back(read());
    EXPECT_EQ((*held.back())->step, i);
  }
  EXPECT_EQ(bytes(), 8 * ParameterSnapshots::kMaxSnapshots);
  step();
  const absl::Status refused = read().status();
  EXPECT_EQ(ReasonOf(refused), "STREAM_LIMIT");
  EXPECT_EQ(ValuesOf(refused)["limit"], "parameter_snapshots");
  held.erase(held.begin(), held.begin() + 2);
  EXPECT_EQ(ReasonOf(read().status()), "STREAM_LIMIT") << "a part is still read, and keeps the whole";
  held.erase(held.begin());
  EXPECT_EQ((*read())->step, ParameterSnapshots::kMaxSnapshots);
  held.clear();
  EXPECT_EQ(bytes(), 0);
  EXPECT_EQ(memory_.BytesOf(MemoryClass::kSnapshots), 0);
  const auto others = *memory_.Take({}, kMemory - memory_.bytes() - 7);
  EXPECT_EQ(ReasonOf(read().status()), "HOST_MEMORY");
}

TEST_F(ServedPipelineTest, AReadHasItsPlaceInTheOrderOfCallsAndLeavesTheStateAsItIs) {
  control_->Hold();
  const Accepted first = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  int64_t step_of_read = -1;
  StartRead({}, false, [&](const auto& snapshot) { step_of_read = (*snapshot)->step; });
  const Accepted second = *gpt_->TrainStep(Caller(), Batch(), {});
  EXPECT_EQ(second.sequence, 3) << "the read is the call between";
  EXPECT_EQ(gpt_->statistics().train_queue_calls, 2);
  control_->Resume();
  Settled(*second.outcome);
  EXPECT_EQ(step_of_read, 1);
  const std::string token = gpt_->statistics().state_token;
  ASSERT_TRUE(Read({}, false).ok());
  EXPECT_EQ(gpt_->statistics().state_token, token);
  EXPECT_TRUE(Save("one").ok());
}

TEST_F(ServedPipelineTest, AReadThatNobodyWantsMakesNoCopyAndOneThatIsCancelledIsTold) {
  control_->Hold();
  const Accepted runs = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  const auto left = std::make_shared<CancelToken>();
  left->Cancel();
  control_->ThrowIn("ExportState");
  std::string reason;
  gpt_->ReadParameters(Caller(), {.done = [&](const auto& snapshot) { reason = ReasonOf(snapshot.status()); }}, left);
  control_->Resume();
  EXPECT_EQ(ReasonOf(Read({}, false).status()), "BUG") << "the first that makes a copy";
  EXPECT_EQ(reason, "WORK_CANCELLED");
  absl::Notification drained;
  control_->Hold();
  const Accepted next = *gpt_->TrainStep(Caller(), Batch(), {});
  control_->AwaitHeld();
  StartRead({}, false, [&](const auto& snapshot) { reason = ReasonOf(snapshot.status()) + " by a drain"; });
  gpt_->Drain(/*force=*/true, [&] { drained.Notify(); });
  EXPECT_EQ(reason, "WORK_CANCELLED by a drain");
  control_->Resume();
  drained.WaitForNotification();
}

TEST_F(ServedPipelineTest, ReadsParametersByPartition) {
  const auto read = [&](const std::string& name) { return Read({name}, false); };
  EXPECT_EQ((*read("partitions.0.0.weight"))->tensors[0].name, "scale.weight");
  EXPECT_EQ((*read("partitions.0.scale.weight"))->tensors[0].name, "scale.weight");
  const absl::Status no_stage = read("partitions.1.0.weight").status();
  EXPECT_EQ(no_stage.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ValuesOf(no_stage)["pipeline"], "gpt");
  EXPECT_EQ(ValuesOf(no_stage)["value"], "partitions.1.0.weight");
  EXPECT_EQ(read("partitions.0.1.weight").status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(ReasonOf(read("partitions.0.0.wait").status()), "PARAMETER_NOT_FOUND");
}

TEST_F(ServedPipelineTest, DrainFinishesWhatWasAcceptedAndRefusesTheRest) {
  control_->Hold();
  const Accepted first = *gpt_->TrainStep(Caller(), Batch(), {});
  const Accepted second = *gpt_->TrainStep(Caller("ann", "id"), Batch(), {});
  absl::Notification drained;
  gpt_->Drain(/*force=*/false, [&] { drained.Notify(); });
  EXPECT_EQ(ReasonOf(gpt_->TrainStep(Caller(), Batch(), {}).status()), "DRAINING");
  EXPECT_EQ(ReasonOf(gpt_->Infer(Caller(), Ask()).status()), "DRAINING");
  EXPECT_EQ(gpt_->TrainStep(Caller("ann", "id"), Batch(), {})->outcome, second.outcome) << "a retry is still answered";
  EXPECT_FALSE(drained.HasBeenNotified());
  control_->Resume();
  drained.WaitForNotification();
  EXPECT_EQ(handles_->Get("ann", *second.outcome)->outcome->run.step, 2) << "settled before drained";
}

TEST_F(ServedPipelineTest, CountsWhatRan) {
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  control_->FailNext(Error(absl::StatusCode::kInternal, "BUG", "boom"));
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  Settled(*gpt_->Infer(Caller(), Ask())->outputs);
  const auto metrics = Metrics();
  EXPECT_EQ(metrics->batches_started[BatchMode::kTrain].value(), 2);
  EXPECT_EQ(metrics->batches[BatchMode::kTrain][BatchOutcome::kOk].value(), 1);
  EXPECT_EQ(metrics->batches[BatchMode::kTrain][BatchOutcome::kFailed].value(), 1);
  EXPECT_EQ(metrics->batches[BatchMode::kInfer][BatchOutcome::kOk].value(), 1);
  EXPECT_EQ(metrics->samples[BatchMode::kTrain].value(), 2);
  EXPECT_EQ(metrics->step_number.value(), 1);
  EXPECT_EQ(metrics->queues[WorkQueue::kTrain].wait.Snapshot().count(), 2);
  EXPECT_EQ(metrics->queues[WorkQueue::kTrain].depth.value(), 0);
  EXPECT_EQ(gpt_->statistics().samples_trained, 2);
}

}  // namespace
}  // namespace penstock::testing
