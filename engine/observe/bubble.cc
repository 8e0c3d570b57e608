#include "engine/observe/bubble.h"

#include "engine/base/check.h"

namespace penstock {
namespace {

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

void AddTo(ClassTimes& times, StateClass state_class, int64_t nanos) {
  switch (state_class) {
    case StateClass::kWork:
      times.work += nanos;
      break;
    case StateClass::kFilled:
      times.filled += nanos;
      break;
    case StateClass::kIdleInStep:
      times.idle_in_step += nanos;
      break;
    case StateClass::kOutsideStep:
      times.outside_step += nanos;
      break;
  }
}

}  // namespace

double ClassTimes::MeasuredBubble() const { return Share(InStep() - work, InStep()); }
double ClassTimes::ResidualBubble() const { return Share(idle_in_step, InStep()); }
double ClassTimes::FillRatio() const { return Share(filled, InStep() - work); }

ClassTimes& ClassTimes::operator+=(const ClassTimes& other) {
  work += other.work;
  filled += other.filled;
  idle_in_step += other.idle_in_step;
  outside_step += other.outside_step;
  return *this;
}

ClassTimes TimesBetween(const StateTimes& before, const StateTimes& after) {
  ClassTimes times;
  for (const StageStateInfo& info : StageStates())
    AddTo(times, info.state_class, after[info.state] - before[info.state]);
  return times;
}

ClassTimes TimesSinceStart(const StateTimes& at) { return TimesBetween(StateTimes{}, at); }

ClassTimes TimesBetween(std::span<const StateTimes> before, std::span<const StateTimes> after) {
  PENSTOCK_CHECK(before.size() == after.size());
  ClassTimes sum;
  for (size_t i = 0; i < before.size(); ++i) sum += TimesBetween(before[i], after[i]);
  return sum;
}

}  // namespace penstock
