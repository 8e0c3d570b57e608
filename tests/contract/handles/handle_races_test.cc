// Two things at once, in both orders and side by side: whichever comes first, both sides see one of the two legal ends.

#include <gmock/gmock.h>

#include <functional>

#include "absl/synchronization/blocking_counter.h"
#include "engine/base/thread.h"
#include "tests/contract/handles/handle_fixture.h"

namespace penstock::testing {
namespace {

constexpr int kRounds = 200;

class HandleRacesTest : public HandleFixture {
 protected:
  // Runs both orders one after the other, and then both at once, each round on a fresh handle; with and without a pin.
  void Race(const std::function<HandleName()>& make, const std::function<void(const HandleName&)>& one,
            const std::function<void(const HandleName&)>& other, const std::function<void(const HandleName&)>& check) {
    for (const bool pinned : {false, true}) {
      for (int round = 0; round < kRounds + 2; ++round) {
        const HandleName name = make();
        HandlePin pin;
        if (pinned) pin = *store_->Pin("ann", name);
        if (round == 0) {
          one(name);
          other(name);
        } else if (round == 1) {
          other(name);
          one(name);
        } else {
          absl::Notification go;
          Thread a("one", [&] {
            go.WaitForNotification();
            one(name);
          });
          Thread b("other", [&] {
            go.WaitForNotification();
            other(name);
          });
          go.Notify();
          a.Join();
          b.Join();
        }
        check(name);
        pin = HandlePin();
        store_->Release("ann", name).IgnoreError();
      }
    }
    EXPECT_EQ(store_->TotalCounts().live(), 0);
    EXPECT_EQ(store_->TotalCounts().bytes, 0) << "nothing leaks";
  }

  std::function<HandleName()> Pending() {
    return [this] { return Reserve(HandleKind::kValue, std::make_shared<PuppetProducer>(CancelEffect::kCancelled)); };
  }
  std::function<void(const HandleName&)> Settle() {
    return [this](const HandleName& name) { store_->Fulfil(name.id, Tensors()); };
  }
  std::function<void(const HandleName&)> Release() {
    return [this](const HandleName& name) { ASSERT_TRUE(store_->Release("ann", name).ok()); };
  }
};

TEST_F(HandleRacesTest, SettleAndCancel) {
  Race(
      Pending(), Settle(), [this](const HandleName& name) { ASSERT_TRUE(store_->RequestCancel("ann", name).ok()); },
      [this](const HandleName& name) {
        EXPECT_THAT(StateOf(name), ::testing::AnyOf(HandleState::kReady, HandleState::kCancelled));
      });
}

TEST_F(HandleRacesTest, SettleAndRelease) {
  Race(Pending(), Settle(), Release(),
       [this](const HandleName& name) { EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED"); });
}

TEST_F(HandleRacesTest, ReleaseAndUse) {
  Race([this] { return Ready(); }, Release(),
       [this](const HandleName& name) {
         absl::StatusOr<HandlePin> pin = store_->Pin("ann", name);
         if (pin.ok()) {
           ASSERT_TRUE(pin->tensors().ok());  // once pinned, the bytes stay
         } else {
           EXPECT_EQ(ReasonOf(pin.status()), "HANDLE_RELEASED");
         }
       },
       [this](const HandleName& name) { EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED"); });
}

TEST_F(HandleRacesTest, ReleaseTwiceAndRenew) {
  Race([this] { return Ready(); }, Release(),
       [this](const HandleName& name) {
         const absl::Status renewed = store_->Renew("ann", name, absl::Minutes(1)).status();
         if (!renewed.ok()) {
           EXPECT_EQ(ReasonOf(renewed), "HANDLE_RELEASED");
         }
         ASSERT_TRUE(store_->Release("ann", name).ok());
       },
       [this](const HandleName& name) { EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED"); });
}

TEST_F(HandleRacesTest, ExpiryAndRenewAndFetchStart) {
  for (const bool fetch : {false, true}) {
    for (int round = 0; round < 50; ++round) {
      const HandleName name = Ready();
      Advance(absl::Seconds(60) - absl::Nanoseconds(1));
      absl::Status status;
      HandlePin pin;
      Thread user("user", [&] {
        if (fetch) {
          absl::StatusOr<HandlePin> pinned = store_->Pin("ann", name);
          status = pinned.status();
          if (pinned.ok()) pin = *std::move(pinned);
        } else {
          status = store_->Renew("ann", name, absl::Seconds(30)).status();
        }
      });
      Thread time("time", [&] { clock_.AdvanceNanos(1); });
      user.Join();
      time.Join();
      timers_->SettleForTest();
      if (!status.ok()) {
        EXPECT_EQ(ReasonOf(status), "HANDLE_EXPIRED");
      }
      if (status.ok() && !fetch) {
        EXPECT_EQ(StateOf(name), HandleState::kReady) << "a lease that was renewed holds";
      } else {
        EXPECT_EQ(ReasonOfGet(name), "HANDLE_EXPIRED");
      }
      if (pin) {
        EXPECT_TRUE(pin.tensors().ok());
      }
      pin = HandlePin();
      store_->Release("ann", name).IgnoreError();
    }
  }
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
}

TEST_F(HandleRacesTest, WaitAndSettleCallBackOnce) {
  std::atomic<int> calls = 0;
  int waits = 0;
  Race(
      Pending(), Settle(),
      [&](const HandleName& name) {
        store_->OnSettled("ann", {name}, HandleStore::WaitMode::kAll, kNever, [&](auto) { ++calls; });
      },
      [&](const HandleName&) { EXPECT_EQ(calls, ++waits); });
}

// Shutdown against each of the others.
TEST_F(HandleRacesTest, CloseAndEverything) {
  const std::vector<HandleName> names = {Reserve(), Ready(), Reserve(), Ready()};
  absl::BlockingCounter answered(4);
  for (const HandleName& name : names) {
    store_->OnSettled("ann", {name}, HandleStore::WaitMode::kAll, kNever, [&](auto) { answered.DecrementCount(); });
  }
  Thread settles("settles", [&] { store_->Fulfil(names[0].id, Tensors()); });
  Thread uses("uses", [&] {
    for (const HandleName& name : names) {
      absl::StatusOr<HandlePin> pin = store_->Pin("ann", name);
      if (pin.ok()) pin->tensors().status().IgnoreError();
    }
  });
  Thread releases("releases", [&] {
    for (const HandleName& name : names) store_->Release("ann", name).IgnoreError();
  });
  store_->Close();
  settles.Join();
  uses.Join();
  releases.Join();
  answered.Wait();
  EXPECT_EQ(store_->TotalCounts().live(), 0);
  EXPECT_EQ(store_->TotalCounts().bytes, 0);
}

}  // namespace
}  // namespace penstock::testing
