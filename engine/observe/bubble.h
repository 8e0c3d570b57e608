#pragma once

// Bubbles: the share of a step's time that is not work.

#include <cstdint>
#include <span>

#include "engine/observe/state_clock.h"

namespace penstock {

// Nanoseconds of one or several lanes by class of state.
struct ClassTimes {
  int64_t work = 0;
  int64_t filled = 0;
  int64_t idle_in_step = 0;
  int64_t outside_step = 0;

  int64_t InStep() const { return work + filled + idle_in_step; }
  int64_t Total() const { return InStep() + outside_step; }

  // 1 - work / in-step time; time filled by inference is not work here. 0 without a step.
  double MeasuredBubble() const;
  // The same with filled time counted as work.
  double ResidualBubble() const;
  // The share of the bubble that inference filled. 0 without a bubble.
  double FillRatio() const;

  ClassTimes& operator+=(const ClassTimes& other);
};

// What passed on one lane between two snapshots of its clock.
ClassTimes TimesBetween(const StateTimes& before, const StateTimes& after);

// What passed since the lane's start.
ClassTimes TimesSinceStart(const StateTimes& at);

// The sum over lanes: entry i of both spans belongs to one lane.
ClassTimes TimesBetween(std::span<const StateTimes> before, std::span<const StateTimes> after);

}  // namespace penstock
