#pragma once

#include <optional>

#include "engine/exec/lane.h"
#include "engine/exec/run.h"
#include "engine/schedule/action.h"

namespace penstock {

// Tells the metrics of a lane what a training run makes it hold: micro-batches in flight, the stash of each pass,
// gradients.
//
// Owns:      nothing; lane and run outlive it. A pass gives back its own share of the stash.
// Threads:   the device's thread.
// Lifecycle: Count() behind every action of a micro-batch that has not failed; Close() once, when the lane leaves the
// run.
// Units:     micro-batches; bytes. Of what a graph saves they are as profiled, of inputs alone exact.
class LaneAccounts {
 public:
  LaneAccounts(const Run* run, Lane* lane) : run_(run), lane_(lane) {}

  // `pass` is what the action has left of its micro-batch.
  void Count(const Action& action, Pass& pass);
  void Close();

 private:
  void CountStash(const Action& action, Pass& pass);

  const Run* const run_;
  Lane* const lane_;
  int inflight_ = 0;                      // forwards of this run whose B or W has not run
  std::optional<int> gradients_counted_;  // the last stage whose first gradients were
};

}  // namespace penstock
