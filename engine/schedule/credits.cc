#include "engine/schedule/credits.h"

#include <algorithm>

#include "engine/schedule/dependencies.h"
#include "engine/schedule/failure.h"

namespace penstock {
namespace {

bool Runs(const Schedule& schedule, int credits) {
  return WalkLists(schedule, Dependencies(schedule, true, credits)).finished;
}

}  // namespace

int MinCredits(const Schedule& schedule) {
  if (!CheckShape(schedule).ok() || !HasCommunication(schedule) || !Runs(schedule, 0)) return 0;
  int fewest = 1, enough = std::max(1, schedule.micro_batches);  // an edge never holds more than every micro-batch
  while (fewest < enough) {
    const int middle = fewest + (enough - fewest) / 2;
    if (Runs(schedule, middle)) {
      enough = middle;
    } else {
      fewest = middle + 1;
    }
  }
  return enough;
}

}  // namespace penstock
