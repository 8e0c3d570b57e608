#pragma once

// A pipeline without stages: one weight, one gradient, and switches to hold runs and to let them fail.

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/exec/pipeline.h"
#include "engine/serve/pipeline_table.h"

namespace penstock::testing {

// What tests see of a FakePipeline and tell it; shared, so that it outlives the pipeline.
//
// Model:     The weight w is one number; output y = x * w; a contribution adds the mean of x to the gradient; a step
//            subtracts it. Inputs that are no tensors may stand beside x, and inference gives them back. The gradient
//            of x is that of y times w. Every training run waits while held, and fails if told to.
class FakePipelineControl {
 public:
  // Training runs wait at their start until Resume().
  void Hold() {
    Set([this] { held_ = true; });
  }
  void Resume() {
    Set([this] { held_ = false; });
  }
  // Inference runs are kept until ResumeInference(), or until they are cancelled.
  void HoldInference() {
    Set([this] { inference_held_ = true; });
  }
  void ResumeInference() {
    std::deque<std::function<void()>> runs;
    {
      absl::MutexLock lock(&mu_);
      inference_held_ = false;
      runs.swap(kept_);
    }
    for (const auto& run : runs) run();
  }
  // The first of the kept runs goes on.
  void ResumeOneInference() {
    std::function<void()> run;
    Set([&] {
      run = std::move(kept_.front());
      kept_.pop_front();
    });
    run();
  }
  // The next training run fails with this.
  void FailNext(absl::Status status) {
    Set([&] { fail_next_ = std::move(status); });
  }

  // Inference of rows with this value fails from now on.
  void FailRowsOf(float value) {
    Set([&] { failing_row_ = value; });
  }
  // Inference gives sums over all rows from now on.
  void SumRows() {
    Set([&] { sums_rows_ = true; });
  }
  // Inference subtracts the mean over all rows from now on.
  void MixRows() {
    Set([&] { mixes_rows_ = true; });
  }
  // Inference tells of each element only whether it is above 0 from now on.
  void TellSigns() {
    Set([&] { tells_signs_ = true; });
  }
  // Runs of inference: rows, and micro-batches if they were said.
  std::vector<std::pair<int64_t, std::optional<int>>> inferences() const { return Get(inferences_); }

  // What health() returns from now on.
  void SetHealth(absl::Status health) {
    Set([&] { health_ = std::move(health); });
  }
  absl::Status health() const { return Get(health_); }

  // The next call of that method throws: something of the engine, or what it does where memory is short.
  void ThrowIn(const std::string& method) {
    Set([&] {
      throw_in_ = method;
      out_of_memory_ = false;
    });
  }
  void RunOutOfMemoryIn(const std::string& method) {
    Set([&] {
      throw_in_ = method;
      out_of_memory_ = true;
    });
  }

  // Runs at the end of the next pipeline, on the thread that destroys it.
  void AtTheEnd(std::function<void()> hook) {
    Set([&] { at_the_end_ = std::move(hook); });
  }

  // Runs whenever that point is reached, on the thread that does, and must take no memory: "infer" and "infer ends" as
  // InferAsync begins and returns while inference is held, "forward ends", "idle" as the idle reason is set.
  void At(const std::string& point, std::function<void()> hook) {
    Set([&] { hooks_[point] = std::move(hook); });
  }

  // Waits until a training run stands still.
  void AwaitHeld() {
    Await([this] { return standing_; });
  }
  void AwaitInferences(int count) {
    Await([this, count] { return static_cast<int>(kept_.size()) >= count; });
  }

  std::vector<std::string> runs() const { return Get(runs_); }
  std::vector<int32_t> inference_priorities() const { return Get(priorities_); }  // as they came
  std::vector<int64_t> inference_turns() const { return Get(turns_); }            // as they came
  std::vector<Pipeline::IdleReason> idle_reasons() const { return Get(idle_reasons_); }
  void AwaitIdleReason(Pipeline::IdleReason reason) {
    Await([this, reason] { return !idle_reasons_.empty() && idle_reasons_.back() == reason; });
  }
  int64_t graphs() const { return *graphs_; }
  NamedValues inputs() const { return Get(inputs_); }  // that were checked last
  // What each optimizer step that ran was asked for.
  std::vector<StepRequest> steps() const { return Get(steps_); }

 private:
  friend class FakePipeline;

  template <typename Change>
  void Set(Change change) {
    absl::MutexLock lock(&mu_);
    change();
  }
  template <typename Ready>
  void Await(Ready ready) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&ready));
  }
  template <typename T>
  T Get(const T& value) const {
    absl::MutexLock lock(&mu_);
    return value;
  }

  void Reach(std::string_view point) {
    absl::MutexLock lock(&mu_);
    if (const auto hook = hooks_.find(point); hook != hooks_.end()) hook->second();
  }
  void MayThrow(const std::string& method) {
    absl::MutexLock lock(&mu_);
    if (throw_in_ != method) return;
    throw_in_.clear();
    if (out_of_memory_) throw std::bad_alloc();
    throw std::runtime_error("thrown in " + method);
  }

  // The start of a training run; fails if the test or the caller wants so.
  absl::Status Begin(const std::string& what, const CancelToken* cancel) {
    MayThrow(what);
    absl::MutexLock lock(&mu_);
    runs_.push_back(what);
    standing_ = held_;
    auto go = [&] { return !held_ || (cancel != nullptr && cancel->cancelled()); };
    // The token is no condition of the mutex, so it is looked at again and again.
    while (!mu_.AwaitWithTimeout(absl::Condition(&go), absl::Milliseconds(1))) {
    }
    standing_ = false;
    if (cancel != nullptr && cancel->cancelled()) {
      return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the run was cancelled");
    }
    return std::exchange(fail_next_, absl::OkStatus());
  }

  mutable absl::Mutex mu_;
  bool held_ = false;
  bool standing_ = false;
  bool inference_held_ = false;
  std::optional<float> failing_row_;
  bool sums_rows_ = false;
  bool mixes_rows_ = false;
  bool tells_signs_ = false;
  std::vector<std::pair<int64_t, std::optional<int>>> inferences_;
  absl::Status health_;
  absl::Status fail_next_;
  std::string throw_in_;
  bool out_of_memory_ = false;
  std::function<void()> at_the_end_;
  std::map<std::string, std::function<void()>, std::less<>> hooks_;
  NamedValues inputs_;
  std::vector<std::string> runs_;
  std::vector<StepRequest> steps_;
  std::vector<int32_t> priorities_;
  std::vector<int64_t> turns_;
  std::vector<Pipeline::IdleReason> idle_reasons_;
  std::deque<std::function<void()>> kept_;
  const std::shared_ptr<std::atomic<int64_t>> graphs_ = std::make_shared<std::atomic<int64_t>>(0);
};

class FakePipeline : public Pipeline {
 public:
  explicit FakePipeline(std::shared_ptr<FakePipelineControl> control) : control_(std::move(control)) {
    signature_.inputs = {{"x", DataType::kFp32, {-1}}};
    signature_.outputs = {{"y", DataType::kFp32, {-1}}};
    plan_.stages = {{.first_layer = 0, .layers = {"scale"}, .device = "cpu:0"}};
    plan_.schedule.micro_batches = 2;
  }
  ~FakePipeline() override {
    std::function<void()> hook;
    control_->Set([&] { hook.swap(control_->at_the_end_); });
    if (hook) hook();
  }

  absl::StatusOr<RunOutcome> ForwardBackward(ContributionRequest request) override {
    return Contribute("ForwardBackward", request);
  }
  absl::StatusOr<RunOutcome> OptimizerStep(StepRequest request) override {
    if (absl::Status status = control_->Begin("OptimizerStep", nullptr); !status.ok()) return status;
    return Step(request);
  }
  absl::StatusOr<RunOutcome> TrainStep(ContributionRequest request, StepRequest step) override {
    absl::StatusOr<RunOutcome> outcome = Contribute("TrainStep", request);
    if (!outcome.ok()) return outcome;
    const RunOutcome stepped = Step(step);
    outcome->step = stepped.step;
    outcome->applied = stepped.applied;
    return outcome;
  }
  absl::StatusOr<ForwardOutcome> Forward(ForwardRequest request) override {
    if (absl::Status status = control_->Begin("Forward", request.cancel.get()); !status.ok()) return status;
    // Graph is opaque: any pointer serves.
    ++*control_->graphs_;
    std::shared_ptr<int> held(new int(0), [count = control_->graphs_](int* p) {
      delete p;
      --*count;
    });
    std::shared_ptr<Graph> graph(held, reinterpret_cast<Graph*>(held.get()));
    ForwardOutcome outcome{
        {{"y", at::mul(*request.inputs[0].value.tensor(), weight_.load())}}, std::move(graph), step_};
    control_->Reach("forward ends");
    return outcome;
  }
  absl::StatusOr<RunOutcome> Backward(const std::shared_ptr<Graph>&, NamedTensors gradients, bool) override {
    if (absl::Status status = control_->Begin("Backward", nullptr); !status.ok()) return status;
    gradient_ += gradients[0].tensor.mean().item<float>();
    accumulating_ = true;
    RunOutcome outcome;
    outcome.step = step_;
    outcome.input_gradients = {{"x", at::mul(gradients[0].tensor, weight_.load())}, {"unused", Value()}};
    return outcome;
  }
  void DiscardGradients() override {
    gradient_ = 0;
    accumulating_ = false;
  }

  void InferAsync(ForwardRequest request, std::function<void(absl::StatusOr<ForwardOutcome>)> done) override {
    control_->Reach("infer");
    control_->MayThrow("InferAsync");
    const float weight = weight_;
    auto run = [control = control_, request, weight, step = step_.load(), done = std::move(done)] {
      if (request.cancel->cancelled()) {
        done(Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the run was cancelled"));
        return;
      }
      const at::Tensor& x = *request.inputs[0].value.any_tensor();
      if (const auto failing = control->Get(control->failing_row_);
          failing.has_value() && x.eq(*failing).any().item<bool>()) {
        done(Error(absl::StatusCode::kInvalidArgument, "LAYER_FAILED", "a row fails"));
        return;
      }
      at::Tensor y = control->Get(control->mixes_rows_) ? x.sub(x.mean()) : at::mul(x, weight);
      if (control->Get(control->tells_signs_)) y = y.gt(0);
      ForwardOutcome outcome{{{"y", control->Get(control->sums_rows_) ? y.sum(0, true) : y}}, nullptr, step};
      outcome.outputs.insert(outcome.outputs.end(), request.inputs.begin() + 1, request.inputs.end());
      done(std::move(outcome));
    };
    bool held = false;
    {
      absl::MutexLock lock(&control_->mu_);
      control_->priorities_.push_back(request.priority);
      control_->turns_.push_back(request.turn);
      control_->inferences_.push_back({request.inputs[0].value.any_tensor()->size(0), request.micro_batches});
      held = control_->inference_held_;
      if (held) control_->kept_.push_back(std::move(run));
    }
    if (held) return control_->Reach("infer ends");
    run();
  }

  // The loss is the mean of x * w - target; the only metric is "rows".
  void EvaluateAsync(EvaluationRequest request, std::function<void(absl::StatusOr<RunOutcome>)> done) override {
    const float weight = weight_;
    auto run = [request, weight, step = step_.load(), state = state_.load(), done = std::move(done)] {
      if (request.batch.cancel->cancelled()) {
        done(Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the run was cancelled"));
        return;
      }
      const at::Tensor& x = *request.batch.inputs[0].value.tensor();
      RunOutcome outcome;
      outcome.loss = at::mul(x, weight).sub(request.batch.target).mean().item<float>();
      outcome.step = step;
      outcome.state = state;
      outcome.rows = x.size(0);
      outcome.counted = static_cast<double>(x.numel());
      outcome.metric_elements = x.numel();
      for (const std::string& metric : request.metrics) outcome.metrics[metric] = static_cast<double>(x.size(0));
      done(std::move(outcome));
    };
    {
      absl::MutexLock lock(&control_->mu_);
      control_->priorities_.push_back(request.priority);
      control_->turns_.push_back(request.turn);
      if (control_->inference_held_) {
        control_->kept_.push_back(std::move(run));
        return;
      }
    }
    run();
  }

  absl::StatusOr<int64_t> CheckInputs(const NamedValues& inputs, bool) const override {
    control_->MayThrow("CheckInputs");
    control_->Set([&] { control_->inputs_ = inputs; });
    const at::Tensor* x = inputs.empty() ? nullptr : inputs[0].value.any_tensor();
    const bool one_tensor = std::count_if(inputs.begin(), inputs.end(),
                                          [](const NamedValue& input) { return input.value.is_tensor(); }) <= 1;
    if (x != nullptr && inputs[0].name == "x" && x->dim() == 1 && one_tensor) return x->size(0);
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE", "expects one vector x")
        .With("field", "inputs");
  }
  absl::Status CheckTarget(const at::Tensor&, const at::Tensor&, const std::optional<LossSpec>&,
                           int64_t) const override {
    return absl::OkStatus();
  }
  absl::Status CheckMetrics(const std::vector<std::string>& metrics, const std::optional<LossSpec>&) const override {
    if (metrics.empty() || metrics[0] == "rows") return absl::OkStatus();
    return InvalidField("metrics[0]", "the loss has: rows", metrics[0]);
  }
  absl::Status CheckOutputs(const std::vector<std::string>&) const override { return absl::OkStatus(); }
  absl::Status CheckGradients(const Graph&, const NamedTensors&) const override { return absl::OkStatus(); }
  NamedTensors StateShapes() const override { return *ExportState(true); }
  absl::StatusOr<NamedTensors> ExportState(bool with_optimizer) const override {
    control_->MayThrow("ExportState");
    NamedTensors state = {{"scale.weight", at::full({1}, weight_.load())}};
    if (with_optimizer) state.push_back({"optimizer/scale.weight/momentum", at::full({1}, 0.5)});
    return state;
  }
  absl::Status ImportState(const NamedTensors& state, int64_t step) override {
    if (state.size() != 2 || state[0].name != "scale.weight") {
      return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH", "another model");
    }
    weight_ = state[0].tensor.item<float>();
    step_ = step;
    state_ = next_state_;
    return absl::OkStatus();
  }
  absl::Status UpdateOptimizer(const OptimizerSpec& spec) override {
    if (absl::Status status = control_->Begin("UpdateOptimizer", nullptr); !status.ok()) return status;
    absl::MutexLock lock(&optimizer_mu_);
    optimizer_ = spec;
    return absl::OkStatus();
  }
  OptimizerSpec optimizer() const override {
    absl::MutexLock lock(&optimizer_mu_);
    return optimizer_;
  }
  absl::StatusOr<NamedTensors> ExportGradients() const override {
    if (!accumulating_) return Error(absl::StatusCode::kFailedPrecondition, "ACCUMULATION_EMPTY", "none");
    return NamedTensors{{"scale.weight", at::full({1}, gradient_)}};
  }
  absl::StatusOr<Accumulation> ExportAccumulation() const override {
    return Accumulation{.open = accumulating_, .tensors = {{"gradient/scale.weight", at::full({1}, gradient_)}}};
  }
  int64_t AccumulationBytes() const override { return 4; }
  absl::Status ImportAccumulation(const Accumulation& accumulation) override {
    gradient_ = accumulation.tensors[0].tensor.item<float>();
    accumulating_ = accumulation.open;
    return absl::OkStatus();
  }
  void SetNextState(int64_t number) override { next_state_ = number; }
  absl::Status health() const override { return control_->health(); }
  int64_t step() const override { return step_; }
  bool accumulating() const override { return accumulating_; }
  const Plan& plan() const override { return plan_; }
  const ModelSignature& signature() const override { return signature_; }
  int64_t parameter_count() const override { return 1; }
  void SetIdleReason(IdleReason reason) override {
    control_->Reach("idle");
    control_->Set([&] { control_->idle_reasons_.push_back(reason); });
  }

 private:
  absl::StatusOr<RunOutcome> Contribute(const std::string& what, const ContributionRequest& request) {
    if (absl::Status status = control_->Begin(what, request.cancel.get()); !status.ok()) return status;
    gradient_ += request.inputs[0].value.tensor()->mean().item<float>();
    accumulating_ = true;
    RunOutcome outcome;
    outcome.loss = gradient_;
    outcome.rows = request.inputs[0].value.tensor()->size(0);
    outcome.step = step_;
    for (const std::string& name : request.outputs) {
      outcome.outputs.push_back({name, at::mul(*request.inputs[0].value.tensor(), weight_.load())});
    }
    return outcome;
  }
  RunOutcome Step(const StepRequest& request) {
    control_->Set([&] { control_->steps_.push_back(request); });
    weight_ = weight_ - gradient_;
    DiscardGradients();
    RunOutcome outcome;
    outcome.step = ++step_;
    state_ = next_state_;
    outcome.applied = true;
    return outcome;
  }

  const std::shared_ptr<FakePipelineControl> control_;
  ModelSignature signature_;
  Plan plan_;
  mutable absl::Mutex optimizer_mu_;
  OptimizerSpec optimizer_ ABSL_GUARDED_BY(optimizer_mu_);
  std::atomic<float> weight_ = 1;
  float gradient_ = 0;
  std::atomic<int64_t> step_ = 0;
  std::atomic<int64_t> state_ = 0;
  int64_t next_state_ = 0;
  std::atomic<bool> accumulating_ = false;
};

}  // namespace penstock::testing
