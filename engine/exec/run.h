#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/cancel_token.h"
#include "engine/base/error.h"
#include "engine/base/first_error.h"
#include "engine/exec/bubble_filling.h"
#include "engine/exec/fault_point.h"
#include "engine/exec/held_activations.h"
#include "engine/exec/schedule_book.h"
#include "engine/exec/stage.h"
#include "engine/schedule/schedule.h"
#include "engine/schedule/verify.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {

// The value of an error that tells in which part of a step it came about.
inline constexpr char kStepPart[] = "step_part";

// What the stages of one optimizer step agree on: norms first, then one decision for all.
//
// Model:     with tied parameters, every stage first puts their gradients in, so that each can sum them. Every stage puts
//            its norms in, and keeps what it needs to undo the step; the one that completes this decides (norm, factor,
//            applied) and asks the gate for the weights; `granted` opens the last part of every stage's OPT. Before it
//            nothing has changed that can be seen; after it an error calls for an undo on every stage.
// Threads:   a stage writes its own entry before it counts down; the decision is written before `granted` is set.
struct StepDecision {
  StepDecision(int stages, const TiedGradients& ties)
      : tied(ties), ties_missing(ties.empty() ? 0 : stages), norms(stages), missing(stages) {}

  double learning_rate = 0;
  double clip_norm = 0;
  bool loss_finite = true;  // of what this step has accumulated

  TiedGradients tied;                          // every stage puts its uses in
  std::atomic<int> ties_missing;               // stages that have not
  std::vector<std::vector<at::Tensor>> norms;  // by stage
  std::atomic<int> missing;
  double norm = 0;
  double scale = 1;
  bool applied = false;
  std::atomic<bool> granted = false;
  std::atomic<bool> asked = false;  // the gate, for the weights; from then on `gate` comes
  absl::Notification gate;          // granted; set after `granted`
};

// The activations that a Forward keeps: one Pass per stage and micro-batch, and the keys of its randomness.
class Graph {
 public:
  std::vector<std::vector<Pass>> passes;  // [stage][micro-batch]
  StepId step;
  int micro_batch_base = 0;
  int64_t rows = 0;
  std::vector<int64_t> micro_batch_rows;
  NamedValues outputs;                            // of the first micro-batch, named: what gradients must look like
  std::vector<std::vector<int64_t>> output_rows;  // by output, then by micro-batch; empty where nothing has rows
  struct Input {
    std::string name;
    bool whole = false;         // every micro-batch had all of it
    std::vector<int64_t> rows;  // by micro-batch, of a tensor that was split
  };
  std::vector<Input> inputs;
  bool input_gradients = false;
};

// Everything that the lanes of one run share. Filled by the pipeline before the lanes start.
//
// Threads:   the fields above the line are constant while lanes run; below it, each entry has one writer (the lane or the
//            micro-batch's last action), read after the run's end; atomics and FirstError any time.
struct Run {
  int64_t id = 0;
  SchedulePurpose purpose = SchedulePurpose::kForwardOnly;
  std::shared_ptr<const Schedule> schedule;
  bool inference = false;
  bool training = false;    // dropout on
  bool keep_graph = false;  // passes stay for a later Backward
  bool retain_graph = false;
  bool accumulating = false;  // gradients of earlier contributions are there
  uint64_t seed = 0;
  StepId step;
  int micro_batch_base = 0;  // of the first micro-batch, within the step
  std::shared_ptr<const Checkpointed> checkpointed;
  std::vector<Batch> inputs;            // by micro-batch, for the first stage
  std::vector<LossContext> losses;      // by micro-batch, for the last stage; empty without a loss
  std::vector<Batch> output_gradients;  // by micro-batch, for a Backward
  bool keep_outputs = false;
  bool input_gradients = false;            // of the whole model's inputs
  std::shared_ptr<CancelToken> cancel;     // may be null; must be with an optimizer step, which is all or nothing
  std::shared_ptr<StepDecision> decision;  // with an optimizer step
  std::function<void()> decide;            // called once, when all norms are in
  std::function<void()> wake;              // makes every device look again
  std::function<void(const Action&)> before_action;        // for tests that break one; may be empty
  std::function<void(FaultPoint, int stage)> fault_point;  // the same
  std::vector<int64_t> rows;                               // by micro-batch; may be empty
  BubbleFilling* filling = nullptr;                        // the pipeline's
  std::shared_ptr<RunProgress> progress;                   // of a training run, if it is followed
  std::shared_ptr<InferenceTicket> ticket;                 // of an inference run
  // ---
  std::vector<std::vector<Pass>> passes;     // [stage][micro-batch]
  std::vector<Batch> outputs;                // by micro-batch
  std::vector<Batch> input_gradient_values;  // by micro-batch
  std::vector<double> loss_values;           // by micro-batch, scaled
  std::vector<HeldPeak> held;                // by lane, once it has left
  FirstError error;
  std::atomic<bool> gave_way = false;  // inference: stops, to be run again on other weights
  std::atomic<int> cut_short = 0;      // lanes that left before the end of their lists
  std::atomic<int> open_lanes = 0;
  std::function<void()> done;  // called once, by the last lane; throws nothing

  bool Checkpoints(int stage, int micro_batch) const { return (*checkpointed)[stage][micro_batch]; }

  bool Stopped() const {
    return error.Failed() || (cancel != nullptr && cancel->cancelled()) || gave_way.load(std::memory_order_acquire);
  }
  // After its end: it stopped for nothing but other weights.
  bool MustRunAgain() const {
    return gave_way && cut_short > 0 && !error.Failed() && (cancel == nullptr || !cancel->cancelled());
  }

  // Why it stopped, or OK; for after its end.
  absl::Status Result() const {
    if (error.Failed()) return error.status();
    if (cancel == nullptr || !cancel->cancelled()) return absl::OkStatus();
    return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the work was cancelled");
  }
};

}  // namespace penstock
