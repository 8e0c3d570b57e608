#pragma once

#include <cstdint>

namespace penstock {

// How much of a bound that all callers share one of them may take: a quarter while others have some of it, else three
// quarters, so that there is room for the next caller. Rounded up.
inline int64_t CallerShare(int64_t limit, bool others) {
  const int64_t quarter = limit / 4 + (limit % 4 > 0 ? 1 : 0);
  return others ? quarter : limit - limit / 4;
}

}  // namespace penstock
