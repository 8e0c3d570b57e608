#pragma once

// The pipeline that stands now, behind one that stays.

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/exec/pipeline.h"

namespace penstock {

// A Pipeline that hands every call to another one, which an update replaces.
//
// Model:     the parts of a served pipeline keep one pointer for its life. What they ask goes to the pipeline that stands at
//            that moment. References that plan() and signature() have returned stay good: plans and signatures of all
//            that have stood are kept, some kilobytes each.
// Owns:      the pipeline that stands. One that was replaced goes with the last call on it.
// Threads:   as Pipeline. Replace() from any, while no run is open, no graph of the old one is left, and nothing trains.
class CurrentPipeline final : public Pipeline {
  struct Facts {
    Plan plan;
    ModelSignature signature;
  };

 public:
  explicit CurrentPipeline(std::unique_ptr<Pipeline> first) { Replace(Prepare(std::move(first))); }

  // One that is to stand, with all that takes memory.
  struct Prepared {
    std::shared_ptr<Pipeline> pipeline;
    std::shared_ptr<absl::Notification> gone;  // when it is destroyed
    std::list<Facts> facts;
  };
  static Prepared Prepare(std::unique_ptr<Pipeline> next);
  // Returns the one that stood. Takes no memory, and destroys nothing.
  Prepared Replace(Prepared next) noexcept ABSL_LOCKS_EXCLUDED(mu_);

  absl::StatusOr<RunOutcome> ForwardBackward(ContributionRequest request) override {
    return now()->ForwardBackward(std::move(request));
  }
  absl::StatusOr<RunOutcome> OptimizerStep(StepRequest request) override {
    return now()->OptimizerStep(std::move(request));
  }
  absl::StatusOr<RunOutcome> TrainStep(ContributionRequest request, StepRequest step) override {
    return now()->TrainStep(std::move(request), std::move(step));
  }
  absl::StatusOr<ForwardOutcome> Forward(ForwardRequest request) override { return now()->Forward(std::move(request)); }
  absl::StatusOr<RunOutcome> Backward(const std::shared_ptr<Graph>& graph, NamedTensors gradients,
                                      bool retain_graph) override {
    return now()->Backward(graph, std::move(gradients), retain_graph);
  }
  void DiscardGradients() override { now()->DiscardGradients(); }
  void InferAsync(ForwardRequest request, std::function<void(absl::StatusOr<ForwardOutcome>)> done) override {
    now()->InferAsync(std::move(request), std::move(done));
  }
  void EvaluateAsync(EvaluationRequest request, std::function<void(absl::StatusOr<RunOutcome>)> done) override {
    now()->EvaluateAsync(std::move(request), std::move(done));
  }

  absl::StatusOr<int64_t> CheckInputs(const NamedValues& inputs, bool needs_rows) const override {
    return now()->CheckInputs(inputs, needs_rows);
  }
  absl::Status CheckTarget(const at::Tensor& target, const at::Tensor& weights, const std::optional<LossSpec>& loss,
                           int64_t rows) const override {
    return now()->CheckTarget(target, weights, loss, rows);
  }
  absl::Status CheckMetrics(const std::vector<std::string>& metrics,
                            const std::optional<LossSpec>& loss) const override {
    return now()->CheckMetrics(metrics, loss);
  }
  absl::Status CheckOutputs(const std::vector<std::string>& outputs) const override {
    return now()->CheckOutputs(outputs);
  }
  absl::Status CheckGradients(const Graph& graph, const NamedTensors& gradients) const override {
    return now()->CheckGradients(graph, gradients);
  }

  absl::StatusOr<NamedTensors> ExportState(bool with_optimizer) const override {
    return now()->ExportState(with_optimizer);
  }
  NamedTensors StateShapes() const override { return now()->StateShapes(); }
  absl::Status ImportState(const NamedTensors& state, int64_t step) override { return now()->ImportState(state, step); }
  absl::Status UpdateOptimizer(const OptimizerSpec& spec) override { return now()->UpdateOptimizer(spec); }
  OptimizerSpec optimizer() const override { return now()->optimizer(); }
  absl::StatusOr<NamedTensors> ExportGradients() const override { return now()->ExportGradients(); }
  absl::StatusOr<Accumulation> ExportAccumulation() const override { return now()->ExportAccumulation(); }
  int64_t AccumulationBytes() const override { return now()->AccumulationBytes(); }
  absl::Status ImportAccumulation(const Accumulation& accumulation) override {
    return now()->ImportAccumulation(accumulation);
  }
  void SetNextState(int64_t number) override { now()->SetNextState(number); }

  absl::Status health() const override { return now()->health(); }
  int64_t step() const override { return now()->step(); }
  bool accumulating() const override { return now()->accumulating(); }
  const Plan& plan() const override { return facts().plan; }
  const ModelSignature& signature() const override { return facts().signature; }
  int64_t parameter_count() const override { return now()->parameter_count(); }
  void SetIdleReason(IdleReason reason) override { now()->SetIdleReason(reason); }

 private:
  std::shared_ptr<Pipeline> now() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return standing_.pipeline;
  }
  const Facts& facts() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return facts_.back();
  }

  mutable absl::Mutex mu_;
  Prepared standing_ ABSL_GUARDED_BY(mu_);       // its facts are among these
  std::list<Facts> facts_ ABSL_GUARDED_BY(mu_);  // of all that have stood; a list's elements stay where they are
};

}  // namespace penstock
