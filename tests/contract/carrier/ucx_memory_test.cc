// What UcxCarrier does where its thread has no memory for a moment: nobody waits for what it drops, and it goes on.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/ucx/ucx_carrier.h"
#include "tests/contract/carrier/carrier_end.h"
#include "tests/support/failing_new.h"

namespace penstock::testing {
namespace {

// The machine's clock, which takes the memory of the carrier's thread away where that one reads it.
class HungryClock : public Clock {
 public:
  enum class Meal { kNone, kOne, kAll };  // allocations that fail: the next one, or all

  int64_t NowNanos() override {
    if (std::this_thread::get_id() != test_) Eat();
    return RealClock()->NowNanos();
  }
  absl::Time WallNow() override { return RealClock()->WallNow(); }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition,
                  int64_t deadline_nanos) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return RealClock()->AwaitUntil(mutex, condition, deadline_nanos);
  }

  std::atomic<Meal> meal = Meal::kNone;
  absl::Notification failed;

 private:
  void Eat() {
    if (StopFailingNew() && meal != Meal::kAll) {
      meal = Meal::kNone;
      if (!failed.HasBeenNotified()) failed.Notify();
    }
    if (meal == Meal::kOne) FailNewOnce(0);
    if (meal == Meal::kAll) FailNew();
  }
  const decltype(std::this_thread::get_id()) test_ = std::this_thread::get_id();
};

class UcxMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  }
  std::unique_ptr<Carrier> Make(int64_t silence_nanos = 0) {
    auto carrier = UcxCarrier::Create({.silence_nanos = silence_nanos, .clock = &clock_});
    EXPECT_TRUE(carrier.ok()) << carrier.status();
    return *std::move(carrier);
  }
  // Its loss gives the memory back.
  Carrier::Handlers LossOf(absl::Status* loss, absl::Notification* lost) {
    return {.on_header = [](std::string_view, int64_t) -> absl::StatusOr<Landing> { return Landing(); },
            .on_lost =
                [this, loss, lost](Rank, const absl::Status& why) {
                  clock_.meal = HungryClock::Meal::kNone;
                  StopFailingNew();
                  *loss = why;
                  lost->Notify();
                }};
  }

  HungryClock clock_;
};

TEST_F(UcxMemory, APeerIsGivenUpWithoutIt) {
  CarrierEnd b(*UcxCarrier::Create({}));
  absl::Status loss;
  absl::Notification lost;
  const auto a = Make();
  ASSERT_TRUE(a->Start({{Rank(1), b.carrier->address()}}, LossOf(&loss, &lost)).ok());
  ASSERT_TRUE(b.Start({{Rank(0), a->address()}}).ok());
  a->Send(Rank(1), {.header = "x", .payload = {OwnedPiece("y")}});
  ASSERT_TRUE(b.AwaitArrivals(1));
  for (int i = 0; i < 8; ++i) {  // under way: the edge does not end at once
    a->Send(Rank(1), {.header = "x", .payload = {OwnedPiece(std::string(int64_t{8} << 20, 'y'))}});
  }
  clock_.meal = HungryClock::Meal::kAll;
  a->Disconnect(Rank(1), absl::UnavailableError("a test"));
  EXPECT_TRUE(lost.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(loss.message(), "a test");
  a->Close();
}

TEST_F(UcxMemory, APeerIsGivenUpByWhoHasNone) {
  CarrierEnd b(*UcxCarrier::Create({}));
  absl::Status loss;
  absl::Notification lost;
  const auto a = Make();
  ASSERT_TRUE(a->Start({{Rank(1), b.carrier->address()}}, LossOf(&loss, &lost)).ok());
  const absl::Status why = absl::UnavailableError("a test");
  FailNew();
  a->Disconnect(Rank(1), why);
  EXPECT_TRUE(StopFailingNew());
  EXPECT_TRUE(lost.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(loss.message(), "a test");
  a->Close();
}

TEST_F(UcxMemory, APeerThatGoesIsLostWithoutIt) {
  auto b = std::make_unique<CarrierEnd>(*UcxCarrier::Create({}));
  absl::Status loss;
  absl::Notification lost;
  const auto a = Make();
  ASSERT_TRUE(a->Start({{Rank(1), b->carrier->address()}}, LossOf(&loss, &lost)).ok());
  ASSERT_TRUE(b->Start({{Rank(0), a->address()}}).ok());
  a->Send(Rank(1), {.header = "x", .payload = {OwnedPiece("y")}});
  ASSERT_TRUE(b->AwaitArrivals(1));
  clock_.meal = HungryClock::Meal::kAll;
  b.reset();
  EXPECT_TRUE(lost.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(ReasonOf(loss), "RANK_LOST");
  a->Close();
}

TEST_F(UcxMemory, ALookForConnectionsIsTriedAgain) {
  CarrierEnd b(*UcxCarrier::Create({}));
  CarrierEnd a(Make(/*silence_nanos=*/20'000'000));
  ASSERT_TRUE(a.Start({{Rank(1), b.carrier->address()}}).ok());
  ASSERT_TRUE(b.Start({{Rank(0), a.carrier->address()}}).ok());
  clock_.meal = HungryClock::Meal::kOne;
  ASSERT_TRUE(clock_.failed.WaitForNotificationWithTimeout(absl::Seconds(20)));
  a.carrier->Send(Rank(1), {.header = "x", .payload = {OwnedPiece(std::string(300'000, 'y'))}});
  EXPECT_TRUE(b.AwaitArrivals(1));
  absl::MutexLock lock(&a.mu);
  EXPECT_TRUE(a.lost.empty());
}

int64_t OpenDescriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

TEST_F(UcxMemory, ACarrierThatCannotBeMadeLeavesNoDescriptor) {
  Make();  // what UCX keeps for good
  const int64_t before = OpenDescriptors();
  bool failed = true;
  for (int spared = 0; failed; ++spared) {
    SCOPED_TRACE(spared);
    FailNewOnce(spared);
    try {
      UcxCarrier::Create({}).IgnoreError();
    } catch (const std::bad_alloc&) {
    }
    failed = StopFailingNew();
    EXPECT_EQ(OpenDescriptors(), before);
  }
}

}  // namespace
}  // namespace penstock::testing
