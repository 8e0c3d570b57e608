#include "server/lifecycle.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/base/thread.h"

namespace penstock {
namespace {

using State = LifecycleState;

TEST(Lifecycle, ObserversHearThePresentAndEachChange) {
  Lifecycle lifecycle;
  std::vector<State> heard;
  lifecycle.Observe([&](State state) { heard.push_back(state); });
  for (State next : {State::kReady, State::kAnnouncing, State::kRefusing, State::kClosing, State::kStopped}) {
    lifecycle.Advance(next);
  }
  EXPECT_EQ(heard, (std::vector<State>{State::kStarting, State::kReady, State::kAnnouncing, State::kRefusing,
                                       State::kClosing, State::kStopped}));
}

TEST(Lifecycle, EveryStateButTheLastMayClose) {
  for (int state = 0; state < kLifecycleStateCount; ++state) {
    const bool closes = kLifecycleTransitions[state][static_cast<int>(State::kClosing)];
    EXPECT_EQ(closes, state < static_cast<int>(State::kClosing)) << state;
    EXPECT_FALSE(kLifecycleTransitions[state][static_cast<int>(State::kStarting)]) << state;
  }
}

TEST(LifecycleDeathTest, AnythingElseIsABug) {
  Lifecycle lifecycle;
  EXPECT_DEATH(lifecycle.Advance(State::kRefusing), "broken invariant");
}

TEST(Lifecycle, NamesAreThoseOfTheApi) {
  EXPECT_EQ(NameOf(State::kStarting), "starting");
  EXPECT_EQ(NameOf(State::kReady), "ready");
  EXPECT_EQ(NameOf(State::kAnnouncing), "draining");
  EXPECT_EQ(NameOf(State::kRefusing), "draining");
}

TEST(DrainSignal, HurryEndsEveryWait) {
  DrainSignal signal;
  Thread operators("ps-test", [&] { signal.Hurry(); });
  signal.AwaitTime(absl::InfiniteDuration());
  signal.AwaitWork(absl::InfiniteDuration());
  EXPECT_TRUE(signal.hurried());
  EXPECT_FALSE(signal.work_ended());
}

TEST(DrainSignal, TheEndOfWorkEndsTheWaitForIt) {
  DrainSignal signal;
  Thread work("ps-test", [&] { signal.WorkEnded(); });
  signal.AwaitWork(absl::InfiniteDuration());
  EXPECT_TRUE(signal.work_ended());
  EXPECT_FALSE(signal.hurried());
}

}  // namespace
}  // namespace penstock
