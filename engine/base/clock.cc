#include "engine/base/clock.h"

#include <sys/prctl.h>

#include <cerrno>
#include <ctime>
#include <limits>

#include "absl/time/clock.h"

namespace penstock {
namespace {

class MachineClock : public Clock {
 public:
  int64_t NowNanos() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }

  absl::Time WallNow() override { return absl::Now(); }

  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, int64_t deadline_nanos) override {
    if (deadline_nanos == std::numeric_limits<int64_t>::max()) {
      mutex->Await(condition);
      return true;
    }
    return mutex->AwaitWithTimeout(condition, absl::Nanoseconds(deadline_nanos - NowNanos()));
  }
};

constexpr int64_t kNanosPerSecond = 1'000'000'000;

}  // namespace

Clock* RealClock() {
  static MachineClock* clock = new MachineClock;
  return clock;
}

void SleepUntilNanos(int64_t deadline_nanos) {
  thread_local const int slack = prctl(PR_SET_TIMERSLACK, 1);  // 50,000 ns by default
  static_cast<void>(slack);
  const timespec deadline = {deadline_nanos / kNanosPerSecond, deadline_nanos % kNanosPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) == EINTR) {
  }
}

}  // namespace penstock
