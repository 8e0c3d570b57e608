#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/exec/device_pool.h"
#include "engine/exec/device_worker.h"
#include "engine/exec/local_coordinator.h"
#include "engine/exec/pipeline.h"
#include "engine/exec/pipeline_group.h"
#include "engine/exec/rank_engine.h"
#include "engine/exec/rank_group.h"
#include "engine/exec/run.h"
#include "engine/exec/stage.h"
#include "engine/exec/weights_gate.h"
#include "engine/model/loss.h"
#include "engine/model/metric.h"
#include "engine/observe/bubble.h"
#include "engine/observe/metrics.h"

namespace penstock {

// A call that the state of the pipeline does not allow now.
inline absl::Status NotNow(std::string_view reason, std::string_view message) {
  return Error(absl::StatusCode::kFailedPrecondition, reason, message);
}

// The Pipeline of pipeline.h: leads the runs of all ranks from the one it is on. It is wide, for all parts meet here.
//
// Threads:   members marked "caller" belong to the thread of the training calls; the rest is constant after
//            construction, safe by itself, or guarded.
class PipelineImpl : public Pipeline {
 public:
  // What Create has made ready.
  struct Parts {
    PipelineSpec spec;
    Plan plan;
    ModelSignature signature;
    RankEngine::Parts engine;    // but for its plan, metrics and transport
    std::unique_ptr<Loss> loss;  // null: none by default
    std::vector<TiedPlace> tied;
    std::shared_ptr<PipelineMetrics> metrics;
    std::unique_ptr<PipelineRanks> others;  // null: all stages are here
    Options options;
  };
  explicit PipelineImpl(Parts parts);
  ~PipelineImpl() override;

  absl::StatusOr<RunOutcome> ForwardBackward(ContributionRequest request) override;
  absl::StatusOr<RunOutcome> OptimizerStep(StepRequest request) override;
  absl::StatusOr<RunOutcome> TrainStep(ContributionRequest request, StepRequest step) override;
  absl::StatusOr<ForwardOutcome> Forward(ForwardRequest request) override;
  absl::StatusOr<RunOutcome> Backward(const std::shared_ptr<Graph>& graph, NamedTensors gradients,
                                      bool retain_graph) override;
  void DiscardGradients() override;
  void InferAsync(ForwardRequest request, std::function<void(absl::StatusOr<ForwardOutcome>)> done) override;
  void EvaluateAsync(EvaluationRequest request, std::function<void(absl::StatusOr<RunOutcome>)> done) override;

  absl::StatusOr<int64_t> CheckInputs(const NamedValues& inputs, bool needs_rows) const override;
  absl::Status CheckTarget(const at::Tensor& target, const at::Tensor& weights, const std::optional<LossSpec>& loss,
                           int64_t rows) const override;
  absl::Status CheckMetrics(const std::vector<std::string>& metrics,
                            const std::optional<LossSpec>& loss) const override;
  absl::Status CheckOutputs(const std::vector<std::string>& outputs) const override;
  absl::Status CheckGradients(const Graph& graph, const NamedTensors& gradients) const override;
  absl::StatusOr<NamedTensors> ExportState(bool with_optimizer) const override;
  NamedTensors StateShapes() const override;
  absl::Status ImportState(const NamedTensors& state, int64_t step) override;
  absl::Status UpdateOptimizer(const OptimizerSpec& spec) override;
  OptimizerSpec optimizer() const override ABSL_LOCKS_EXCLUDED(optimizer_mu_);
  absl::StatusOr<NamedTensors> ExportGradients() const override;
  absl::StatusOr<Accumulation> ExportAccumulation() const override;
  int64_t AccumulationBytes() const override;
  absl::Status ImportAccumulation(const Accumulation& accumulation) override;
  void SetNextState(int64_t number) override { next_state_ = number; }

  absl::Status health() const override ABSL_LOCKS_EXCLUDED(health_mu_);
  int64_t step() const override { return step_.load(); }
  bool accumulating() const override { return accumulating_.load(); }
  const Plan& plan() const override { return plan_; }
  const ModelSignature& signature() const override { return signature_; }
  int64_t parameter_count() const override;
  RankGroup& ranks() { return ranks_; }
  void SetIdleReason(IdleReason reason) override;

 private:
  // Its targets, and how much of the step each micro-batch is.
  struct ScatteredLoss {
    std::unique_ptr<Loss> owned;  // if the call named its own
    std::vector<LossContext> losses;
    double counted = 0;  // elements, or the sum of what they weigh
    double total = 0;    // of the whole step
  };

  // What a call asks of an optimizer step.
  struct StepRule {
    double learning_rate = 0;
    double clip_norm = 0;
    bool loss_finite = true;  // of what this step has accumulated
  };
  // A run, and what leads it.
  struct LedRun {
    std::shared_ptr<Run> run;
    std::shared_ptr<LocalCoordinator> leader;
    std::shared_ptr<const void> open = {};  // on other ranks
  };

  RankEngine::Parts WithOwn(RankEngine::Parts parts);
  int stage_count() const { return static_cast<int>(plan_.stages.size()); }
  RunSpec NewSpec(SchedulePurpose purpose, int micro_batches);
  LedRun NewRun(RunSpec spec, ListsOfRun lists, std::shared_ptr<CancelToken> cancel);
  absl::Status RunToEnd(const LedRun& led, RunOutcome& outcome);

  absl::StatusOr<ScatteredBatch> ScatterInputs(const NamedValues& inputs,
                                               const std::optional<int>& micro_batches) const;
  absl::Status ScatterTarget(const ContributionRequest& request, const ScatteredBatch& scattered,
                             ScatteredLoss& result) const;
  absl::StatusOr<NamedValues> GatherOutputs(const Run& run, const std::vector<int>& wanted) const;
  std::vector<std::string> OutputNames() const;

  absl::StatusOr<RunOutcome> Contribute(const ContributionRequest& request, const std::optional<StepRule>& rule);
  StepRule RuleOf(const StepRequest& request) const;
  // On the thread of the lane that completes the norms. `status`: of what else must not fail once weights change.
  void Decide(const LedRun& led, const StepRule& rule, absl::Status status);
  absl::Status FinishStep(const LedRun& led, const absl::Status& status, RunOutcome& outcome);
  // After a run with a step that failed: everything is as before the run, or the pipeline is broken. What to tell.
  absl::Status UndoStep(const LedRun& led, bool changed, const absl::Status& cause);
  // From here on the weights belong to no step (PIPELINE_BROKEN): only an ImportState repairs that.
  void Break(std::string_view what, const absl::Status& cause) ABSL_LOCKS_EXCLUDED(health_mu_);
  absl::Status CheckStep(const StepRequest& request) const;
  // Other weights are there: the finished steps from now on.
  void ChangeWeights(int64_t step);
  class InferenceCall;
  struct InferenceParts;
  void StartInference(InferenceParts parts, int32_t priority, int64_t turn);
  absl::StatusOr<RunOutcome> InferenceOutcome(const LedRun& led, const InferenceParts& parts, double seconds) const;
  void Measure(const Run& run, const InferenceParts& parts, RunOutcome& outcome) const;
  absl::StatusOr<NamedTensors> CopyToHost(const std::function<absl::StatusOr<NamedTensors>()>& views) const;
  absl::StatusOr<std::vector<at::Tensor>> SourcesOf(const NamedTensors& views, const NamedTensors& state) const;

  // Constant after construction.
  const PipelineSpec spec_;  // but for its optimizer: optimizer_
  const Options options_;
  const Plan plan_;
  const ModelSignature signature_;
  DevicePool* const devices_;
  Clock* const clock_;
  const std::unique_ptr<Loss> loss_;
  const TiedGradients ties_;  // empty places, one per use of each tied parameter
  const std::shared_ptr<PipelineMetrics> metrics_;

  // Safe by itself.
  const std::unique_ptr<PipelineRanks> others_;
  RankGroup ranks_;  // before what tells it of arrivals
  RankEngine rank_;
  WeightsGate gate_;
  std::atomic<int64_t> next_run_ = 1;
  std::atomic<int64_t> next_inference_ = 1;
  std::atomic<int64_t> step_ = 0;
  std::atomic<int64_t> state_ = 0;  // number of the one that the weights came with
  std::atomic<bool> accumulating_ = false;
  std::atomic<StageState> idle_ = StageState::kNoWork;

  // Caller.
  int next_micro_batch_ = 0;  // of the open step
  bool loss_finite_ = true;   // of the open accumulation
  int64_t next_state_ = 0;    // number of the one that this call leads to

  // What is told while there are no details.
  const absl::Status broken_ =
      Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_BROKEN",
            "the pipeline has failed half-way; restore a checkpoint, write all parameters with "
            "the optimizer's state, or delete the pipeline");
  mutable absl::Mutex optimizer_mu_;
  OptimizerSpec optimizer_ ABSL_GUARDED_BY(optimizer_mu_);  // written by the caller

  mutable absl::Mutex health_mu_;
  absl::Status health_ ABSL_GUARDED_BY(health_mu_);

  absl::Mutex inference_mu_;
  int open_inferences_ ABSL_GUARDED_BY(inference_mu_) = 0;
};

}  // namespace penstock
