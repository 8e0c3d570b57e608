// Requests of inference that run as one: which do, and what each gets of it.

#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/thread.h"
#include "engine/plan/planning.h"
#include "engine/serve/batch_rows.h"
#include "engine/serve/batching_check.h"
#include "engine/serve/inference_queue.h"
#include "engine/serve/served_calls.h"
#include "tests/support/failing_new.h"
#include "tests/unit/serve/hosting_fixture.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kDelay = absl::Seconds(30);

// --- The check before any call.

TEST(CheckBatching, EndsOnceNobodyWantsIt) {
  FakeClock clock;
  const auto control = std::make_shared<FakePipelineControl>();
  FakePipeline pipeline(control);
  std::atomic<bool> unwanted = false;
  const Planning planning(&clock, 600, [&] { return unwanted.load(); });
  EXPECT_TRUE(CheckBatching(&pipeline, planning).ok());
  control->HoldInference();
  absl::Status checked;
  {
    const Thread thread("t-check", [&] { checked = CheckBatching(&pipeline, planning); });
    control->AwaitInferences(1);
    unwanted = true;
    control->ResumeInference();
  }
  EXPECT_EQ(ReasonOf(checked), "WORK_CANCELLED") << "it is no reason to go on without having looked";
}

// --- The queue alone.

class InferenceBatchesTest : public ::testing::Test {
 protected:
  CallPointer Add(InferenceQueue& queue, const std::string& caller, int64_t rows = 2, std::string key = "k",
                  int64_t accepted_nanos = 0, int32_t priority = 0) {
    InferCall infer;
    infer.request.priority = priority;
    auto call = std::make_shared<Call>(CallContext{.caller = caller}, Request(std::move(infer)));
    call->rows = rows;
    call->batch_key = std::move(key);
    call->accepted_nanos = accepted_nanos;
    absl::MutexLock lock(&calls_.mu);
    calls_.Of(call).inputs_ready = true;
    queue.Add(call);
    calls_.Of(call).Enter(Call::Phase::kQueued);
    return call;
  }
  static constexpr QueueBounds::Limits kLimits{.calls = 100, .bytes = 1 << 20};
  // Only it reaches what is guarded of a call.
  ServedCalls calls_{RequestLog<RecordedAnswer>({.entries = 1, .kept_nanos = 1}, MemoryReservation()),
                     TrainingQueue(kLimits, {}), InferenceQueue(kLimits, 1), nullptr};
};

TEST_F(InferenceBatchesTest, EachCallersNextCallsJoinInTurns) {
  InferenceQueue queue(kLimits, 16, {.places = 1, .max_rows = 6});
  const CallPointer a1 = Add(queue, "ann");
  const CallPointer a2 = Add(queue, "ann");
  Add(queue, "ann");
  const CallPointer b1 = Add(queue, "bob");
  EXPECT_THAT(queue.Start()->calls, ElementsAre(a1, b1, a2)) << "bob need not wait until ann is done";
}

TEST_F(InferenceBatchesTest, WhatDoesNotFitWaitsAndSmallerOnesOfOthersPassIt) {
  InferenceQueue queue(kLimits, 16, {.places = 2, .max_rows = 6});
  const CallPointer a1 = Add(queue, "ann", 2);
  const CallPointer a2 = Add(queue, "ann", 5);
  const CallPointer b1 = Add(queue, "bob", 4);
  EXPECT_THAT(queue.Start()->calls, ElementsAre(a1, b1));
  EXPECT_THAT(queue.Start()->calls, ElementsAre(a2));
  EXPECT_FALSE(queue.runnable());
  InferenceQueue other(kLimits, 16, {.places = 1, .max_rows = 6});
  const CallPointer fits = Add(other, "ann", 2);
  Add(other, "ann", 5);
  EXPECT_THAT(other.Start()->calls, ElementsAre(fits)) << "seven rows are no batch of six";
}

TEST_F(InferenceBatchesTest, AnotherKeyOfTheSameCallerKeepsNobodyOut) {
  InferenceQueue queue(kLimits, 16, {.places = 2, .max_rows = 6});
  const CallPointer one = Add(queue, "ann", 2, "one");
  const CallPointer two = Add(queue, "ann", 2, "two");
  const CallPointer one_more = Add(queue, "ann", 2, "one");
  const BatchPointer first = queue.Start();
  EXPECT_THAT(first->calls, ElementsAre(one, one_more));
  EXPECT_EQ(one_more->turn, 4) << "it counts as if it had waited for its turn";
  const BatchPointer second = queue.Start();
  EXPECT_THAT(second->calls, ElementsAre(two));
  EXPECT_EQ(two->turn, 4) << "who is passed keeps its turn";
  EXPECT_EQ(Add(queue, "ann")->turn, 8) << "all of it counts for what comes later";
  queue.EndRun(first, 0);
  queue.EndRun(second, 0);
  EXPECT_EQ(queue.running(), 0);
}

TEST_F(InferenceBatchesTest, OtherKeysAndPrioritiesAreOtherBatches) {
  InferenceQueue queue(kLimits, 16, {.places = 3, .max_rows = 100});
  const CallPointer one = Add(queue, "ann", 2, "one");
  const CallPointer two = Add(queue, "bob", 2, "two");
  const CallPointer urgent = Add(queue, "cyd", 2, "three", 0, 1);
  EXPECT_THAT(queue.Start()->calls, ElementsAre(urgent));
  EXPECT_THAT(queue.Start()->calls, ElementsAre(one));
  EXPECT_THAT(queue.Start()->calls, ElementsAre(two));
}

TEST_F(InferenceBatchesTest, OnlyBatchesWaitForThePlacesOfBatches) {
  InferenceQueue queue(kLimits, 16, {.places = 2, .max_rows = 2});
  Add(queue, "ann");
  const BatchPointer first = queue.Start();
  Add(queue, "ann");
  const BatchPointer second = queue.Start();
  const CallPointer next = Add(queue, "ann");
  EXPECT_FALSE(queue.runnable());
  const CallPointer whole = Add(queue, "bob", 50, "");
  ASSERT_TRUE(queue.runnable());
  EXPECT_THAT(queue.Start()->calls, ElementsAre(whole)) << "though the other's turn would come first";
  EXPECT_FALSE(queue.runnable());
  queue.LeaveStages(*first, 0);
  ASSERT_TRUE(queue.runnable()) << "before the first one is told";
  EXPECT_THAT(queue.Start()->calls, ElementsAre(next));
  queue.EndRun(first, 0);
  EXPECT_EQ(queue.running(), 3) << "a place is given back once";
  Add(queue, "ann");
  EXPECT_FALSE(queue.runnable());
}

TEST_F(InferenceBatchesTest, WhatNeedsNoPlacePassesWhatItsCallerWaitsFor) {
  InferenceQueue queue(kLimits, 16, {.places = 1, .max_rows = 6, .max_delay_nanos = 10});
  const CallPointer waits = Add(queue, "ann", 2, "k", 5);
  const CallPointer whole = Add(queue, "ann", 2, "", 6);
  ASSERT_TRUE(queue.runnable());
  EXPECT_THAT(queue.Start()->calls, ElementsAre(whole));
  const CallPointer full = Add(queue, "ann", 6, "another", 7);
  ASSERT_TRUE(queue.runnable()) << "a full one of another key, too";
  EXPECT_THAT(queue.Start()->calls, ElementsAre(full));
}

TEST_F(InferenceBatchesTest, WhatIsDueAndHasNoRoomIsNotDueAgain) {
  InferenceQueue queue(kLimits, 2, {.places = 1, .max_rows = 6, .max_delay_nanos = 10});
  Add(queue, "ann", 2, "");
  Add(queue, "ann", 2, "");
  const BatchPointer one = queue.Start();
  queue.Start();
  const CallPointer waits = Add(queue, "ann", 2, "k", 5);
  EXPECT_EQ(queue.due_nanos(), 15);
  queue.Reached(15);
  EXPECT_FALSE(queue.runnable()) << "both places are taken";
  EXPECT_EQ(queue.due_nanos(), InferenceQueue::kNever) << "whoever waits for that instant would never sleep";
  Add(queue, "ann", 2, "k", 9);
  EXPECT_EQ(queue.due_nanos(), 19);
  queue.EndRun(one, 0);
  ASSERT_TRUE(queue.runnable());
  EXPECT_EQ(queue.Start()->calls.front(), waits);
}

TEST_F(InferenceBatchesTest, ACallWaitsForOthersUntilItIsDueOrTheBatchIsFull) {
  InferenceQueue queue(kLimits, 16, {.places = 1, .max_rows = 6, .max_delay_nanos = 10});
  EXPECT_EQ(queue.due_nanos(), InferenceQueue::kNever);
  const CallPointer first = Add(queue, "ann", 2, "k", 5);
  EXPECT_FALSE(queue.runnable());
  EXPECT_EQ(queue.due_nanos(), 15);
  const CallPointer second = Add(queue, "bob", 2, "k", 9);
  queue.Reached(14);
  EXPECT_FALSE(queue.runnable());
  queue.Reached(15);
  ASSERT_TRUE(queue.runnable());
  const BatchPointer batch = queue.Start();
  EXPECT_THAT(batch->calls, ElementsAre(first, second));
  Add(queue, "ann", 2, "k", 100);
  Add(queue, "ann", 2, "k", 100);
  EXPECT_EQ(queue.due_nanos(), InferenceQueue::kNever) << "there is no place";
  queue.EndRun(batch, 0);
  EXPECT_FALSE(queue.runnable());
  EXPECT_EQ(queue.due_nanos(), 110);
  const CallPointer gone = Add(queue, "bob", 2, "k", 100);
  EXPECT_TRUE(queue.runnable()) << "six rows";
  queue.Remove(gone);
  EXPECT_FALSE(queue.runnable());
  Add(queue, "bob", 7, "k", 100);
  EXPECT_TRUE(queue.runnable()) << "as full as it can be";
}

TEST_F(InferenceBatchesTest, WhatIsRemovedWhileItWaitsForOthersLeavesNothing) {
  const QueueBounds::Limits few{.calls = 3, .bytes = 1 << 20};
  InferenceQueue queue(few, 16, {.places = 1, .max_rows = 6, .max_delay_nanos = 10});
  const CallPointer gone = Add(queue, "ann", 2, "k", 5);
  const CallPointer first = Add(queue, "bob", 2, "k", 9);
  const CallPointer second = Add(queue, "ann", 1, "k", 9);
  const Call another(CallContext{.caller = "cyd"}, Request(InferCall()));
  EXPECT_EQ(ReasonOf(queue.CheckNew(another)), "QUEUE_FULL");
  EXPECT_EQ(queue.due_nanos(), 15);
  queue.Remove(gone);
  EXPECT_TRUE(queue.CheckNew(another).ok()) << "its place is free";
  EXPECT_THAT(queue.waiting(), ElementsAre(first, second));
  EXPECT_EQ(queue.due_nanos(), 19) << "only who is left has a time";
  queue.Reached(15);
  EXPECT_FALSE(queue.runnable()) << "the time of the one that is gone";
  queue.Reached(19);
  ASSERT_TRUE(queue.runnable());
  const BatchPointer batch = queue.Start();
  EXPECT_THAT(batch->calls, UnorderedElementsAre(first, second));
  EXPECT_EQ(queue.running(), 2);
  EXPECT_EQ(queue.due_nanos(), InferenceQueue::kNever);
  queue.EndRun(batch, 20);
  EXPECT_TRUE(queue.idle());
  queue.Remove(Add(queue, "ann", 6, "k", 30));
  EXPECT_FALSE(queue.runnable()) << "no rows of it are counted";
  EXPECT_TRUE(queue.idle());
}

// Whoever waits for the queue asks it whenever its lock is given back, where nothing may fail.
TEST_F(InferenceBatchesTest, WhetherSomethingMayRunTakesNoMemory) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const std::string ann = "a caller whose name is no short string";
  for (const BatchLimits& limits : {BatchLimits{}, BatchLimits{.places = 4, .max_rows = 4}}) {
    InferenceQueue queue(kLimits, 4, limits);
    const auto runnable = [&queue] {
      FailNew();
      const bool may_run = queue.runnable();
      const int64_t due = queue.due_nanos();
      EXPECT_FALSE(StopFailingNew());
      EXPECT_EQ(due, InferenceQueue::kNever);
      return may_run;
    };
    for (const int32_t priority : {1, 1, 0, 0, 0}) Add(queue, ann, 2, "a key that is no short string", 0, priority);
    Add(queue, "bob", 4);
    while (runnable()) queue.Start();
    Add(queue, "cyd", 4, "", 0, 1);
    EXPECT_TRUE(runnable()) << "a caller without a run, beyond the limit";
  }
}

// Of the four that may run, a caller's with a priority may take one while others can start.
TEST_F(InferenceBatchesTest, ABatchOfSeveralCallsIsOneRunOfTheirCaller) {
  InferenceQueue queue(kLimits, 4, {.places = 3, .max_rows = 4});
  for (int k = 0; k < 4; ++k) Add(queue, "ann", 2, "k", 0, 1);
  const CallPointer usual = Add(queue, "bob", 2, "another key");
  const BatchPointer urgent = queue.Start();
  EXPECT_EQ(urgent->calls.size(), 2);
  const BatchPointer next = queue.Start();
  EXPECT_THAT(next->calls, ElementsAre(usual)) << "ann has her share";
  queue.EndRun(urgent, 0);
  const BatchPointer rest = queue.Start();
  EXPECT_EQ(rest->calls.size(), 2) << "and has it again";
  EXPECT_EQ(rest->calls.front()->context.caller, "ann");
  queue.EndRun(next, 0);
  queue.EndRun(rest, 0);
  EXPECT_TRUE(queue.idle());
}

class GatheringTest : public InferenceBatchesTest {
 protected:
  static constexpr int64_t kUnit = 100'000;
  // A batch of everything that waits, which runs from one instant to another, in units. What comes meanwhile is added before.
  void Run(int64_t begin, int64_t end, int calls_meanwhile = 0) {
    const BatchPointer batch = queue_.Start();
    for (const CallPointer& call : batch->calls) call->started_nanos = begin * kUnit;
    Add(calls_meanwhile);
    queue_.LeaveStages(*batch, end * kUnit);
    queue_.EndRun(batch, end * kUnit);
  }
  void Add(int calls) {
    for (int k = 0; k < calls; ++k) InferenceBatchesTest::Add(queue_, "ann");
  }
  using InferenceBatchesTest::Add;

  InferenceQueue queue_{kLimits, 16, {.places = 1, .max_rows = 20}};
};

TEST_F(GatheringTest, WhoWasAnsweredIsWaitedForAQuarterOfTheRun) {
  Add(3);
  Run(100, 180, 2);
  EXPECT_FALSE(queue_.runnable());
  EXPECT_EQ(queue_.due_nanos(), 200 * kUnit);
  Add(2);
  EXPECT_FALSE(queue_.runnable()) << "one is not back";
  Add(1);
  ASSERT_TRUE(queue_.runnable()) << "all are there";
  EXPECT_EQ(queue_.Start()->calls.size(), 5);
}

TEST_F(GatheringTest, WhoDoesNotComeBackIsWaitedForNoLonger) {
  Add(3);
  Run(100, 180, 2);
  Add(2);
  queue_.Reached(199 * kUnit);
  EXPECT_FALSE(queue_.runnable());
  queue_.Reached(200 * kUnit);
  EXPECT_EQ(queue_.due_nanos(), InferenceQueue::kNever);
  ASSERT_TRUE(queue_.runnable());
  EXPECT_EQ(queue_.Start()->calls.size(), 4);
}

TEST_F(GatheringTest, WhoIsCancelledIsWaitedForNoLonger) {
  Add(3);
  Run(100, 180, 2);
  const CallPointer was_left = queue_.waiting().front();
  queue_.Remove(was_left);
  queue_.Remove(Add(queue_, "ann"));  // one that was answered, and came back
  Add(1);
  EXPECT_FALSE(queue_.runnable()) << "one is not back";
  Add(1);
  ASSERT_TRUE(queue_.runnable()) << "all others are there";
  EXPECT_EQ(queue_.waiting().size(), 3);
  Run(190, 270, 1);
  EXPECT_FALSE(queue_.runnable()) << "nobody was absent, so it is worth waiting again";
}

TEST_F(GatheringTest, WhereAllAreCancelledTheNextOneRunsAtOnce) {
  Add(1);
  Run(100, 180, 1);
  const CallPointer was_left = queue_.waiting().front();
  queue_.Remove(Add(queue_, "ann"));
  queue_.Remove(was_left);
  EXPECT_FALSE(queue_.runnable());
  EXPECT_EQ(queue_.due_nanos(), InferenceQueue::kNever);
  EXPECT_TRUE(queue_.idle());
  Add(1);
  EXPECT_TRUE(queue_.runnable());
}

TEST_F(GatheringTest, ARunBeginsWhenItsLaneHasToldOfTheOneBefore) {
  Add(1);
  const BatchPointer first = queue_.Start();
  queue_.LeaveStages(*first, 80 * kUnit);
  Add(1);
  const BatchPointer second = queue_.Start();
  second->calls.front()->started_nanos = 80 * kUnit;
  queue_.EndRun(first, 160 * kUnit);
  Add(1);
  queue_.LeaveStages(*second, 180 * kUnit);
  EXPECT_EQ(queue_.due_nanos(), 185 * kUnit);
}

TEST_F(GatheringTest, AfterAShortRunNobodyIsWaitedFor) {
  Add(3);
  Run(100, 119, 1);
  EXPECT_TRUE(queue_.runnable());
}

TEST_F(GatheringTest, WhoIsBackBeforeAllAreToldIsBack) {
  Add(3);
  const BatchPointer batch = queue_.Start();
  queue_.LeaveStages(*batch, 80 * kUnit);
  Add(2);
  queue_.EndRun(batch, 0);
  EXPECT_FALSE(queue_.runnable());
  Add(1);
  EXPECT_TRUE(queue_.runnable());
}

TEST_F(GatheringTest, OnlyWhatCouldJoinWaits) {
  Add(3);
  Run(100, 180, 1);
  EXPECT_FALSE(queue_.runnable());
  const CallPointer other = Add(queue_, "bob", 2, "another key");
  ASSERT_TRUE(queue_.runnable());
  EXPECT_THAT(queue_.Start()->calls, ElementsAre(other));
}

TEST_F(GatheringTest, WhatAnotherBatchHasOvertakenIsNotJudged) {
  Add(3);
  Run(100, 180, 1);
  Add(queue_, "bob", 2, "another key");
  Run(200, 210);  // of bob's, too short for a gathering of its own
  queue_.Reached(300 * kUnit);
  Run(300, 380, 1);  // of the one who had waited: the others did not come
  EXPECT_FALSE(queue_.runnable()) << "which said nothing, as another batch ran meanwhile";
}

TEST_F(GatheringTest, AStartThatWaitedForNobodySaysNothingOfWhoIsAbsent) {
  Add(2);
  for (int runs = 0; runs < 5; ++runs) {
    Run(100 * runs + 100, 100 * runs + 180, 10);  // full at once: nobody is waited for
    ASSERT_TRUE(queue_.runnable());
  }
  Run(600, 680, 1);
  EXPECT_FALSE(queue_.runnable()) << "there was no reason to stop waiting";
}

TEST_F(GatheringTest, AFullBatchADrainAndWhoWasAloneWaitForNobody) {
  Add(1);
  Run(100, 180);
  Add(1);
  EXPECT_TRUE(queue_.runnable()) << "the one who was answered";
  Add(2);
  Run(200, 280, 1);
  EXPECT_FALSE(queue_.runnable());
  queue_.SetHurry(true);
  EXPECT_TRUE(queue_.runnable());
  queue_.SetHurry(false);
  EXPECT_FALSE(queue_.runnable());
  Add(queue_, "bob", 18);
  EXPECT_TRUE(queue_.runnable()) << "twenty rows";
}

TEST_F(GatheringTest, WhereNobodyComesBackFewerEndsAreAReasonToWait) {
  int64_t now = 1000;
  const auto waits = [&] {  // after a run of two calls, of whom none comes back; another one came meanwhile
    Run(now, now + 80, 2);
    now += 1000;
    const bool waiting = !queue_.runnable();
    queue_.Reached(now * kUnit);
    return waiting;
  };
  Add(2);
  std::vector<int> ends_between = {};
  for (int ends = 0, passed = 0; ends < 350; ++ends, ++passed) {
    if (!waits()) continue;
    ends_between.push_back(passed);
    passed = -1;
  }
  EXPECT_THAT(ends_between, ElementsAre(0, 2, 4, 8, 16, 32, 64, 64, 64, 64));
  while (!waits()) {
  }
  Add(2);  // now they do
  for (int k = 0; k < 3; ++k) {
    Run(now, now + 80, 2);
    now += 100;
    EXPECT_FALSE(queue_.runnable()) << "again after each run";
    Add(4 + 2 * k);
    ASSERT_TRUE(queue_.runnable()) << "all are back";
  }
}

TEST_F(GatheringTest, OnlyOneLaneWithoutADelayOfItsOwnGathers) {
  for (const BatchLimits& limits :
       {BatchLimits{.places = 2, .max_rows = 20}, BatchLimits{.places = 1, .max_rows = 20, .max_delay_nanos = 0}}) {
    InferenceQueue queue(kLimits, 16, limits);
    for (int k = 0; k < 3; ++k) Add(queue, "ann");
    const BatchPointer batch = queue.Start();
    Add(queue, "ann");
    queue.LeaveStages(*batch, 80 * kUnit);
    EXPECT_TRUE(queue.runnable()) << limits.places;
    EXPECT_EQ(queue.due_nanos(), InferenceQueue::kNever);
  }
}

TEST_F(GatheringTest, ADelayOfZeroIsOverWhateverTheClock) {
  InferenceQueue queue(kLimits, 16, {.places = 1, .max_rows = 20, .max_delay_nanos = 0});
  Add(queue, "ann", 2, "k", /*accepted_nanos=*/1000);
  EXPECT_TRUE(queue.runnable());
}

// --- Keys and rows.

NamedValues Inputs(std::vector<std::pair<std::string, at::Tensor>> tensors) {
  NamedValues values;
  for (auto& [name, tensor] : tensors) values.push_back({name, Value(tensor)});
  return values;
}

TEST(BatchRows, KeysTellWhatCanNotRunAsOne) {
  const at::Tensor x = at::full({2, 3}, 1.0f);
  const auto key = [](const NamedValues& inputs, ForwardRequest request = {}) { return BatchKeyOf(inputs, request); };
  const std::string plain = key(Inputs({{"x", x}}));
  ASSERT_NE(plain, "");
  EXPECT_EQ(key(Inputs({{"x", at::full({5, 3}, 2.0f)}})), plain) << "other rows";
  std::vector<std::string> others = {key(Inputs({{"y", x}})),
                                     key(Inputs({{"x", at::full({2, 4}, 1.0f)}})),
                                     key(Inputs({{"x", at::full({2, 3, 1}, 1.0f)}})),
                                     key(Inputs({{"x", x.to(at::kDouble)}})),
                                     key(Inputs({{"x", x}, {"y", x}})),
                                     key(Inputs({{"x", x}}), {.outputs = {"y"}}),
                                     key(Inputs({{"x", x}}), {.outputs = {"y", "z"}}),
                                     key(Inputs({{"x", x}}), {.outputs = {"y>1:z"}}),
                                     key(Inputs({{"x", x}}), {.priority = 1})};
  NamedValues tuple = Inputs({{"x", x}});
  tuple.tuple = true;
  others.push_back(key(tuple));
  others.push_back(plain);
  for (size_t i = 0; i < others.size(); ++i) {
    for (size_t k = 0; k < i; ++k) EXPECT_NE(others[i], others[k]) << i << ", " << k;
  }
}

TEST(BatchRows, WhatHasNoRowsOfItsOwnRunsByItself) {
  const at::Tensor x = at::full({2, 3}, 1.0f);
  EXPECT_EQ(BatchKeyOf({}, {}), "");
  EXPECT_EQ(BatchKeyOf(Inputs({{"x", at::full({0, 3}, 1.0f)}}), {}), "");
  EXPECT_EQ(BatchKeyOf(Inputs({{"x", at::full({}, 1.0f)}}), {}), "");
  EXPECT_EQ(BatchKeyOf(Inputs({{"x", x}, {"y", at::full({4}, 1.0f)}}), {}), "") << "rows of two kinds";
  EXPECT_EQ(BatchKeyOf({{"x", Value(x)}, {"y", Value(2)}}, {}), "");
  EXPECT_EQ(BatchKeyOf({{"x", Value(WholeTensor{x})}}, {}), "");
  EXPECT_EQ(BatchKeyOf(Inputs({{"x", x}}), {.micro_batches = 2}), "");
}

TEST(BatchRows, RowsComeApartAsTheyWereJoined) {
  const NamedValues joined =
      JoinRows({Inputs({{"x", at::full({1, 2}, 1.0f)}}), Inputs({{"x", at::full({3, 2}, 2.0f)}})});
  const std::vector<NamedValues> parted = *PartRows(joined, {1, 3});
  EXPECT_TRUE(parted[0][0].value.tensor()->equal(at::full({1, 2}, 1.0f)));
  EXPECT_TRUE(parted[1][0].value.tensor()->equal(at::full({3, 2}, 2.0f)));
  for (const NamedValues& one : parted) {
    EXPECT_EQ(one[0].value.tensor()->storage().nbytes(), one[0].value.tensor()->nbytes()) << "nobody holds all rows";
  }
  EXPECT_TRUE(AreInseparable(PartRows(joined, {1, 2}).status()));
  EXPECT_TRUE(AreInseparable(PartRows({{"y", Value(2)}}, {1, 3}).status()));
}

// --- Served.

class BatchingTest : public HostingFixture {
 protected:
  explicit BatchingTest(DynamicBatchingSpec spec = {.max_rows = 8, .micro_batch_rows = 3}) { batching_ = spec; }

  void SetUp() override {
    HostingFixture::SetUp();
    checked_ = control_->inferences().size();
    control_->HoldInference();
  }
  HandleName Infer(float value, int64_t rows = 2, const std::string& caller = "ann", int64_t reply_bytes = 0) {
    InferCall call;
    call.inputs.push_back(X(value, rows));
    call.reply_bytes = reply_bytes;
    return *gpt_->Infer(Caller(caller), std::move(call))->outputs;
  }
  // Takes the only place, and returns when it is taken.
  void TakeThePlace() {
    Infer(0);
    control_->AwaitInferences(1);
  }
  // Of the pipeline after its creation: rows and micro-batches.
  std::vector<std::pair<int64_t, std::optional<int>>> Runs() const {
    auto runs = control_->inferences();
    runs.erase(runs.begin(), runs.begin() + static_cast<int64_t>(checked_));
    return runs;
  }

  size_t checked_ = 0;
};

TEST_F(BatchingTest, WhatWaitsTogetherRunsAsOneAndEachGetsItsRows) {
  TakeThePlace();
  const std::vector<HandleName> waiting = {Infer(1), Infer(2, 1), Infer(3, 4)};
  control_->ResumeInference();
  for (size_t k = 0; k < waiting.size(); ++k) {
    const float value = static_cast<float>(k + 1);
    EXPECT_EQ(ValueOf(waiting[k]), value);
    const at::Tensor rows = (*handles_->Pin("ann", waiting[k])->tensors())[0].tensor;
    EXPECT_TRUE(rows.equal(at::full({k == 0 ? 2 : k == 1 ? 1 : 4}, value))) << rows;
  }
  EXPECT_THAT(Runs(), ElementsAre(Pair(2, 1), Pair(7, 3))) << "seven rows in micro-batches of three";
  EXPECT_EQ(Metrics()->inference_runs.value(), 2);
  EXPECT_EQ(Metrics()->batches_started[BatchMode::kInfer].value(), 4);
  EXPECT_EQ(memory_.BytesOf(MemoryClass::kInputs), 0);
}

TEST_F(BatchingTest, ARequestWithMoreRowsThanABatchRunsByItself) {
  TakeThePlace();
  const std::vector<HandleName> waiting = {Infer(1, 20), Infer(2)};
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(waiting[0]), 1);
  EXPECT_EQ(ValueOf(waiting[1]), 2);
  EXPECT_THAT(Runs(), ElementsAre(Pair(2, 1), Pair(20, 7), Pair(2, 1)));
}

TEST_F(BatchingTest, ARequestOfManyRowsHasNoMoreMicroBatchesThanACallMayAskFor) {
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(Infer(1, 100'000)), 1);
  EXPECT_THAT(Runs(), ElementsAre(Pair(100'000, 4096)));
}

TEST_F(BatchingTest, OnlyWhoIsToBlameFails) {
  control_->FailRowsOf(13);
  TakeThePlace();
  const std::vector<HandleName> waiting = {Infer(1), Infer(13), Infer(3)};
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(waiting[0]), 1);
  EXPECT_EQ(ErrorOf(waiting[1]), "LAYER_FAILED");
  EXPECT_EQ(ValueOf(waiting[2]), 3);
  EXPECT_EQ(Metrics()->inference_runs.value(), 5) << "one before, all together, each of them again";
  EXPECT_EQ(Metrics()->batches[BatchMode::kInfer][BatchOutcome::kFailed].value(), 1);
  EXPECT_EQ(Metrics()->runs_active[BatchMode::kInfer].value(), 0);
}

TEST_F(BatchingTest, AnExceptionInABatchCostsNoRequest) {
  TakeThePlace();
  const std::vector<HandleName> waiting = {Infer(1), Infer(2)};
  control_->ThrowIn("InferAsync");
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(waiting[0]), 1);
  EXPECT_EQ(ValueOf(waiting[1]), 2);
}

TEST_F(BatchingTest, ABatchIsCancelledWithTheLastOfItsRequests) {
  TakeThePlace();
  const std::vector<HandleName> waiting = {Infer(1), Infer(2), Infer(3)};
  control_->ResumeOneInference();
  control_->AwaitInferences(1);
  ASSERT_TRUE(handles_->RequestCancel("ann", waiting[0]).ok());
  EXPECT_EQ(Settled(waiting[0]).state, HandleState::kCancelled) << "at once";
  control_->ResumeOneInference();
  EXPECT_EQ(ValueOf(waiting[1]), 2);
  EXPECT_EQ(ValueOf(waiting[2]), 3);
  EXPECT_EQ(Metrics()->batches[BatchMode::kInfer][BatchOutcome::kCancelled].value(), 1);

  TakeThePlace();
  const std::vector<HandleName> last = {Infer(1, 1), Infer(2, 2)};
  control_->ResumeOneInference();
  control_->AwaitInferences(1);
  ASSERT_TRUE(handles_->RequestCancel("ann", last[1]).ok());
  control_->ResumeOneInference();
  EXPECT_EQ(ValueOf(last[0]), 1);
  Infer(7, 1);
  control_->AwaitInferences(1);  // that of before has been counted
  EXPECT_EQ(gpt_->inference_times().runs.at(3).count, 1) << "though the last of its calls was cancelled";
  control_->ResumeOneInference();

  TakeThePlace();
  const std::vector<HandleName> more = {Infer(4), Infer(5)};
  control_->ResumeOneInference();
  control_->AwaitInferences(1);
  const size_t runs = Runs().size();
  for (const HandleName& one : more) ASSERT_TRUE(handles_->RequestCancel("ann", one).ok());
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(Infer(6)), 6);
  EXPECT_EQ(Metrics()->batches[BatchMode::kInfer][BatchOutcome::kCancelled].value(), 4);
  EXPECT_EQ(Runs().size(), runs + 1) << "nobody ran what nobody wants";
}

TEST_F(BatchingTest, AModelWhoseRowsDoNotComeApartIsNotBatchedAgain) {
  control_->SumRows();
  TakeThePlace();
  const std::vector<HandleName> waiting = {Infer(1), Infer(2)};
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(waiting[0]), 2);
  EXPECT_EQ(ValueOf(waiting[1]), 4);
  EXPECT_THAT(Runs(), ElementsAre(Pair(2, 1), Pair(4, 2), Pair(2, std::nullopt), Pair(2, std::nullopt)));
  control_->HoldInference();
  const std::vector<HandleName> later = {Infer(3), Infer(4)};
  control_->AwaitInferences(2);
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(later[0]), 6);
  EXPECT_EQ(ValueOf(later[1]), 8);
}

TEST_F(BatchingTest, WithoutMemoryForTheRowsOfAllEachRunsByItself) {
  TakeThePlace();
  const int64_t free = kMemory - memory_.bytes();
  const MemoryReservation held = *memory_.Take({.kind = MemoryClass::kModels}, free - 8);
  const std::vector<HandleName> waiting = {Infer(1), Infer(2)};
  control_->ResumeInference();
  EXPECT_EQ(ValueOf(waiting[0]), 1);
  EXPECT_EQ(ValueOf(waiting[1]), 2);
  EXPECT_THAT(Runs(), ElementsAre(Pair(2, 1), Pair(2, std::nullopt), Pair(2, std::nullopt)));
}

TEST_F(BatchingTest, AModelWhoseRowsReadEachOtherIsRefused) {
  control_->ResumeInference();
  EXPECT_TRUE(Create("scales").ok());
  control_->MixRows();  // two rows give two, which is not enough
  const absl::Status refused = Create("mixes").status();
  EXPECT_EQ(ReasonOf(refused), "SPEC_INVALID");
  EXPECT_EQ(ValuesOf(refused)["field"], "spec.dynamic_batching");
  control_->TellSigns();
  EXPECT_EQ(ReasonOf(Create("signs").status()), "SPEC_INVALID") << "what has no rounding must be equal";
  control_->SumRows();
  EXPECT_EQ(ReasonOf(Create("sums").status()), "SPEC_INVALID");
  batching_.reset();
  EXPECT_TRUE(Create("mixes").ok());
}

class PatientBatchingTest : public BatchingTest {
 protected:
  PatientBatchingTest() : BatchingTest({.max_rows = 6, .micro_batch_rows = 6, .max_delay_seconds = 30}) {}
};

TEST_F(PatientBatchingTest, AFullBatchRunsAtOnce) {
  control_->ResumeInference();
  const std::vector<HandleName> waiting = {Infer(1), Infer(2), Infer(3)};
  for (size_t k = 0; k < waiting.size(); ++k) EXPECT_EQ(ValueOf(waiting[k]), static_cast<float>(k + 1));
  EXPECT_THAT(Runs(), ElementsAre(Pair(6, 1)));
}

TEST_F(PatientBatchingTest, OnTheHostItDoesNotMatterWhatTheRepliesCarry) {
  control_->ResumeInference();
  const std::vector<HandleName> waiting = {Infer(1), Infer(2, 2, "ann", 1), Infer(3, 2, "ann", 1000)};
  for (size_t k = 0; k < waiting.size(); ++k) EXPECT_EQ(ValueOf(waiting[k]), static_cast<float>(k + 1));
  EXPECT_THAT(Runs(), ElementsAre(Pair(6, 1)));
}

TEST_F(PatientBatchingTest, ADrainWaitsForNoOthers) {
  control_->ResumeInference();
  const HandleName waiting = Infer(1);
  absl::Notification drained;
  gpt_->Drain(/*force=*/false, [&] { drained.Notify(); });
  drained.WaitForNotification();
  EXPECT_EQ(ValueOf(waiting), 1);
}

TEST_F(PatientBatchingTest, WhatIsDueRunsWithThoseThatAreThere) {
  control_->ResumeInference();
  const std::vector<HandleName> waiting = {Infer(1), Infer(2)};
  Advance(kDelay);
  EXPECT_EQ(ValueOf(waiting[0]), 1);
  EXPECT_EQ(ValueOf(waiting[1]), 2);
  EXPECT_THAT(Runs(), ElementsAre(Pair(4, 1)));
}

TEST_F(PatientBatchingTest, WhoIsCancelledWhileItGathersEndsAtOnceAndTheOtherRuns) {
  control_->ResumeInference();
  const HandleName gone = Infer(1);
  Advance(kDelay / 2);
  const HandleName other = Infer(2, 2, "bob");
  const auto depth = [&] { return Metrics()->queues[WorkQueue::kInfer].depth.value(); };
  EXPECT_EQ(depth(), 4) << "in micro-batches";
  ASSERT_TRUE(handles_->RequestCancel("ann", gone).ok());
  const HandleInfo info = Settled(gone);
  EXPECT_EQ(info.state, HandleState::kCancelled);
  EXPECT_EQ(ReasonOf(info.error), "WORK_CANCELLED");
  EXPECT_EQ(depth(), 2);
  Advance(kDelay / 2);
  EXPECT_THAT(Runs(), IsEmpty()) << "that was the time of the one that is gone";
  Advance(kDelay / 2);
  EXPECT_EQ(Settled(other, "bob").state, HandleState::kReady);
  EXPECT_THAT(Runs(), ElementsAre(Pair(2, 1)));
  EXPECT_EQ(depth(), 0);
  EXPECT_EQ(Metrics()->batches_started[BatchMode::kInfer].value(), 1);
  EXPECT_EQ(Metrics()->batches[BatchMode::kInfer][BatchOutcome::kCancelled].value(), 0) << "it had not begun";
}

TEST_F(BatchingTest, WhoIsCancelledWhileOthersAreWaitedForEndsAtOnceAndKeepsNobody) {
  const std::vector<HandleName> first = {Infer(0)};
  control_->AwaitInferences(1);
  const std::vector<HandleName> waiting = {Infer(1), Infer(2)};
  Advance(absl::Milliseconds(80));
  control_->ResumeInference();  // they wait 20 ms for the one that was answered
  EXPECT_EQ(ValueOf(first[0]), 0);
  ASSERT_TRUE(handles_->RequestCancel("ann", waiting[0]).ok());
  EXPECT_EQ(ErrorOf(waiting[0]), "WORK_CANCELLED");
  EXPECT_THAT(Runs(), ElementsAre(Pair(2, 1)));
  const HandleName back = Infer(3);
  EXPECT_EQ(ValueOf(waiting[1]), 2) << "all are there, and the clock stands still";
  EXPECT_EQ(ValueOf(back), 3);
  EXPECT_THAT(Runs(), ElementsAre(Pair(2, 1), Pair(4, 2)));
}

}  // namespace
}  // namespace penstock::testing
