#pragma once

// A model cut into stages, ready to train and infer. The main path: scatter, run a schedule, gather.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/cancel_token.h"
#include "engine/base/ids.h"
#include "engine/exec/accumulation.h"
#include "engine/exec/fault_point.h"
#include "engine/exec/outcome.h"
#include "engine/exec/pass_event.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/model/model_spec.h"
#include "engine/plan/plan.h"
#include "engine/plan/profile.h"
#include "engine/plan/search.h"
#include "engine/schedule/action.h"
#include "engine/schedule/schedule.h"
#include "engine/tensor/value.h"

namespace penstock {

class Clock;
class DevicePool;
class PipelineGroup;
class PipelineMetrics;

// What a training call asks for beyond its tensors. Unset fields mean: as the pipeline.
struct ContributionRequest {
  NamedValues inputs;
  at::Tensor target;
  at::Tensor weights = {};  // of the target's elements, in its first dimensions; undefined: all weigh 1
  std::optional<LossSpec> loss;
  std::optional<int> micro_batches;
  std::optional<int64_t> total_rows;     // of the whole step; unset: this call's rows
  std::optional<double> total_elements;  // counted elements of the whole step, or the sum of what they weigh
  std::vector<std::string> outputs;      // to keep
  std::shared_ptr<CancelToken> cancel;   // may be null
};

struct StepRequest {
  std::optional<double> learning_rate;
  std::optional<double> clip_norm;
};

// What an evaluation asks for.
struct EvaluationRequest {
  ContributionRequest batch;         // without totals and outputs
  std::vector<std::string> metrics;  // as MakeMetrics
  int32_t priority = 0;              // as a ForwardRequest's
  int64_t turn = 0;                  // as a ForwardRequest's
};

struct ForwardRequest {
  NamedValues inputs;
  std::optional<int> micro_batches;
  std::vector<std::string> outputs;  // wanted; empty: all
  std::shared_ptr<CancelToken> cancel;
  bool input_gradients = false;  // the Backward returns the gradients of the inputs
  bool outputs_stay = false;     // where they are made; else they are on the host
  int32_t priority = 0;          // of an inference: among those that wait, higher goes first
  int64_t turn = 0;              // of an inference: among those of equal priority, lower goes first
};

// Changes what was planned, to show what a mechanism is worth or how it is without one. Only benchmarks and tests set
// them; an empty one changes nothing. What they leave must be possible still: nothing checks it again.
struct PipelineEdits {
  std::function<void(Plan&)> plan;       // once, before memory is claimed and stages are placed
  std::function<void(Schedule&)> lists;  // each schedule that runs, after its verification; from any thread
};

// A model cut into stages on devices.
//
// Model:     stages (layers, parameters, optimizer state), one per entry of the plan, on lanes that hold one or several
//            of them; a schedule per (call kind, m); at most one training run at a time, and any number of inference
//            runs beside it, in its gaps (gap_filler.h). Weights change only inside an optimizer step, for which open
//            inference runs give way, to be run again, and new ones wait: an inference sees the weights of one finished
//            step on every stage.
// Owns:      its stages and their tensors. DevicePool, Clock and PipelineMetrics outlive it.
// Threads:   Training calls (all but InferAsync, EvaluateAsync and the accessors) from one thread at a time; they block
//            until the run ends. The others from any thread; their callbacks run on a stage's thread, must not block.
// Lifecycle: the destructor waits for open runs.
// Fails:     The first error wins and names stage, micro_batch and action as values of the Status; what the run had
//            added to gradients is undone, and the pipeline is usable at once. ABORTED / STEP_ROLLED_BACK, with the
//            reason as `cause` and the `step_part`, if the optimizer's step itself failed: nothing has changed, the
//            accumulation is kept. FAILED_PRECONDITION / PIPELINE_BROKEN if it failed half-way and could not be undone
//            (Plan::undo), or an ImportState did: from then on everything is refused so, but ImportState.
class Pipeline {
 public:
  struct Options {
    DevicePool* devices = nullptr;  // required
    Clock* clock = nullptr;         // null: the real one
    ProfileOptions profile;         // with its `planning` until the call returns
    // Whether a search may run steps of the best plans on the devices. No other pipeline may work there meanwhile.
    bool rehearse = true;
    // Called with the bytes that a plan will take of the host's memory, before any of it is placed, and once more with
    // what was measured; an error ends the creation. Null: nobody counts them.
    std::function<absl::Status(int64_t bytes)> claim_memory = {};
    // Called before each action of a training run, on the stage's thread; may throw. Usually only tests set this.
    std::function<void(const Action&)> before_action;
    // Called at each of these points, kDecide for stage 0, kImport for the position of the tensor; may throw. Only
    // tests set this.
    std::function<void(FaultPoint, int stage)> fault_point;
    // Called with each pass before and after an action of a training run, on the stage's thread. Only tests set this.
    std::function<void(const PassEvent&)> watch_passes;
    PipelineEdits edits;
    std::string name = {};  // as logs and other ranks know it; may be empty
    // The other processes that stages may stand in; outlives the pipeline. Null: there are none.
    PipelineGroup* group = nullptr;
    // Called once for each rank that is lost, when the open runs have failed, on any thread; must not block. The pipeline
    // refuses everything from then on. May be empty.
    std::function<void(Rank, const absl::Status&)> on_rank_lost = {};
    // Called once the plan is known; returns where to count. Null: counts go nowhere.
    std::function<std::shared_ptr<PipelineMetrics>(const Plan&)> metrics;
  };

  // Builds layers, profiles them if the cut is automatic, plans, places the stages.
  //
  // Fails:     SPEC_INVALID naming the field and value; MODEL_NOT_FOUND; LOSS_UNKNOWN; PLAN_DOES_NOT_FIT naming the
  //            device. FAILED_PRECONDITION / SPEC_INVALID for stages on other ranks than 0, where there is no group of them.
  static absl::StatusOr<std::unique_ptr<Pipeline>> Create(const PipelineSpec& spec, Options options);

  // The plan that Create would use. What it places to measure, it removes again.
  static absl::StatusOr<Plan> MakePlan(const PipelineSpec& spec, const Options& options);

  // The plans that Create could choose from, best first, and what was refused: what the specification gives is kept,
  // what it leaves open (spec.limits) is tried.
  static absl::StatusOr<PlanSearch> SearchPlans(const PipelineSpec& spec, const Options& options);

  virtual ~Pipeline() = default;

  // Adds the gradients of one mini-batch to the open accumulation. A failure adds nothing.
  virtual absl::StatusOr<RunOutcome> ForwardBackward(ContributionRequest request) = 0;
  // Clips and applies the accumulated gradients, then clears them. A non-finite norm applies nothing: applied = false.
  virtual absl::StatusOr<RunOutcome> OptimizerStep(StepRequest request) = 0;
  // Both in one schedule. It fails or is applied as a whole: gradients are gone either way.
  virtual absl::StatusOr<RunOutcome> TrainStep(ContributionRequest request, StepRequest step) = 0;
  // A forward that keeps what Backward needs; dropout is on.
  virtual absl::StatusOr<ForwardOutcome> Forward(ForwardRequest request) = 0;
  // Adds the gradients that follow from `gradients`, one per output tensor of the model, named as the outputs are.
  virtual absl::StatusOr<RunOutcome> Backward(const std::shared_ptr<Graph>& graph, NamedTensors gradients,
                                              bool retain_graph) = 0;
  virtual void DiscardGradients() = 0;

  // Runs a forward without a graph and calls `done` once, with the outputs and the step of their weights.
  virtual void InferAsync(ForwardRequest request, std::function<void(absl::StatusOr<ForwardOutcome>)> done) = 0;

  // The same with a loss and metrics instead of outputs: the bits of a loop over the micro-batches without dropout,
  // with running statistics, whose losses are weighted as a step's are. Gradients and statistics stay as they are.
  virtual void EvaluateAsync(EvaluationRequest request, std::function<void(absl::StatusOr<RunOutcome>)> done) = 0;

  // Checks inputs against the signature without running: names, types, shapes, equal rows; to train on or to evaluate, at least
  // one row. Returns the rows of the mini-batch: those of the signature's first input that is split.
  virtual absl::StatusOr<int64_t> CheckInputs(const NamedValues& inputs, bool needs_rows) const = 0;
  virtual absl::Status CheckTarget(const at::Tensor& target, const at::Tensor& weights,
                                   const std::optional<LossSpec>& loss, int64_t rows) const = 0;
  // Metrics of an evaluation: known for the loss, each once.
  virtual absl::Status CheckMetrics(const std::vector<std::string>& metrics,
                                    const std::optional<LossSpec>& loss) const = 0;
  // Wanted outputs: known names, each once. Gradients for a Backward: one per output, of its shape.
  virtual absl::Status CheckOutputs(const std::vector<std::string>& outputs) const = 0;
  virtual absl::Status CheckGradients(const Graph& graph, const NamedTensors& gradients) const = 0;

  // A copy of parameters, buffers and, if asked, optimizer state, in model order, named `layer.parameter` and
  // `optimizer/layer.parameter/slot`. Consistent: call it between training calls. Fails: PIPELINE_BROKEN; HOST_MEMORY.
  virtual absl::StatusOr<NamedTensors> ExportState(bool with_optimizer) const = 0;
  // Names, shapes and types of all of it, in the same order: tensors without elements (of the device `meta`).
  virtual NamedTensors StateShapes() const = 0;
  // Replaces all of it. Fails: MODEL_MISMATCH naming the first tensor that is missing, unknown or differs, HOST_MEMORY,
  // with nothing changed; PIPELINE_BROKEN if a copy fails after others were made. Mends a broken pipeline.
  virtual absl::Status ImportState(const NamedTensors& state, int64_t step) = 0;

  // Other settings of the same optimizer: options, groups, clipping, schedule. All or nothing; the state stays.
  // Fails: as Create, for names of groups too; SPEC_INVALID for another name, or for options that keep other state;
  // ACCUMULATION_OPEN; PIPELINE_BROKEN.
  virtual absl::Status UpdateOptimizer(const OptimizerSpec& spec) = 0;
  // The settings as they are now. From any thread.
  virtual OptimizerSpec optimizer() const = 0;

  // A copy of what is accumulated, as OptimizerStep would take it: not clipped, that of a tied parameter summed over
  // its uses. In model order, named as ExportState names parameters; those that have no gradient are left out.
  // Consistent as ExportState. Fails: ACCUMULATION_EMPTY; PIPELINE_BROKEN; HOST_MEMORY.
  virtual absl::StatusOr<NamedTensors> ExportGradients() const = 0;
  // A copy of what calls since the last step have left. Consistent as ExportState. Fails: PIPELINE_BROKEN; HOST_MEMORY.
  virtual absl::StatusOr<Accumulation> ExportAccumulation() const = 0;
  virtual int64_t AccumulationBytes() const = 0;  // of such a copy
  // Puts it where nothing is accumulated, behind an ImportState of the state that it goes with. Fails: MODEL_MISMATCH;
  // HOST_MEMORY; then nothing is accumulated.
  virtual absl::Status ImportAccumulation(const Accumulation& accumulation) = 0;
  // The caller's number of the state that the next training call leads to, if it changes the weights; 0 at first.
  virtual void SetNextState(int64_t number) = 0;

  // OK, or why everything but ImportState is refused. From any thread.
  virtual absl::Status health() const = 0;
  virtual int64_t step() const = 0;  // finished optimizer steps
  virtual bool accumulating() const = 0;
  virtual const Plan& plan() const = 0;
  virtual const ModelSignature& signature() const = 0;
  virtual int64_t parameter_count() const = 0;
  // Says what idle stages wait for, outside of steps: a client that holds a graph or gradients, or an operator.
  enum class IdleReason { kNoWork, kWaitClient, kPaused };
  virtual void SetIdleReason(IdleReason reason) = 0;
};

}  // namespace penstock
