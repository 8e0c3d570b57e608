#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/exec/outcome.h"
#include "engine/exec/stage.h"

namespace penstock {

// Counts activations that a lane holds, action by action, by what the passes really hold; what the lists promise is ComputePeaks' (peak.h).
//
// Threads:   the device's thread.
class HeldActivations {
 public:
  // Before the run's first action: what an earlier run has left.
  void Add(const std::vector<Pass>& passes) {
    for (const Pass& pass : passes) Note(Full(pass), Stashed(pass));
  }

  // Around every action of a micro-batch. One that `acquires` (F, R) holds an activation from its start on.
  void Begin(const Pass& pass, bool acquires) {
    full_before_ = Full(pass);
    stashed_before_ = Stashed(pass);
    if (full_before_ || !acquires) return;
    full_before_ = true;
    Note(1, 0);
  }
  void End(const Pass& pass) { Note(Full(pass) - full_before_, Stashed(pass) - stashed_before_); }

  const HeldPeak& peak() const { return peak_; }

 private:
  static bool Full(const Pass& pass) { return pass.graph || pass.split != nullptr; }
  static bool Stashed(const Pass& pass) { return !Full(pass) && pass.stash.size() > 0; }

  void Note(int full, int stashed) {
    now_.full += full;
    now_.stashed += stashed;
    peak_.full = std::max(peak_.full, now_.full);
    peak_.stashed = std::max(peak_.stashed, now_.stashed);
  }

  HeldPeak now_;
  HeldPeak peak_;
  bool full_before_ = false;
  bool stashed_before_ = false;
};

}  // namespace penstock
