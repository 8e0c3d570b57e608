#include "engine/handles/handle_store.h"

#include <gmock/gmock.h>

#include "tests/contract/handles/handle_fixture.h"
#include "tests/support/failing_new.h"

namespace penstock::testing {
namespace {

using HandleStoreTest = HandleFixture;

TEST_F(HandleStoreTest, NamesAreParsedStrictlyAndRoundTrip) {
  const HandleName name = Reserve();
  const absl::StatusOr<HandleName> parsed = HandleName::Parse(ToString(name));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, name);
  const std::string good = ToString(name);
  const std::vector<std::string> bad_names = {"",
                                              "pipelines/",
                                              good + "0",
                                              good.substr(0, good.size() - 1),
                                              "x" + good,
                                              "pipelines/Gpt/handles/" + ToString(name.id),
                                              "pipelines/../handles/" + ToString(name.id),
                                              "pipelines/gpt/handles/0000000G-00000000000000000000000000000000",
                                              std::string(65536, 'a')};
  for (const std::string& bad : bad_names) {
    EXPECT_EQ(ReasonOf(HandleName::Parse(bad).status()), "NAME_INVALID") << bad.substr(0, 80);
  }
  EXPECT_EQ(ValuesOf(HandleName::Parse("nonsense", "names[3]").status())["field"], "names[3]");
}

TEST_F(HandleStoreTest, AResultIsPendingThenReadyWithHeaders) {
  const HandleName name = Reserve();
  EXPECT_EQ(StateOf(name), HandleState::kPending);
  EXPECT_FALSE(store_->Get("ann", name)->expire_time.has_value());
  store_->Fulfil(name.id, Tensors());
  const HandleInfo info = *store_->Get("ann", name);
  EXPECT_EQ(info.state, HandleState::kReady);
  ASSERT_EQ(info.tensors.size(), 1);
  EXPECT_EQ(info.tensors[0], (TensorHeader{"y", DataType::kFp32, {4}, 16}));
  EXPECT_EQ(info.bytes, 16);
  EXPECT_EQ(info.expire_time, clock_.WallNow() + absl::Seconds(60));
}

TEST_F(HandleStoreTest, WhoWaitsForAHandleThatIsGivenUpHearsSo) {
  for (const bool released : {false, true}) {
    const HandleName name = Reserve();
    std::vector<HandlePin> pins;
    pins.push_back(*store_->Pin("ann", name));
    bool woken = false;
    store_->OnContents(pins, [&woken] { woken = true; });
    if (released) ASSERT_TRUE(store_->Release("ann", name).ok());
    EXPECT_FALSE(woken);
    store_->Withdraw(name.id);
    EXPECT_TRUE(woken) << (released ? "after a release" : "");
    EXPECT_EQ(ReasonOf(pins[0].tensors().status()), "HANDLE_RELEASED");
  }
}

// Each allocation fails once, one after another.
TEST_F(HandleStoreTest, AReservationThatFindsNoMemoryCountsNothing) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  int thrown = 0;
  for (bool failed = true; failed;) {
    const std::string owner = "owner-" + std::to_string(thrown);  // a new one: nothing of it is there yet
    HandleStore::Reservation reservation = {
        .owner = owner, .pipeline = owner, .kind = HandleKind::kValue, .method = "Infer", .bytes = 8};
    FailNewOnce(thrown);
    try {
      (void)store_->Reserve(std::move(reservation));
    } catch (const std::bad_alloc&) {
      ++thrown;
      EXPECT_EQ(store_->TotalCounts().created, 0);
      EXPECT_EQ(store_->TotalCounts().bytes, 0);
      EXPECT_TRUE(store_->UseByOwner().empty());
      EXPECT_TRUE(store_->List(owner, "", 0, 1).handles.empty());
    }
    failed = StopFailingNew();
  }
  EXPECT_GT(thrown, 5);
  EXPECT_EQ(store_->TotalCounts().created, 1);
}

// The same of the end of a handle's work, and of its release: what was begun is whole, or may be repeated.
TEST_F(HandleStoreTest, AnEndThatFindsNoMemoryIsWholeOrMayBeRepeated) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  int thrown = 0;
  const auto sweep = [&](const std::function<void(const HandleName&)>& end, HandleState wanted) {
    bool failed = true;
    for (int spared = 0; failed; ++spared) {
      SCOPED_TRACE(spared);
      const HandleName name = Reserve();
      std::vector<HandlePin> pins;
      pins.push_back(*store_->Pin("ann", name));
      std::vector<HandleState> told;
      told.reserve(2);
      bool content = false;
      store_->OnSettled("ann", {name}, HandleStore::WaitMode::kAll, std::numeric_limits<int64_t>::max(),
                        [&told](std::vector<HandleStore::HandleAnswer> answers) {
                          told.push_back(answers[0].ok() ? answers[0]->state : HandleState::kReleased);
                        });
      store_->OnContents(pins, [&content] { content = true; });
      FailNewOnce(spared);
      try {
        end(name);
      } catch (const std::bad_alloc&) {
        ++thrown;
      }
      failed = StopFailingNew();
      end(name);  // changes nothing where it was whole
      const absl::StatusOr<HandleInfo> info = store_->Get("ann", name);
      EXPECT_EQ(info.ok() ? info->state : HandleState::kReleased, wanted);
      EXPECT_EQ(told, std::vector<HandleState>{wanted}) << "once";
      if (wanted == HandleState::kReleased) {
        EXPECT_FALSE(content) << "the pin waits on";
        store_->Fulfil(name.id, Tensors());
      } else {
        Advance(absl::Seconds(61));
        EXPECT_EQ(ReasonOfGet(name), "HANDLE_EXPIRED") << "its lease ran";
      }
      EXPECT_TRUE(content);
      EXPECT_TRUE(pins[0].tensors().ok() || wanted != HandleState::kReady);
      pins.clear();
      EXPECT_EQ(store_->TotalCounts().bytes, 0);
      EXPECT_EQ(store_->TotalCounts().live(), 0);
      EXPECT_TRUE(store_->UseByOwner().empty());
    }
  };
  sweep([this](const HandleName& name) { store_->Fulfil(name.id, Tensors()); }, HandleState::kReady);
  sweep([this](const HandleName& name) { store_->Cancel(name.id); }, HandleState::kCancelled);
  sweep([this](const HandleName& name) { (void)store_->Release("ann", name); }, HandleState::kReleased);
  EXPECT_GT(thrown, 10);
}

// Destructors call it: an exception would end the process.
TEST_F(HandleStoreTest, APinIsDroppedWithoutMemory) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  for (const bool ready : {true, false}) {
    const HandleName name = ready ? Ready() : Reserve();
    std::vector<HandlePin> pins;
    pins.push_back(*store_->Pin("ann", name));
    ASSERT_TRUE(store_->Release("ann", name).ok());
    FailNew();
    pins.clear();
    EXPECT_FALSE(StopFailingNew());
    EXPECT_EQ(store_->TotalCounts().bytes, 0);
  }
}

TEST_F(HandleStoreTest, AFailedHandleTellsItsErrorAtEachUse) {
  const HandleName name = Reserve();
  store_->Fail(name.id, Error(absl::StatusCode::kInternal, "BUG", "broken").With("stage", "1"));
  EXPECT_EQ(ReasonOf(store_->Get("ann", name)->error), "BUG");
  const HandlePin pin = *store_->Pin("ann", name);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ReasonOf(pin.tensors().status()), "BUG");
    EXPECT_EQ(ValuesOf(pin.tensors().status())["handle"], ToString(name));
  }
}

TEST_F(HandleStoreTest, ForeignGuessedAndOldHandlesAreRefusedWithTheirReason) {
  const HandleName name = Ready();
  EXPECT_EQ(ReasonOfGet(name, "bob"), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOfGet({"mlp", name.id}), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOfGet({"gpt", RandomHandleId(Epoch(7))}), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOfGet({"gpt", RandomHandleId(Epoch(6))}), "EPOCH_MISMATCH");
  EXPECT_EQ(ReasonOf(store_->Release("bob", name).status()), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOf(store_->Pin("bob", name).status()), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOf(store_->RequestCancel("bob", name).status()), "HANDLE_NOT_FOUND");
  ASSERT_TRUE(store_->Release("ann", name).ok());
  EXPECT_EQ(ReasonOfGet(name, "bob"), "HANDLE_NOT_FOUND") << "a tombstone is its owner's only";
}

TEST_F(HandleStoreTest, KindsAreNotConfused) {
  const HandleName value = Ready();
  EXPECT_EQ(ReasonOf(store_->Pin("ann", value)->graph().status()), "HANDLE_KIND");
  const HandleName graph = Reserve(HandleKind::kGraph);
  EXPECT_EQ(ReasonOf(store_->Pin("ann", graph)->tensors().status()), "HANDLE_KIND");
  EXPECT_EQ(ReasonOf(store_->Pin("ann", graph)->graph().status()), "HANDLE_PENDING");
}

TEST_F(HandleStoreTest, TheLeaseEndsOnItsNanosecond) {
  const HandleName name = Ready();
  Advance(absl::Seconds(60) - absl::Nanoseconds(1));
  EXPECT_EQ(StateOf(name), HandleState::kReady);
  Advance(absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_EXPIRED");
  EXPECT_EQ(store_->TotalCounts().expired, 1) << "by the timer, not by the look";
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
}

TEST_F(HandleStoreTest, ALateTimerDoesNotProlongALease) {
  const HandleName name = Ready();
  absl::Notification blocked;
  absl::Notification go;
  timers_->Add(clock_.NowNanos(), [&] {
    blocked.Notify();
    go.WaitForNotification();
  });
  blocked.WaitForNotification();
  clock_.Advance(absl::Seconds(60));
  EXPECT_EQ(ReasonOf(store_->Renew("ann", name, absl::ZeroDuration()).status()), "HANDLE_EXPIRED");
  EXPECT_TRUE(store_->List("ann", "", 0, 10).handles.empty());
  go.Notify();
  timers_->Quiesce();  // the timer's thread still looks at `go`
}

TEST_F(HandleStoreTest, AHandleMayBeFetchedAgainAndAgain) {
  const HandleName name = Ready();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(store_->Pin("ann", name)->tensors().ok());
    EXPECT_EQ(store_->Get("ann", name)->bytes, 16);
  }
}

TEST_F(HandleStoreTest, EveryUseOfAHandleSharesItsContent) {
  const HandleName name = Ready();
  const absl::StatusOr<HandlePin> pin = store_->Pin("ann", name);
  const absl::StatusOr<HandlePin> other = store_->Pin("ann", name);
  EXPECT_EQ(pin->values()->get(), pin->values()->get()) << "no copy is made";
  EXPECT_EQ(pin->values()->get(), other->values()->get());
}

TEST_F(HandleStoreTest, TheLeaseStartsAtSettlingAndPendingNeverExpires) {
  const HandleName name = Reserve();
  Advance(absl::Hours(5));
  EXPECT_EQ(StateOf(name), HandleState::kPending);
  store_->Fulfil(name.id, Tensors());
  Advance(absl::Seconds(59));
  EXPECT_EQ(StateOf(name), HandleState::kReady);
}

TEST_F(HandleStoreTest, RenewTakesTheLaterEndAndRevivesNothing) {
  const HandleName name = Ready();
  ASSERT_TRUE(store_->Renew("ann", name, absl::Seconds(10)).ok());  // earlier than what it has
  Advance(absl::Seconds(59));
  ASSERT_TRUE(store_->Renew("ann", name, absl::Seconds(10)).ok());
  Advance(absl::Seconds(9));
  EXPECT_EQ(StateOf(name), HandleState::kReady);
  Advance(absl::Seconds(1));
  EXPECT_EQ(ReasonOf(store_->Renew("ann", name, absl::Seconds(10)).status()), "HANDLE_EXPIRED");
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_EXPIRED");
}

TEST_F(HandleStoreTest, RenewingAllLeavesNoneOutHoweverManyThereAre) {
  for (int i = 0; i < 2001; ++i) Reserve();
  EXPECT_EQ(store_->RenewAll("ann", "gpt", absl::Minutes(5))->size(), 2001);
}

TEST_F(HandleStoreTest, LeasesOutsideTheLimitsAreRefused) {
  const HandleName name = Ready();
  for (absl::Duration lease : {absl::Seconds(-1), absl::Seconds(4), absl::Hours(2), absl::InfiniteDuration()}) {
    const absl::Status status = store_->Renew("ann", name, lease).status();
    EXPECT_EQ(ReasonOf(status), "FIELD_INVALID") << lease;
    EXPECT_EQ(ValuesOf(status)["field"], "lease");
  }
}

TEST_F(HandleStoreTest, ReleasingTwiceIsFineAndAnExpiredHandleStaysExpired) {
  const HandleName name = Ready();
  EXPECT_EQ(store_->Release("ann", name)->state, HandleState::kReleased);
  EXPECT_EQ(store_->Release("ann", name)->state, HandleState::kReleased);
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED");
  EXPECT_EQ(store_->TotalCounts().released, 1);
  const HandleName expired = Ready();
  Advance(absl::Seconds(61));
  EXPECT_EQ(store_->Release("ann", expired)->state, HandleState::kExpired);
}

TEST_F(HandleStoreTest, TombstonesLastTenMinutes) {
  const HandleName name = Ready();
  ASSERT_TRUE(store_->Release("ann", name).ok());
  Advance(absl::Minutes(10) - absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED");
  Advance(absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_NOT_FOUND");
}

TEST_F(HandleStoreTest, ATombstoneLastsAsLongAsALongerLeaseDid) {
  const HandleName name = Ready();
  ASSERT_TRUE(store_->Renew("ann", name, absl::Minutes(30)).ok());
  Advance(absl::Minutes(30) - absl::Nanoseconds(1));
  EXPECT_EQ(StateOf(name), HandleState::kReady);
  Advance(absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_EXPIRED");
  Advance(absl::Minutes(30) - absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_EXPIRED");
  Advance(absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_NOT_FOUND");
}

TEST_F(HandleStoreTest, TombstonesAreCounted) {
  MemoryLedger ledger({.limit_bytes = 1 << 20});
  HandleStore store({.epoch = Epoch(7), .max_tombstones = 2, .memory = &ledger}, &clock_, timers_.get());
  const auto bury = [&] {
    const absl::StatusOr<HandleName> name = store.Reserve({.owner = "ann", .pipeline = "gpt"});
    ASSERT_TRUE(name.ok() && store.Release("ann", *name).ok());
  };
  bury();
  const int64_t one = ledger.BytesOf(MemoryClass::kAnswers);
  EXPECT_GT(one, static_cast<int64_t>(2 * sizeof(HandleId) + 2 * sizeof(std::string)));
  bury();
  EXPECT_EQ(ledger.BytesOf(MemoryClass::kAnswers), 2 * one);
  bury();
  EXPECT_EQ(ledger.BytesOf(MemoryClass::kAnswers), 2 * one) << "the oldest has gone";
  Advance(absl::Minutes(10));
  bury();
  EXPECT_EQ(ledger.BytesOf(MemoryClass::kAnswers), one) << "the time of the others is over";
  EXPECT_EQ(ledger.bytes(), one);
}

class FewTombstonesTest : public HandleFixture {
 protected:
  FewTombstonesTest() : HandleFixture({.max_tombstones = 3}) {}
};

TEST_F(FewTombstonesTest, TheOldestGoFirst) {
  std::vector<HandleName> names;
  for (int i = 0; i < 5; ++i) {
    names.push_back(Ready());
    ASSERT_TRUE(store_->Release("ann", names.back()).ok());
  }
  EXPECT_EQ(ReasonOfGet(names[1]), "HANDLE_NOT_FOUND");
  EXPECT_EQ(ReasonOfGet(names[2]), "HANDLE_RELEASED");
}

class SmallBudgetTest : public HandleFixture {
 protected:
  SmallBudgetTest()
      : HandleFixture({.budget = {.handles = 4, .handles_per_owner = 3, .bytes = 100, .bytes_per_owner = 64}}) {}
  absl::Status TryReserve(const std::string& owner, int64_t bytes) {
    return store_->Reserve({.owner = owner, .pipeline = "gpt", .bytes = bytes}).status();
  }
};

TEST_F(SmallBudgetTest, RefusesBeyondEachLimitAndNamesIt) {
  EXPECT_TRUE(TryReserve("ann", 64).ok());
  absl::Status refused = TryReserve("ann", 1);
  EXPECT_EQ(ReasonOf(refused), "HANDLE_BUDGET");
  EXPECT_EQ(ValuesOf(refused)["limit"], "handle-bytes-per-caller");
  EXPECT_EQ(ValuesOf(TryReserve("bob", 37))["limit"], "handle-bytes");
  EXPECT_TRUE(TryReserve("bob", 36).ok());
  EXPECT_TRUE(TryReserve("ann", 0).ok());
  EXPECT_TRUE(TryReserve("ann", 0).ok());
  EXPECT_EQ(ValuesOf(TryReserve("ann", 0))["limit"], "handles_per_owner");
  EXPECT_EQ(ValuesOf(TryReserve("cid", 0))["limit"], "handles");
  EXPECT_EQ(store_->TotalCounts().bytes, 100) << "a refusal takes nothing";
}

TEST_F(SmallBudgetTest, AResultLargerThanReservedFailsIfItDoesNotFit) {
  const HandleName name = Reserve();
  store_->Fulfil(name.id, Tensors(17));  // 68 bytes
  EXPECT_EQ(StateOf(name), HandleState::kFailed);
  EXPECT_EQ(ReasonOf(store_->Get("ann", name)->error), "HANDLE_BUDGET");
  const HandleName fits = Reserve();
  store_->Fulfil(fits.id, Tensors(16));
  EXPECT_EQ(StateOf(fits), HandleState::kReady);
  EXPECT_EQ(store_->TotalCounts().bytes, 64);
}

TEST_F(SmallBudgetTest, WhatFailsGivesItsReservedBytesBack) {
  const HandleName name = *store_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = 64});
  store_->Fail(name.id, absl::InternalError("no"));
  EXPECT_EQ(StateOf(name), HandleState::kFailed);
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
  EXPECT_TRUE(TryReserve("ann", 64).ok());
}

TEST_F(SmallBudgetTest, WhatIsHeldLaterMustFitNow) {
  const auto reserve = [&](int64_t later) {
    return store_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = 60, .later_bytes = later}).status();
  };
  EXPECT_EQ(ValuesOf(reserve(5))["limit"], "handle-bytes-per-caller");
  EXPECT_TRUE(reserve(4).ok());
  EXPECT_EQ(store_->TotalCounts().bytes, 60) << "held are those of now";
}

TEST_F(SmallBudgetTest, BytesComeBackWithTheLastPin) {
  const HandleName name = Reserve();
  store_->Fulfil(name.id, Tensors(16));
  HandlePin pin = *store_->Pin("ann", name);
  ASSERT_TRUE(store_->Release("ann", name).ok());
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED");
  EXPECT_EQ(store_->TotalCounts().bytes, 64);
  EXPECT_EQ(ValuesOf(TryReserve("ann", 1))["limit"], "handle-bytes-per-caller");
  EXPECT_TRUE(pin.tensors().ok());
  pin = HandlePin();
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
  EXPECT_TRUE(TryReserve("ann", 64).ok());
}

TEST_F(HandleStoreTest, WaitingForAllAndForAny) {
  const HandleName a = Reserve();
  const HandleName b = Reserve();
  int all = 0;
  int any = 0;
  store_->OnSettled("ann", {a, b}, HandleStore::WaitMode::kAll, kNever, [&](auto) { ++all; });
  store_->OnSettled("ann", {a, b}, HandleStore::WaitMode::kAny, kNever, [&](auto answers) {
    ++any;
    EXPECT_EQ(answers[0]->state, HandleState::kReady);
    EXPECT_EQ(answers[1]->state, HandleState::kPending);
  });
  store_->Fulfil(a.id, Tensors());
  EXPECT_EQ(any, 1);
  EXPECT_EQ(all, 0);
  store_->Cancel(b.id);
  EXPECT_EQ(any, 1);
  EXPECT_EQ(all, 1);
}

TEST_F(HandleStoreTest, AWaitEndsAtItsDeadlineWithTheStatesOfThen) {
  const HandleName name = Reserve();
  std::vector<HandleStore::HandleAnswer> seen;
  const int64_t deadline = clock_.NowNanos() + 1000;
  store_->OnSettled("ann", {name}, HandleStore::WaitMode::kAll, deadline, [&](auto answers) { seen = answers; });
  clock_.AdvanceNanos(999);
  timers_->SettleForTest();
  EXPECT_TRUE(seen.empty());
  clock_.AdvanceNanos(1);
  timers_->SettleForTest();
  ASSERT_EQ(seen.size(), 1);
  EXPECT_EQ(seen[0]->state, HandleState::kPending);
}

TEST_F(HandleStoreTest, AWaitNeverHangsOnWhatDoesNotExist) {
  const HandleName gone = Ready();
  ASSERT_TRUE(store_->Release("ann", gone).ok());
  bool called = false;
  store_->OnSettled("ann", {gone, {"gpt", RandomHandleId(Epoch(7))}}, HandleStore::WaitMode::kAll, kNever,
                    [&](auto answers) {
                      called = true;
                      EXPECT_EQ(ReasonOf(answers[0].status()), "HANDLE_RELEASED");
                      EXPECT_EQ(ReasonOf(answers[1].status()), "HANDLE_NOT_FOUND");
                    });
  EXPECT_TRUE(called);
  const HandleName pending = Reserve();
  called = false;
  store_->OnSettled("ann", {pending}, HandleStore::WaitMode::kAll, kNever, [&](auto answers) {
    called = true;
    EXPECT_EQ(ReasonOf(answers[0].status()), "HANDLE_RELEASED");
  });
  ASSERT_TRUE(store_->Release("ann", pending).ok());
  EXPECT_TRUE(called);
}

TEST_F(HandleStoreTest, ACancelledWaitIsNotCalled) {
  const HandleName name = Reserve();
  const auto wait = store_->OnSettled("ann", {name}, HandleStore::WaitMode::kAll, kNever, [](auto) { FAIL(); });
  EXPECT_TRUE(store_->CancelWait(wait));
  EXPECT_FALSE(store_->CancelWait(wait));
  store_->Fulfil(name.id, Tensors());
}

TEST_F(HandleStoreTest, ACancelledWaitLeavesNoTimer) {
  const HandleName name = Reserve();
  const int64_t before = timers_->size();
  const auto wait = store_->OnSettled("ann", {name}, HandleStore::WaitMode::kAll, clock_.NowNanos() + 1'000'000'000,
                                      [](auto) { FAIL(); });
  EXPECT_EQ(timers_->size(), before + 1);
  EXPECT_TRUE(store_->CancelWait(wait));
  EXPECT_EQ(timers_->size(), before);
}

TEST_F(HandleStoreTest, CancelAsksTheProducerAndObeysItsAnswer) {
  const auto willing = std::make_shared<PuppetProducer>(CancelEffect::kCancelled);
  const HandleName a = Reserve(HandleKind::kValue, willing);
  EXPECT_EQ(*store_->RequestCancel("ann", a), CancelEffect::kCancelled);
  EXPECT_EQ(StateOf(a), HandleState::kCancelled);
  EXPECT_EQ(ReasonOf(store_->Get("ann", a)->error), "WORK_CANCELLED");
  EXPECT_EQ(*store_->RequestCancel("ann", a), CancelEffect::kCancelled);
  EXPECT_EQ(willing->cancels, 1);
  const HandleName b = Reserve(HandleKind::kOutcome, std::make_shared<PuppetProducer>(CancelEffect::kNotCancellable));
  EXPECT_EQ(*store_->RequestCancel("ann", b), CancelEffect::kNotCancellable);
  EXPECT_EQ(StateOf(b), HandleState::kPending);
  EXPECT_EQ(*store_->RequestCancel("ann", Ready()), CancelEffect::kNotCancellable);
  const HandleName later = Reserve(HandleKind::kValue, std::make_shared<PuppetProducer>(CancelEffect::kCancelling));
  EXPECT_EQ(*store_->RequestCancel("ann", later), CancelEffect::kCancelling);
  EXPECT_EQ(StateOf(later), HandleState::kPending) << "its producer tells";
}

TEST_F(HandleStoreTest, APinnedPendingHandleKeepsItsProducerAndItsResult) {
  const auto producer = std::make_shared<PuppetProducer>(CancelEffect::kCancelled);
  const HandleName name = Reserve(HandleKind::kValue, producer);
  std::vector<HandlePin> pins;
  pins.push_back(*store_->Pin("ann", name));
  ASSERT_TRUE(store_->Release("ann", name).ok());
  EXPECT_EQ(producer->abandons, 0);
  bool ready = false;
  store_->OnContents(pins, [&] { ready = true; });
  EXPECT_FALSE(ready);
  store_->Fulfil(name.id, Tensors());
  EXPECT_TRUE(ready);
  EXPECT_TRUE(pins[0].tensors().ok());
  pins.clear();
  EXPECT_EQ(store_->TotalCounts().bytes, 0);

  const HandleName unneeded = Reserve(HandleKind::kValue, producer);
  pins.push_back(*store_->Pin("ann", unneeded));
  ASSERT_TRUE(store_->Release("ann", unneeded).ok());
  pins.clear();
  EXPECT_EQ(producer->abandons, 1) << "with the last pin";
}

TEST_F(HandleStoreTest, InvalidateFreesAReadyGraphAndTellsWhy) {
  const HandleName name = Reserve(HandleKind::kGraph);
  auto freed = std::make_shared<bool>(false);
  std::shared_ptr<int> token(new int(0), [freed](int* p) {
    delete p;
    *freed = true;
  });
  store_->Fulfil(name.id, std::shared_ptr<Graph>(token, reinterpret_cast<Graph*>(token.get())));
  token.reset();
  EXPECT_EQ(store_->CountsOf("gpt").open_graphs, 1);
  store_->Invalidate(name.id, Error(absl::StatusCode::kFailedPrecondition, "GRAPH_STALE", "old"));
  EXPECT_TRUE(*freed);
  EXPECT_EQ(StateOf(name), HandleState::kFailed);
  EXPECT_EQ(ReasonOf(store_->Pin("ann", name)->graph().status()), "GRAPH_STALE");
  EXPECT_EQ(store_->CountsOf("gpt").open_graphs, 0);
}

TEST_F(HandleStoreTest, ListsOwnHandlesInPages) {
  for (int i = 0; i < 5; ++i) Ready();
  ASSERT_TRUE(store_->Reserve({.owner = "bob", .pipeline = "gpt"}).ok());
  ASSERT_TRUE(store_->Reserve({.owner = "ann", .pipeline = "mlp"}).ok());
  const HandlePage first = store_->List("ann", "gpt", 0, 3);
  ASSERT_EQ(first.handles.size(), 3);
  ASSERT_NE(first.next, 0);
  const HandlePage second = store_->List("ann", "gpt", first.next, 3);
  EXPECT_EQ(second.handles.size(), 2);
  EXPECT_EQ(second.next, 0);
  EXPECT_GT(second.handles[0].serial, first.handles[2].serial);
  EXPECT_EQ(store_->List("ann", "", 0, 100).handles.size(), 6);
  EXPECT_EQ(store_->RenewAll("ann", "gpt", absl::Minutes(5))->size(), 5);
  Advance(absl::Minutes(4));
  EXPECT_EQ(store_->List("ann", "gpt", 0, 100).handles.size(), 5);
}

TEST_F(HandleStoreTest, CountsAgreeWithTheMetrics) {
  Reserve();
  Ready();
  store_->Fail(Reserve().id, absl::InternalError("x"));
  store_->Cancel(Reserve().id);
  EXPECT_EQ(metrics_.handles[HandleGauge::kPending].value(), 1);
  EXPECT_EQ(metrics_.handles[HandleGauge::kReady].value(), 1);
  EXPECT_EQ(metrics_.handles[HandleGauge::kFailed].value(), 2);
  EXPECT_EQ(metrics_.handle_bytes[HandleTier::kHost].value(), 16);
  EXPECT_EQ(store_->CountsOf("gpt").live(), 4);
  store_->ReleasePipeline("gpt");
  EXPECT_EQ(store_->TotalCounts().live(), 0);
  EXPECT_EQ(metrics_.handles_ended[HandleEnd::kReleased].value(), 4);
  EXPECT_EQ(metrics_.handles_ended[HandleEnd::kCancelled].value(), 1);
  EXPECT_EQ(metrics_.handle_bytes[HandleTier::kHost].value(), 0);
}

TEST_F(HandleStoreTest, AWithdrawnReservationLeavesNoTrace) {
  const HandleName name = Reserve();
  store_->Withdraw(name.id);
  EXPECT_EQ(ReasonOfGet(name), "HANDLE_NOT_FOUND");
  EXPECT_EQ(store_->TotalCounts().created, 0);
  EXPECT_EQ(store_->TotalCounts().live(), 0);
}

TEST_F(HandleStoreTest, CloseFailsWhatIsPendingAndAnswersEveryWait) {
  const HandleName name = Reserve();
  bool called = false;
  store_->OnSettled("ann", {name}, HandleStore::WaitMode::kAll, kNever, [&](auto) { called = true; });
  store_->Close();
  EXPECT_TRUE(called);
  EXPECT_EQ(ReasonOf(store_->Get("ann", name)->error), "DRAINING");
  EXPECT_EQ(ReasonOf(store_->Reserve({.owner = "ann", .pipeline = "gpt"}).status()), "DRAINING");
}

}  // namespace
}  // namespace penstock::testing
