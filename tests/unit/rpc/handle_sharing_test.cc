#include "server/rpc/handle_sharing.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/timer_queue.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {
namespace {

// Somebody does something while a handle is made.
class DisturbedClock : public FakeClock {
 public:
  absl::Time WallNow() override {
    if (before_next_look) std::exchange(before_next_look, nullptr)();
    return FakeClock::WallNow();
  }
  std::function<void()> before_next_look;
};

class HandleSharingTest : public ::testing::Test {
 protected:
  HandleSharingTest() : mine_(*store_.Reserve({.owner = "ann", .pipeline = "gpt"})) {
    store_.Fulfil(mine_.id, HeldValues({{"x", at::full({4}, 1.5f)}}));
  }

  absl::StatusOr<HandleInfo> Share(const std::string& id, const std::string& payload = "payload") {
    return sharing_.Share(
        {.caller = "ann", .name = mine_, .recipient = "bob", .request_id = id, .payload_digest = payload});
  }
  size_t HandlesOfBob() { return store_.List("bob", "", 0, 100).handles.size(); }

  DisturbedClock clock_;
  TimerQueue timers_{&clock_};
  HandleStore store_{{.epoch = Epoch(7)}, &clock_, &timers_};
  HandleSharing sharing_{&store_, &clock_, nullptr};
  const HandleName mine_;
};

TEST_F(HandleSharingTest, ARepeatedCallGetsTheHandleOfTheFirst) {
  const HandleInfo first = *Share("one");
  EXPECT_EQ(Share("one")->name, first.name);
  EXPECT_EQ(HandlesOfBob(), 1);
  EXPECT_NE(Share("two")->name, first.name);
  EXPECT_NE(Share("")->name, Share("")->name) << "without an id each call counts";
  EXPECT_EQ(HandlesOfBob(), 4);
  EXPECT_EQ(ReasonOf(Share("one", "another").status()), "REQUEST_ID_REUSED");
}

TEST_F(HandleSharingTest, TheFirstHandleIsNamedThoughAllHasEnded) {
  const HandleInfo first = *Share("one");
  const HandleInfo second = *Share("two");
  ASSERT_TRUE(store_.Release("ann", mine_).ok());
  EXPECT_EQ(Share("one")->state, HandleState::kReady);
  ASSERT_TRUE(store_.Release("bob", first.name).ok());
  EXPECT_EQ(Share("one")->name, first.name);
  EXPECT_EQ(Share("one")->state, HandleState::kReleased);
  clock_.Advance(absl::Seconds(61));
  EXPECT_EQ(Share("two")->name, second.name);
  EXPECT_EQ(Share("two")->state, HandleState::kExpired);
  EXPECT_EQ(ReasonOf(Share("three").status()), "HANDLE_RELEASED");
}

TEST_F(HandleSharingTest, ARefusedCallMayBeMadeAgain) {
  const HandleName pending = *store_.Reserve({.owner = "ann", .pipeline = "gpt"});
  const auto share = [&] { return sharing_.Share({"ann", pending, "bob", absl::ZeroDuration(), "one", "payload"}); };
  EXPECT_EQ(ReasonOf(share().status()), "HANDLE_PENDING");
  store_.Fulfil(pending.id, HeldValues({{"x", at::full({4}, 1.5f)}}));
  EXPECT_TRUE(share().ok());
}

// The second attempt comes, and ends, while the first one is between its look at the log and its new handle.
TEST_F(HandleSharingTest, AttemptsSideBySideMakeOneHandle) {
  absl::StatusOr<HandleInfo> second;
  clock_.before_next_look = [&] { second = Share("one"); };
  const absl::StatusOr<HandleInfo> first = Share("one");
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->name, second->name);
  EXPECT_EQ(HandlesOfBob(), 1);
  EXPECT_EQ(store_.TotalCounts().created, 2) << "what was withdrawn does not count";
  // With another payload the first is refused, and leaves nothing.
  clock_.before_next_look = [&] { second = Share("two"); };
  EXPECT_EQ(ReasonOf(Share("two", "another").status()), "REQUEST_ID_REUSED");
  EXPECT_EQ(HandlesOfBob(), 2);
}

}  // namespace
}  // namespace penstock::testing
