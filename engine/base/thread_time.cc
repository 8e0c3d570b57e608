#include "engine/base/thread_time.h"

#include <ctime>

namespace penstock {

int64_t ThreadTimeNanos() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace penstock
