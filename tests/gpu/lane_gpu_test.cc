// What a lane says of the time that a GPU has worked.

#include <gtest/gtest.h>

#include "engine/base/clock.h"
#include "engine/exec/lane_timeline.h"
#include "tests/gpu/gpu_fixture.h"

namespace penstock {
namespace {

class LaneGpuTest : public testing::GpuTest {};

// Beside the time of the same work when the host waits for it.
TEST_F(LaneGpuTest, ALaneIsBusyForAsLongAsTheGpuWorks) {
  Clock* const clock = RealClock();
  Delay(Gpu(), StreamKind::kCompute);  // kernels are loaded
  Gpu().Synchronize();
  const int64_t before = clock->NowNanos();
  Delay(Gpu(), StreamKind::kCompute);
  Gpu().Synchronize();
  const auto takes = static_cast<double>(clock->NowNanos() - before);

  StateClock states(clock);
  LaneState state(&states, clock);
  LaneTimeline timeline(&state, &Gpu(), clock);
  state.OpenStep();
  int64_t begun = 0;
  int64_t took = 0;
  ASSERT_TRUE(timeline.Begin(this, StageState::kForward, [&](int64_t at) { begun = at; }).ok());
  Delay(Gpu(), StreamKind::kCompute);
  ASSERT_TRUE(timeline.End(this, [&](int64_t at) { took = at - begun; }).ok());
  ASSERT_TRUE(timeline.Read().ok());
  EXPECT_TRUE(timeline.unread()) << "the delay is too short for this GPU";
  while (timeline.Await().value()) ASSERT_TRUE(timeline.Read().ok());
  EXPECT_NEAR(static_cast<double>(took) / takes, 1, 0.1);
  EXPECT_NEAR(static_cast<double>(states.Snapshot()[StageState::kForward]) / takes, 1, 0.1);
}

}  // namespace
}  // namespace penstock
