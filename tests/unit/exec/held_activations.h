#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/exec/pass_event.h"
#include "engine/exec/stage.h"

namespace penstock::testing {

// How many activations a lane held at most in a run: whole ones, and inputs alone that wait for a recomputation.
struct HeldPeak {
  int64_t full = 0;     // activations of one stage and micro-batch
  int64_t stashed = 0;  // inputs of one stage and micro-batch

  bool operator==(const HeldPeak&) const = default;
};

// Counts activations that lanes hold, action by action, by what the passes really hold; what the lists promise is
// ComputePeaks' (peak.h).
//
// Threads:   each lane's events on its own thread; the rest while no run is open.
// Lifecycle: Begin(lanes), a run that is watched by Watcher(), peaks().
class HeldActivations {
 public:
  void Begin(int lanes) { lanes_.assign(lanes, Lane()); }

  std::function<void(const PassEvent&)> Watcher() {
    return [this](const PassEvent& event) {
      if (event.lane < static_cast<int>(lanes_.size())) lanes_[event.lane].See(event);
    };
  }

  std::vector<HeldPeak> peaks() const {
    std::vector<HeldPeak> peaks;
    for (const Lane& lane : lanes_) peaks.push_back(lane.peak);
    return peaks;
  }

 private:
  struct Lane {
    void See(const PassEvent& event) {
      const bool full = event.pass.graph || event.pass.split != nullptr;
      const bool stashed = !full && event.pass.stash.size() > 0;
      switch (event.when) {
        case PassEvent::When::kLeftOver:
          return Note(full, stashed);
        case PassEvent::When::kBegins: {
          full_before = full;
          stashed_before = stashed;
          // F and R hold an activation from their start on.
          const ActionKind kind = event.action.kind;
          if (full || (kind != ActionKind::kForward && kind != ActionKind::kRecompute)) return;
          full_before = true;
          return Note(1, 0);
        }
        case PassEvent::When::kEnded:
          return Note(full - full_before, stashed - stashed_before);
      }
    }

    void Note(int full, int stashed) {
      now.full += full;
      now.stashed += stashed;
      peak.full = std::max(peak.full, now.full);
      peak.stashed = std::max(peak.stashed, now.stashed);
    }

    HeldPeak now;
    HeldPeak peak;
    bool full_before = false;
    bool stashed_before = false;
  };

  std::vector<Lane> lanes_;
};

}  // namespace penstock::testing
