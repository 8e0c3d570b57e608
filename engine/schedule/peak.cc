#include "engine/schedule/peak.h"

#include <algorithm>

namespace penstock {
namespace {

// What one lane holds while its list is walked.
struct Held {
  int64_t full = 0;
  int64_t stashed = 0;
};

bool HasKind(const Schedule& schedule, bool (*matches)(ActionKind)) {
  for (const auto& list : schedule.lanes) {
    if (std::any_of(list.begin(), list.end(), [&](const Action& action) { return matches(action.kind); })) {
      return true;
    }
  }
  return false;
}

}  // namespace

double PeakActivations::MaxFullUnits() const {
  return full.empty() ? 0 : Units(*std::max_element(full.begin(), full.end()));
}

double PeakActivations::MaxStashedUnits() const {
  return stashed.empty() ? 0 : Units(*std::max_element(stashed.begin(), stashed.end()));
}

PeakActivations ComputePeaks(const Schedule& schedule) {
  const ActionIndex index(schedule);
  const bool has_forwards = HasKind(schedule, [](ActionKind kind) { return kind == ActionKind::kForward; });
  const bool has_backwards = HasKind(schedule, ConsumesGradient);
  const auto recomputed = [&](const Action& action) {
    return index.Find({ActionKind::kRecompute, action.stage, action.micro_batch}).has_value();
  };

  PeakActivations peaks{.stages = std::max(1, schedule.stages)};
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    const auto& list = schedule.lanes[lane];
    Held held;
    if (!has_forwards) {
      for (const Action& action : list) {
        if (ConsumesGradient(action.kind)) ++(recomputed(action) ? held.stashed : held.full);
      }
    }
    Held peak = held;
    Place peak_at{static_cast<int>(lane), 0};
    for (size_t position = 0; position < list.size(); ++position) {
      const Action& action = list[position];
      const bool acquires = action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute;
      if (acquires && ++held.full > peak.full) {
        peak.full = held.full;
        peak_at.position = static_cast<int>(position);
      }
      if (action.kind == ActionKind::kRecompute) --held.stashed;
      if (action.kind == ActionKind::kForward && (!has_backwards || recomputed(action))) {
        --held.full;
        if (has_backwards) peak.stashed = std::max(peak.stashed, ++held.stashed);
      }
      if (AccumulatesGradient(action.kind)) --held.full;
    }
    peaks.full.push_back(peak.full);
    peaks.stashed.push_back(peak.stashed);
    peaks.full_at.push_back(peak_at);
  }
  return peaks;
}

}  // namespace penstock
