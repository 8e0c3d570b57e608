#pragma once

// How many activations a lane holds at most.

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/schedule/dependencies.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// Peaks per lane, a property of the lists alone: actions of one lane do not overlap.
//
// Model:     F acquires at its start; B or W releases at its end. Where an R follows, F leaves only its stashed input,
//            and R turns that into a full activation again. In lists without any backward, F releases at its own end:
//            inference keeps nothing. In lists without forwards, everything is held from the start.
// Units:     counted in stage activations. One u is the activation of one micro-batch on a whole lane, so a stage's is
//            lanes/stages u.
struct PeakActivations {
  std::vector<int64_t> full = {};     // per lane, in stage activations
  std::vector<int64_t> stashed = {};  // per lane, in stashed inputs of stages
  std::vector<Place> full_at = {};    // per lane, where `full` is first reached
  int stages = 1;

  double FullUnits(int lane) const { return Units(full[lane]); }
  double StashedUnits(int lane) const { return Units(stashed[lane]); }

  // The largest of all lanes, in u.
  double MaxFullUnits() const;
  double MaxStashedUnits() const;

 private:
  double Units(int64_t count) const { return static_cast<double>(count) * static_cast<double>(full.size()) / stages; }
};

// Walks the lists of a complete schedule.
PeakActivations ComputePeaks(const Schedule& schedule);

}  // namespace penstock
