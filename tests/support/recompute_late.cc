#include "tests/support/recompute_late.h"

#include <utility>

namespace penstock::testing {

Schedule RecomputeLate(Schedule schedule) {
  for (auto& list : schedule.lanes) {
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      if (list[i].kind == ActionKind::kRecompute && IsReceive(list[i + 1].kind)) std::swap(list[i], list[i + 1]);
    }
  }
  return schedule;
}

}  // namespace penstock::testing
