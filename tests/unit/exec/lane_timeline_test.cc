// When the actions of a lane ran: told at once on a CPU, late on an accelerator.

#include "engine/exec/lane_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_clock.h"
#include "tests/support/fake_streams.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;
using testing::FakeStreams;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StreamLog;

class LaneTimelineTest : public ::testing::Test {
 protected:
  LaneTimelineTest() {
    streams_.KeepTime(
        {.now = [this] { return clock_.NowNanos(); }, .pass = [this](int64_t nanos) { clock_.AdvanceNanos(nanos); }});
  }

  // An action that the host launches in no time.
  void Launch(LaneTimeline& timeline, StageState state, int64_t nanos) {
    ASSERT_TRUE(timeline.Begin(owner_, state, Tell("begin")).ok());
    streams_.Work(nanos);
    ASSERT_TRUE(timeline.End(owner_, Tell("end")).ok());
  }
  std::function<void(int64_t)> Tell(const std::string& what) {
    return [this, what = std::string(owner_) + what](int64_t at) { told_.push_back(what + " " + std::to_string(at)); };
  }
  int64_t In(StageState state) { return states_.Snapshot(clock_.NowNanos())[state]; }
  std::vector<std::string> Told() { return std::exchange(told_, {}); }

  FakeClock clock_{1000};
  StreamLog log_;
  FakeStreams streams_{"a", &log_};
  StateClock states_{&clock_};
  LaneState state_{&states_, &clock_};
  LaneTimeline timeline_{&state_, &streams_, &clock_};
  std::vector<std::string> told_;
  const char* owner_ = "";
};

TEST_F(LaneTimelineTest, TellsACpusTimesAtOnce) {
  LaneTimeline timeline(&state_, &CpuStreams(), &clock_);
  EXPECT_TRUE(timeline.Begin(owner_, StageState::kForward, Tell("begin")).ok());
  EXPECT_THAT(Told(), ElementsAre("begin 1000"));
  clock_.AdvanceNanos(5);
  EXPECT_TRUE(timeline.End(owner_, Tell("end")).ok());
  EXPECT_THAT(Told(), ElementsAre("end 1005"));
  EXPECT_FALSE(timeline.unread());
  EXPECT_FALSE(timeline.Await().value());
}

TEST_F(LaneTimelineTest, TellsLateAndInOrderWhatTheDeviceHasPassed) {
  state_.OpenStep();
  Launch(timeline_, StageState::kForward, 100);
  Launch(timeline_, StageState::kBackward, 200);
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("begin 1000"));
  clock_.AdvanceNanos(150);  // in the middle of the second
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("end 1100", "begin 1100"));
  EXPECT_EQ(states_.state(), StageState::kBackward);
  EXPECT_EQ(In(StageState::kBackward), 50);
  EXPECT_TRUE(timeline_.unread());
  clock_.AdvanceNanos(1000);
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("end 1300"));
  EXPECT_FALSE(timeline_.unread());
  EXPECT_EQ(In(StageState::kForward), 100);
  EXPECT_EQ(In(StageState::kBackward), 200);
  EXPECT_EQ(In(StageState::kHost), 850);
  EXPECT_EQ(streams_.open_events(), 1);  // the last, from which the next is measured
}

// The host says why it waits while the device still works: the wait begins when the work ends.
TEST_F(LaneTimelineTest, AWaitBeginsWhereTheWorkBeforeItEnds) {
  state_.OpenStep();
  Launch(timeline_, StageState::kForward, 100);
  state_.WaitInStep(StageState::kWaitGradient);
  clock_.AdvanceNanos(140);
  state_.WaitInStep(StageState::kSync);
  EXPECT_TRUE(timeline_.Read().ok());
  clock_.AdvanceNanos(10);
  EXPECT_EQ(In(StageState::kForward), 100);
  EXPECT_EQ(In(StageState::kWaitGradient), 40);
  EXPECT_EQ(In(StageState::kSync), 10);
  EXPECT_EQ(states_.clamped_nanos(), 0);
}

TEST_F(LaneTimelineTest, InferenceInAStepFillsForAsLongAsTheDeviceTakes) {
  state_.OpenStep();
  Launch(timeline_, StageState::kInfer, 70);
  clock_.AdvanceNanos(80);
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_EQ(In(StageState::kFilled), 70);
}

// A device whose clock runs too fast, and one whose clock runs too slow.
TEST_F(LaneTimelineTest, IsNeverBeforeTheHostSetAMarkNorAfterItSawItPassed) {
  class Drifting : public FakeStreams {
   public:
    using FakeStreams::FakeStreams;
    class Event : public TimedEvent {
     public:
      explicit Event(int64_t at) : at_(at) {}
      bool Ready() const override { return true; }
      void Synchronize() const override {}
      int64_t NanosSince(const TimedEvent& earlier) const override {
        return at_ - dynamic_cast<const Event&>(earlier).at_;
      }

     private:
      const int64_t at_;
    };
    TimedEventPtr RecordTimed(StreamKind) override { return std::make_shared<Event>(now); }
    int64_t now = 0;
  };
  Drifting drifting("b", &log_);
  LaneTimeline timeline(&state_, &drifting, &clock_);
  const auto pass = [&](int64_t host, int64_t device) {
    clock_.AdvanceNanos(host);
    drifting.now += device;
    EXPECT_TRUE(
        timeline.Begin(owner_, StageState::kForward, [this](int64_t at) { told_.push_back(std::to_string(at)); }).ok());
    EXPECT_TRUE(timeline.End(owner_, [](int64_t) {}).ok());
    EXPECT_TRUE(timeline.Read().ok());
  };
  pass(0, 0);
  pass(100, 130);
  pass(100, 60);
  EXPECT_THAT(Told(), ElementsAre("1000", "1100", "1200"));
}

// The device does what other lanes have given it first, however early the host sets the mark.
TEST_F(LaneTimelineTest, BeginsBehindTheWorkOfOtherLanes) {
  streams_.Work(50);
  LaneTimeline timeline(&state_, &streams_, &clock_);
  EXPECT_EQ(clock_.NowNanos(), 1050) << "it has waited once";
  streams_.Work(300);
  Launch(timeline, StageState::kForward, 100);
  clock_.AdvanceNanos(1000);
  EXPECT_TRUE(timeline.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("begin 1350", "end 1450"));
}

TEST_F(LaneTimelineTest, MeasuresFromTheMarkBeforeAcrossAPause) {
  Launch(timeline_, StageState::kForward, 100);
  clock_.AdvanceNanos(1'000'000);
  EXPECT_TRUE(timeline_.Read().ok());
  Launch(timeline_, StageState::kForward, 30);
  clock_.AdvanceNanos(100);
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("begin 1000", "end 1100", "begin 1001000", "end 1001030"));
}

TEST_F(LaneTimelineTest, WorkThatFailsIsNeverTakenAsDone) {
  Launch(timeline_, StageState::kForward, 100);
  streams_.Fault();
  Launch(timeline_, StageState::kBackward, 100);
  clock_.AdvanceNanos(60);
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("begin 1000"));
  clock_.AdvanceNanos(60);
  EXPECT_THAT(std::string(timeline_.Read().message()), HasSubstr("illegal memory access"));
  EXPECT_THAT(std::string(timeline_.Await().status().message()), HasSubstr("illegal memory access"));
  EXPECT_FALSE(timeline_.Begin(owner_, StageState::kForward, Tell("begin")).ok());
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(LaneTimelineTest, WaitingTellsThatTheWorkHasFailed) {
  Launch(timeline_, StageState::kForward, 100);
  streams_.Fault();
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_FALSE(timeline_.Await().ok());
  EXPECT_THAT(Told(), ElementsAre("begin 1000"));
}

TEST_F(LaneTimelineTest, AnActionWhoseEndCantBeMarkedHasFailedAndEndsBehindItsBegin) {
  Launch(timeline_, StageState::kForward, 50);
  ASSERT_TRUE(timeline_.Begin(owner_, StageState::kForward, Tell("begin")).ok());
  streams_.Break();
  EXPECT_FALSE(timeline_.End(owner_, Tell("end")).ok());
  EXPECT_FALSE(timeline_.Begin(owner_, StageState::kBackward, Tell("never")).ok());
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("begin 1000"));
  EXPECT_TRUE(timeline_.Await().value());
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("end 1050", "begin 1050", "end 1050"));
  EXPECT_EQ(states_.state(), StageState::kSetup) << "no action";
}

// Training and inference share a lane.
TEST_F(LaneTimelineTest, OnlyTheMarksOfTheOneThatGoesAreGivenUpOnceTheDeviceHasDoneItsWork) {
  state_.OpenStep();
  owner_ = "A ";
  Launch(timeline_, StageState::kForward, 100);
  owner_ = "B ";
  Launch(timeline_, StageState::kInfer, 50);
  streams_.FailLooks(1);
  EXPECT_EQ(timeline_.Read().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Told(), IsEmpty());
  streams_.FailLooks(1);
  timeline_.GiveUp(owner_);
  EXPECT_EQ(streams_.synchronized(), 1);
  EXPECT_THAT(Told(), ElementsAre("B begin 1150", "B end 1150"));
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_THAT(Told(), ElementsAre("A begin 1000", "A end 1100"));
  EXPECT_FALSE(timeline_.unread());
  EXPECT_EQ(In(StageState::kForward), 100);
  EXPECT_EQ(In(StageState::kFilled), 50) << "the device did it all the same";
}

TEST_F(LaneTimelineTest, MarksThatNobodyOwnsGoWithADeviceThatCanTellNoMore) {
  owner_ = "A ";
  Launch(timeline_, StageState::kForward, 100);
  streams_.Fault();
  owner_ = "B ";
  Launch(timeline_, StageState::kInfer, 50);
  owner_ = "A ";
  clock_.AdvanceNanos(200);
  timeline_.GiveUp(owner_);
  EXPECT_THAT(Told(), ElementsAre("A begin 1200", "A end 1200"));
  EXPECT_FALSE(timeline_.Read().ok()) << "B's";
  timeline_.GiveUp("B ");
  EXPECT_THAT(Told(), ElementsAre("B begin 1200", "B end 1200"));
  EXPECT_FALSE(timeline_.unread());
  EXPECT_EQ(states_.state(), StageState::kSetup) << "no action";
  EXPECT_EQ(streams_.open_events(), 1);
}

TEST_F(LaneTimelineTest, WaitsForTheOldestWhereNothingElseMovesOn) {
  Launch(timeline_, StageState::kForward, 100);
  EXPECT_TRUE(timeline_.Read().ok());
  ASSERT_TRUE(timeline_.Await().value());
  EXPECT_EQ(clock_.NowNanos(), 1100);
  EXPECT_TRUE(timeline_.Read().ok());
  EXPECT_FALSE(timeline_.Await().value());
}

TEST_F(LaneTimelineTest, MayGoWithMarksThatNobodyRead) {
  {
    LaneTimeline timeline(&state_, &streams_, &clock_);
    Launch(timeline, StageState::kForward, 100);
    EXPECT_EQ(streams_.open_events(), 3);
  }
  EXPECT_EQ(streams_.open_events(), 0);
  EXPECT_THAT(Told(), IsEmpty());
}

}  // namespace
}  // namespace penstock
