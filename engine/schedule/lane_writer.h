#pragma once

// What generators write with: each call is one step of a rule, the counting is done here.

#include <vector>

#include "engine/schedule/placement.h"
#include "engine/schedule/schedule.h"

namespace penstock {

// Empty lists of lanes * chunks stages.
Schedule EmptySchedule(std::string_view kind, int lanes, int chunks, int micro_batches);

// Writes the list of one lane.
//
// Model:     per chunk, how many forwards, backwards and weight gradients were written: each call appends the next
//            micro-batch of that chunk. Backward and InputGradient share a count; Backward is both halves, so it counts
//            as a weight gradient too. A call whose micro-batch the run does not have is counted and writes nothing.
// Owns:      nothing; the schedule must outlive it.
class LaneWriter {
 public:
  LaneWriter(Schedule* schedule, Placement placement, int lane);

  void Forward(int chunk = 0) { Append(ActionKind::kForward, chunk, counts_[chunk].forwards++); }
  void Backward(int chunk = 0);
  void InputGradient(int chunk = 0);
  void WeightGradient(int chunk = 0) { Append(ActionKind::kWeightGradient, chunk, counts_[chunk].weights++); }

  // The weight gradient of the chunk whose input gradient has waited longest on this lane; nothing if none waits.
  void OldestWeightGradient();

  // Every weight gradient of the chunk that its input gradients left.
  void RemainingWeightGradients(int chunk = 0);

  int forwards(int chunk = 0) const { return counts_[chunk].forwards; }
  bool MoreForwards(int chunk = 0) const { return forwards(chunk) < schedule_->micro_batches; }

 private:
  struct Counts {
    int forwards = 0;
    int backwards = 0;
    int weights = 0;
  };

  void Append(ActionKind kind, int chunk, int micro_batch);

  Schedule* const schedule_;
  const Placement placement_;
  const int lane_;
  std::vector<Counts> counts_;  // per chunk
  std::vector<int> waiting_;    // chunks of input gradients, oldest first; those before `waited_` have their W
  size_t waited_ = 0;
};

}  // namespace penstock
