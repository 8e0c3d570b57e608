#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/status/status.h"
#include "engine/exec/tied_parameters.h"

namespace penstock {

// What is decided of an optimizer step once all norms are in.
struct StepDecision {
  double learning_rate = 0;
  double norm = 0;
  double scale = 1;
  bool applied = false;
};

// Messages between the lanes of a run and its leader: norms, the decision, the end of each part of the step.
//
// Model:     A run goes on until each lane has left; it stops early where one has failed, its caller has cancelled it,
//            or it gives way. An optimizer step has three parts, and no stage begins one before all have ended the one
//            before: tied gradients are put in; norms go up, and what an undo needs is kept; one decision comes down,
//            and with it the weights, once no inference reads them. Before that nothing has changed that can be seen;
//            after it an error calls for an undo on every stage.
// Threads:   any method from any lane's thread, without a lock held. A stage puts into its own places only.
class RunCoordinator {
 public:
  virtual ~RunCoordinator() = default;

  // Stops the run with this error, if it is the first. Everybody looks again.
  virtual void Fail(absl::Status status) = 0;
  virtual bool Stopped() const = 0;
  // An inference that has waited long enough may go before training: whether it is this one's turn now, at monotonic
  // nanoseconds.
  virtual bool BeDue(int64_t now) = 0;
  // The lane has left, before the end of its list or at it. After the last one's call the run is over.
  virtual void Leave(bool before_the_end) = 0;

  // The gradients of all uses of tied parameters: a stage puts its own in, and reads all once TiesAreIn().
  virtual TiedGradients& ties() = 0;  // empty where nothing is tied, or no step ends the run
  virtual void EndTies() = 0;         // of one stage
  virtual bool TiesAreIn() const = 0;

  // The norms of a stage's parameters, on the host.
  virtual void PutNorms(int stage, std::vector<at::Tensor> norms) = 0;
  virtual void EndNorms() = 0;  // of one stage; the last one's call decides

  // Whether the decision is there, and the weights may change.
  virtual bool Granted() const = 0;
  virtual const StepDecision& decision() const = 0;  // once Granted()
};

}  // namespace penstock
