#include "server/lifecycle.h"

#include <gtest/gtest.h>

#include <vector>

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

TEST(Lifecycle, AnAbortedDrainServesOn) {
  for (State from : {State::kAnnouncing, State::kRefusing}) {
    Lifecycle lifecycle;
    lifecycle.Advance(State::kReady);
    lifecycle.Advance(State::kAnnouncing);
    if (from == State::kRefusing) lifecycle.Advance(from);
    lifecycle.Advance(State::kReady);
    EXPECT_EQ(lifecycle.state(), State::kReady);
  }
}

}  // namespace
}  // namespace penstock
