// Frames that UcxCarrier sends on the thread of Send(), beside those that its own thread sends.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "engine/ucx/ucx_carrier.h"
#include "tests/contract/carrier/carrier_end.h"
#include "tests/support/failing_new.h"

namespace penstock::testing {
namespace {

constexpr int64_t kMinuteNanos = int64_t{60} * 1'000'000'000;
constexpr int64_t kRendezvous = 300'000;  // bytes of a payload that waits for its place

std::unique_ptr<Carrier> Make(UcxCarrier::Options options = {.transfer_timeout_nanos = kMinuteNanos}) {
  auto carrier = UcxCarrier::Create(options);
  EXPECT_TRUE(carrier.ok()) << carrier.status();
  return *std::move(carrier);
}

void Connect(CarrierEnd& a, CarrierEnd& b) {
  ASSERT_TRUE(a.Start({{Rank(1), b.carrier->address()}}).ok());
  ASSERT_TRUE(b.Start({{Rank(0), a.carrier->address()}}).ok());
  a.carrier->Send(Rank(1), {.header = "first", .payload = {OwnedPiece(Pattern(kRendezvous, 1))}});
  ASSERT_TRUE(b.AwaitArrivals(1));
}

// Whose payload's owner runs `on_end` when it ends; nothing else keeps it.
Frame TellingFrame(std::function<void()> on_end) {
  static char byte = 'x';
  Frame frame{.header = "x"};
  frame.payload.push_back({&byte, 1, std::shared_ptr<char>(&byte, [on_end](char*) { on_end(); })});
  return frame;
}

TEST(UcxSend, SendsOnTheThreadOfTheCallerWhileItsOwnSleeps) {
  CarrierEnd a(Make());
  CarrierEnd b(Make());
  Connect(a, b);
  bool here = false;
  int sent = 1;
  for (const absl::Time patience = absl::Now() + absl::Minutes(1);
       !here && absl::Now() < patience;) {  // else it was awake
    absl::Notification done;
    const auto on_end = [&, self = std::this_thread::get_id()] {
      here = std::this_thread::get_id() == self;
      done.Notify();
    };
    a.carrier->Send(Rank(1), TellingFrame(on_end));
    ASSERT_TRUE(b.AwaitArrivals(++sent));
    done.WaitForNotification();
  }
  EXPECT_TRUE(here);
}

// Its end may have to do with what the carrier's thread does meanwhile.
TEST(UcxSend, TheOwnerOfAPayloadEndsWhileTheCarrierGoesOn) {
  CarrierEnd a(Make());
  CarrierEnd b(Make());
  b.on_arrival = [&](const CarrierEnd::Arrival&) { b.carrier->Send(Rank(0), {.header = "echo"}); };
  Connect(a, b);
  ASSERT_TRUE(a.AwaitArrivals(1));
  bool here = false;
  size_t sent = 1;
  for (const absl::Time patience = absl::Now() + absl::Minutes(1); !here && absl::Now() < patience;) {
    ++sent;
    absl::Notification done;
    const auto on_end = [&, self = std::this_thread::get_id()] {
      here = std::this_thread::get_id() == self;
      if (here) {
        EXPECT_TRUE(a.AwaitArrivals(sent));
        a.carrier->Send(Rank(1), {.header = "of an owner"});
        EXPECT_TRUE(a.AwaitArrivals(++sent));
      }
      done.Notify();
    };
    a.carrier->Send(Rank(1), TellingFrame(on_end));
    ASSERT_TRUE(a.AwaitArrivals(sent));
    done.WaitForNotification();
  }
  EXPECT_TRUE(here);
}

// Calls `on_thread` when a carrier's thread asks for the time, which it does with its lock held and without, before it
// sleeps and after.
class HookedClock : public Clock {
 public:
  explicit HookedClock(std::function<void()> on_thread) : on_thread_(std::move(on_thread)) {}
  static void ThisThreadIsOurs() { ours = true; }
  int64_t NowNanos() override {
    if (!ours) on_thread_();
    return RealClock()->NowNanos();
  }
  absl::Time WallNow() override { return RealClock()->WallNow(); }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, int64_t deadline_nanos) override
      ABSL_SHARED_LOCKS_REQUIRED(mutex) {
    return RealClock()->AwaitUntil(mutex, condition, deadline_nanos);
  }

 private:
  static thread_local bool ours;
  const std::function<void()> on_thread_;
};
thread_local bool HookedClock::ours = false;

// Of two that follow each other the first may find the thread at work, and leave a command, and the second not.
TEST(UcxSend, FramesKeepTheirOrderWhateverTheThreadDoesMeanwhile) {
  constexpr int kFrames = 1000;
  absl::Mutex mu;
  bool asked = false;
  int left = 0;
  std::minstd_rand random(19);
  HookedClock::ThisThreadIsOurs();
  HookedClock clock([&] {
    if (random() % 2 == 0) return;
    absl::MutexLock lock(&mu);
    asked = true;
    const auto served = [&] { return !asked || left == 0; };
    mu.Await(absl::Condition(&served));
  });
  CarrierEnd a(Make({.transfer_timeout_nanos = kMinuteNanos, .clock = &clock}));
  CarrierEnd b(Make());
  Connect(a, b);
  const auto sending = [&] {
    absl::MutexLock lock(&mu);
    return left > 0;
  };
  {
    absl::MutexLock lock(&mu);
    left = kFrames;
  }
  bool came = true;
  {
    Thread sender("sender", [&] {
      HookedClock::ThisThreadIsOurs();
      const auto due = [&] { return asked || left == 0; };
      absl::MutexLock lock(&mu);
      while (mu.Await(absl::Condition(&due)), left > 0) {
        a.carrier->Send(Rank(1), {.header = absl::StrCat(kFrames - left)});
        asked = false;
        --left;
      }
    });
    for (size_t ticks = 1; came && sending(); ++ticks) {  // each wakes the thread
      b.carrier->Send(Rank(0), {.header = "tick"});
      came = a.AwaitArrivals(ticks);
    }
    absl::MutexLock lock(&mu);
    left = 0;
  }
  ASSERT_TRUE(came);
  ASSERT_TRUE(b.AwaitArrivals(1 + kFrames));
  absl::MutexLock lock(&b.mu);
  for (int i = 0; i < kFrames; ++i) EXPECT_EQ(b.headers[1 + i], absl::StrCat(i));
}

TEST(UcxSend, AFrameIsLateAlsoWhereTheThreadSleptWhenItWasSent) {
  setenv("UCX_KEEPALIVE_INTERVAL", "inf", /*overwrite=*/1);  // which wakes the thread, too
  absl::Notification blocked, over;                          // the ends' threads wait for them
  CarrierEnd a(Make({.transfer_timeout_nanos = 1'000'000'000}));
  CarrierEnd b(Make());
  unsetenv("UCX_KEEPALIVE_INTERVAL");
  b.on_arrival = [&](const CarrierEnd::Arrival& arrival) {
    if (arrival.header != "block") return;
    blocked.Notify();
    over.WaitForNotification();
  };
  Connect(a, b);
  a.carrier->Send(Rank(1), {.header = "block"});
  blocked.WaitForNotification();
  a.carrier->Send(Rank(1), {.header = "late", .payload = {OwnedPiece(Pattern(kRendezvous, 2))}});
  EXPECT_TRUE(a.AwaitLosses(1));
  over.Notify();
  absl::MutexLock lock(&a.mu);
  ASSERT_EQ(a.lost.size(), 1);
  EXPECT_EQ(a.lost[0].second.message(), "it has not taken a frame in time");
}

TEST(UcxSend, ThreadsMaySendWhileItCloses) {
  constexpr int kFrames = 100;
  CarrierEnd a(Make());
  CarrierEnd b(Make());
  Connect(a, b);
  {
    std::vector<std::unique_ptr<Thread>> senders;
    for (int t = 0; t < 3; ++t) {
      senders.push_back(std::make_unique<Thread>("sender", [&] {
        for (int i = 0; i < kFrames; ++i) {
          a.carrier->Send(Rank(1), {.header = "x", .payload = {OwnedPiece(Pattern(i % 3 * kRendezvous / 2, i))}});
        }
      }));
    }
    EXPECT_TRUE(b.AwaitArrivals(kFrames / 2));
    a.carrier->Close();
  }
  absl::MutexLock lock(&a.mu);
  EXPECT_TRUE(a.lost.empty());
}

TEST(UcxSend, AFrameForWhichThereIsNoMemoryIsThrownBackAndCostsNothingElse) {
  if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  CarrierEnd a(Make());
  CarrierEnd b(Make());
  Connect(a, b);
  int sent = 1;
  int thrown = 0;
  for (int spared = 0; spared < 10; ++spared) {
    Frame frame = {.header = "x", .payload = {OwnedPiece("y"), OwnedPiece("z")}};
    FailNewOnce(spared);
    try {
      a.carrier->Send(Rank(1), std::move(frame));
      ++sent;
    } catch (const std::bad_alloc&) {
    }
    thrown += StopFailingNew() ? 1 : 0;
  }
  EXPECT_GT(thrown, 0);
  EXPECT_EQ(sent + thrown, 1 + 10);
  ASSERT_TRUE(b.AwaitArrivals(sent));
  absl::MutexLock lock(&a.mu);
  EXPECT_TRUE(a.lost.empty());
}

}  // namespace
}  // namespace penstock::testing
