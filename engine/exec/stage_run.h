#pragma once

#include <vector>

#include "engine/device/device_streams.h"
#include "engine/exec/run.h"
#include "engine/exec/stage.h"
#include "engine/observe/metrics.h"
#include "engine/tensor/batch.h"

namespace penstock {

// One stage of a lane in one run: what the actions of one micro-batch do, and the values that wait between them.
//
// Model:     a value comes by Keep() before the action that needs it, and what an action has made leaves by Take().
//            Values are those of a neighbour (peer -1), or skip values of one other stage; going backward, their
//            gradients. What goes straight (straight_values.h) is None among them: it comes from the run, and goes there.
// Threads:   the device's thread.
// Fails:     the actions may throw: they run under RunTorch.
class StageRun {
 public:
  // All three must outlive it.
  StageRun(Run* run, Stage* stage, LaneMetrics* metrics);

  Stage& stage() const { return *stage_; }
  Pass& pass(int micro_batch) const { return run_->passes[stage_->index()][micro_batch]; }

  void Forward(int micro_batch);
  void Recompute(int micro_batch);
  void Backward(int micro_batch);
  void InputGradient(int micro_batch);
  void WeightGradient(int micro_batch);

  void Keep(bool gradient, int peer, int micro_batch, Batch values);
  Batch Take(bool gradient, int peer, int micro_batch);

 private:
  // What goes straight: into the pass before its action, and out of what it has made for another stage.
  void TakeInputs(int micro_batch);
  Batch WithoutStraight(const SkipPort& port, int micro_batch, const Batch& skips);
  void TakeOutputGradients(int micro_batch);
  void GiveInputGradients(int micro_batch, std::vector<Batch>& skips);
  bool LeavesHere(const StraightValue& output, int micro_batch) const;
  Batch ToCaller(const Batch& values) const;
  bool last() const { return stage_->index() + 1 == run_->lists.schedule->stages; }
  PassContext ContextOf(int micro_batch, bool graph, bool recomputing) const;
  LossContext LossOf(int micro_batch) const;
  void Measure(int micro_batch, const Pass& pass);
  Batch OutputGradients(int micro_batch);
  void GiveBack(int micro_batch, InputGradients gradients);

  Run* const run_;
  Stage* const stage_;
  DeviceStreams& streams_;
  LaneMetrics* const metrics_;
  std::vector<Batch> received_;                     // activations or gradients by micro-batch, until used
  std::vector<Batch> outgoing_;                     // by micro-batch, until taken
  std::vector<std::vector<Batch>> outgoing_skips_;  // skip values or their gradients by micro-batch and port
};

}  // namespace penstock
