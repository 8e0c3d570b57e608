#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/ids.h"
#include "engine/device/device_streams.h"
#include "engine/exec/bubble_filling.h"
#include "engine/exec/fault_point.h"
#include "engine/exec/pass_event.h"
#include "engine/exec/run_coordinator.h"
#include "engine/exec/run_spec.h"
#include "engine/exec/schedule_book.h"
#include "engine/exec/stage.h"
#include "engine/filling/expected_arrivals.h"
#include "engine/model/metric.h"
#include "engine/model/model_spec.h"
#include "engine/schedule/schedule.h"
#include "engine/tensor/micro_batch.h"

namespace penstock {

// The name of the value of an error that says in which part of a step it occurred.
inline constexpr char kStepPart[] = "step_part";

// Behind every micro-batch: nothing that was noted is forgotten.
inline constexpr MicroBatchIndex kNoMicroBatch(std::numeric_limits<int32_t>::max());

// The activations that a Forward keeps for its Backward.
//
// Model:     one Pass per stage and micro-batch, the keys of its randomness, and what the gradients of outputs must
//            look like and those of inputs will.
// Owns:      the passes, with their tensors on the stages' devices. The last reference frees them, on any thread.
// Threads:   that of the training calls; a run has the passes while it is open.
// Lifecycle: Forward makes it; a Backward uses it up unless it retains it: `passes` are empty then. An optimizer step
//            makes it stale (`step`).
class Graph {
 public:
  std::vector<std::vector<Pass>> passes;       // [stage][micro-batch]; on other ranks under the number of `run`
  int64_t run = 0;                             // of its Forward
  std::shared_ptr<const void> elsewhere = {};  // as long as this is there
  StepId step;
  int micro_batch_base = 0;
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

// A run on the lanes of one process: what was asked for, what goes in, and what comes out.
//
// Threads:   the fields above the line are constant while lanes run; below it, each entry has one writer (the lane or
//            the micro-batch's last action), read after the run's end.
struct Run {
  RunSpec spec;
  ListsOfRun lists;
  std::shared_ptr<RunCoordinator> coordinator;
  std::vector<std::vector<Batch>> inputs;        // [stage][micro-batch], as straight_values.h says
  std::vector<LossContext> losses;               // by micro-batch, for the last stage; empty without a loss
  std::vector<const EvaluationMetric*> metrics;  // for the last stage, of outputs and targets of the losses
  std::vector<Batch> output_gradients;           // by micro-batch, for a Backward
  std::optional<LossSpec> own_loss;              // of the call, if its losses are not the pipeline's own
  std::vector<std::string> metric_names;
  bool results_stay = false;  // on the device that makes them
  bool led_here = true;       // else inputs, losses' targets and output gradients come from the leader's process
  bool targets = false;       // such targets come
  std::vector<DeviceStreams*> devices;  // of the lanes
  BubbleFilling* filling = nullptr;
  std::shared_ptr<RunProgress> progress;                   // of a training run, if it is followed
  std::shared_ptr<InferenceTicket> ticket;                 // of an inference run
  std::unique_ptr<ExpectedArrivals> arrivals;              // the same
  std::function<void(const Action&)> before_action;        // for tests that break one; may be empty
  std::function<void(FaultPoint, int stage)> fault_point;  // the same
  std::function<void(const PassEvent&)> watch_passes;      // for tests that count; may be empty
  // ---
  std::vector<std::vector<Pass>> passes;  // [stage][micro-batch]
  // On the host, but for results that stay. There they are complete once the lane that made them has left; losses also
  // once the norms are in.
  std::vector<std::vector<Batch>> outputs;                // [stage][micro-batch], as straight_values.h says
  std::vector<std::vector<Batch>> input_gradient_values;  // the same
  std::vector<at::Tensor> made_losses;                    // by micro-batch, scaled; undefined without one
  std::vector<std::vector<MetricSum>> metric_sums;        // by micro-batch, then by metric

  // The losses of all micro-batches; 0 where there is none.
  std::vector<double> LossValues() const {
    std::vector<double> values;
    for (const at::Tensor& loss : made_losses) values.push_back(loss.defined() ? loss.item().toDouble() : 0);
    return values;
  }
  int micro_batches() const { return lists.schedule->micro_batches; }
  bool Checkpoints(StageIndex stage, int micro_batch) const {
    return (*lists.checkpointed)[stage.value()][micro_batch];
  }
};

}  // namespace penstock
