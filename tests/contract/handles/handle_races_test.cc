// Two things at once, in both orders and side by side: whichever comes first, both sides see one of the two legal ends,
// wherever the values stand.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <string>

#include "absl/synchronization/blocking_counter.h"
#include "engine/base/thread.h"
#include "tests/contract/handles/handle_fixture.h"
#include "tests/support/stand_in_device.h"
#include "tests/support/temporary_folder.h"

namespace penstock::testing {
namespace {

constexpr int kRounds = 200;
constexpr int64_t kRacedElements = int64_t{16} << 10;  // large enough for a file of its own
constexpr int64_t kRacedBytes = 4 * kRacedElements;

const c10::Device kRacedDevice(c10::DeviceType::PrivateUse1, 0);

// Where values are made. What is full has room for one of them: whatever comes next displaces it, from the device to the
// host, from the host to a file.
enum class Where { kHost, kDevice, kFullDevice, kFullHost };

HandleStore::Options OptionsFor(Where where, const std::string& folder) {
  HandleStore::Options options;
  if (where == Where::kFullDevice) options.device_bytes = {{kRacedDevice.str(), kRacedBytes}};
  if (where == Where::kFullHost) {
    options.budget.bytes = kRacedBytes;
    options.spill = SpillFolder::Open(folder, 1000 * kRacedBytes, "--handle-spill-root", nullptr).value();
  }
  return options;
}

// What has to be there before the store.
struct RaceFolder {
  TemporaryFolder folder;
};

class HandleRacesTest : protected RaceFolder, public HandleFixture, public ::testing::WithParamInterface<Where> {
 protected:
  HandleRacesTest() : HandleFixture(OptionsFor(GetParam(), folder.path())) {}

  static at::Tensor Numbers() { return at::arange(kRacedElements, at::kFloat); }
  static NamedTensors Tensors() { return {{"y", GetParam() == Where::kHost ? Numbers() : Numbers().to(kRacedDevice)}}; }
  HandleName Ready(const std::string& owner = "ann") {
    const HandleName name = *store_->Reserve({.owner = owner, .pipeline = "gpt", .method = "Infer"});
    store_->Fulfil(name.id, Tensors());
    return name;
  }
  static void ExpectWhole(const HandlePin& pin) {
    const auto tensors = pin.tensors();
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_TRUE(at::equal(tensors->at(0).tensor.cpu(), Numbers()));
  }
  // Runs both orders one after the other, and then both at once, each round on a fresh handle; with and without a pin.
  void Race(const std::function<HandleName()>& make, const std::function<void(const HandleName&)>& one,
            const std::function<void(const HandleName&)>& other, const std::function<void(const HandleName&)>& check) {
    for (const bool pinned : {false, true}) {
      for (int round = 0; round < kRounds + 2; ++round) {
        const HandleName name = make();
        HandlePin pin;
        if (pinned) pin = *store_->Pin("ann", name);
        const bool full = GetParam() == Where::kFullDevice || GetParam() == Where::kFullHost;
        const HandleName others = full ? Ready("bob") : HandleName();
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
        store_->Release("bob", others).IgnoreError();
      }
    }
    ExpectEmpty();
  }
  void ExpectEmpty() {
    EXPECT_EQ(store_->TotalCounts().live(), 0);
    EXPECT_EQ(store_->TotalCounts().bytes, 0) << "nothing leaks";
    EXPECT_EQ(metrics_.handle_bytes[HandleTier::kDevice].value(), 0);
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

TEST_P(HandleRacesTest, SettleAndCancel) {
  Race(
      Pending(), Settle(), [this](const HandleName& name) { ASSERT_TRUE(store_->RequestCancel("ann", name).ok()); },
      [this](const HandleName& name) {
        EXPECT_THAT(StateOf(name), ::testing::AnyOf(HandleState::kReady, HandleState::kCancelled));
      });
}

TEST_P(HandleRacesTest, SettleAndRelease) {
  Race(Pending(), Settle(), Release(),
       [this](const HandleName& name) { EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED"); });
}

TEST_P(HandleRacesTest, ReleaseAndUse) {
  Race([this] { return Ready(); }, Release(),
       [this](const HandleName& name) {
         absl::StatusOr<HandlePin> pin = store_->Pin("ann", name);
         if (pin.ok()) {
           ExpectWhole(*pin);  // once pinned, the bytes stay
         } else {
           EXPECT_EQ(ReasonOf(pin.status()), "HANDLE_RELEASED");
         }
       },
       [this](const HandleName& name) { EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED"); });
}

TEST_P(HandleRacesTest, ReleaseTwiceAndRenew) {
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

TEST_P(HandleRacesTest, ExpiryAndRenewAndFetchStart) {
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
      if (pin) ExpectWhole(pin);
      pin = HandlePin();
      store_->Release("ann", name).IgnoreError();
    }
  }
  ExpectEmpty();
}

TEST_P(HandleRacesTest, WaitAndSettleCallBackOnce) {
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
TEST_P(HandleRacesTest, CloseAndEverything) {
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
  ExpectEmpty();
}

// Another's result needs the room, and displaces the value or, where it is in use, goes to the host itself.
TEST_P(HandleRacesTest, RoomForAnotherAndEverything) {
  const auto make_room = [this](const HandleName&) { ASSERT_TRUE(store_->Release("bob", Ready("bob")).ok()); };
  const auto use = [this](const HandleName& name) {
    absl::StatusOr<HandlePin> pin = store_->Pin("ann", name);
    ASSERT_TRUE(pin.ok()) << pin.status();
    ExpectWhole(*pin);
  };
  Race([this] { return Ready(); }, make_room, use, use);
  Race([this] { return Ready(); }, make_room, Release(),
       [this](const HandleName& name) { EXPECT_EQ(ReasonOfGet(name), "HANDLE_RELEASED"); });
  Race([this] { return Ready(); }, make_room,
       [this](const HandleName& name) { ASSERT_TRUE(store_->Renew("ann", name, absl::Minutes(1)).ok()); }, use);
  Race(Pending(), make_room, Settle(), use);
}

std::string NameOf(const ::testing::TestParamInfo<Where>& info) {
  return std::array{"OnTheHost", "OnADevice", "OnAFullDevice", "OnAFullHost"}[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Values, HandleRacesTest,
                         ::testing::Values(Where::kHost, Where::kDevice, Where::kFullDevice, Where::kFullHost), NameOf);

}  // namespace
}  // namespace penstock::testing
