#pragma once

#include <optional>
#include <vector>

#include "engine/device/device_streams.h"
#include "engine/exec/fault_point.h"
#include "engine/exec/run.h"
#include "engine/exec/stage.h"
#include "engine/schedule/action.h"

namespace penstock {

// A lane's way through the optimizer step at the end of a run.
//
// Model:     the step has parts that all stages of the pipeline go through together (run_coordinator.h), so a lane goes
//            over the OPT actions of its stages once per part. Norms that an accelerator makes end their part when they
//            have come to the host; its thread does not wait for them.
// Threads:   the device's thread.
// Lifecycle: for each OPT, once MayGoOn(): Enter(), Compute(), and EndPart() unless the part was kApply. Where no tied
//            parameters are, the first part is kNorms.
class LaneStep {
 public:
  enum class Part { kShareTies, kNorms, kApply };

  explicit LaneStep(const Run* run);
  // Where a part begins.
  static FaultPoint FirstPointOf(Part part);

  Part part() const { return part_; }  // that comes next
  // Whether all stages have ended the part before.
  bool MayGoOn() const;
  // Any action begins. An error of an OPT is at the first point of its part, unless Compute() has gone further.
  void Enter(ActionKind kind);
  // Does the part for one stage. May throw (RunTorch).
  void Compute(Stage& stage);
  // One stage of the lane has ended its part, or given its device all of it; `last` of the lane: the next part comes.
  void EndPart(bool last);
  // Norms that are on their way: hands those on that have come, or blocks until the first have. Both may throw
  // (RunTorch).
  bool awaits_norms() const { return !on_their_way_.empty(); }
  void TakeNorms();
  void AwaitNorms() { on_their_way_.front().made->Synchronize(); }

  // Where the OPT that was entered is; nothing for another action.
  const std::optional<FaultPoint>& at() const { return at_; }

 private:
  struct Norms {
    int stage = 0;
    std::vector<at::Tensor> norms;
    EventPtr made;
  };

  const Run* const run_;
  Part part_ = Part::kNorms;
  std::optional<FaultPoint> at_;
  std::vector<Norms> on_their_way_;
};

}  // namespace penstock
