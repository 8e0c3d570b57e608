#pragma once

// A served pipeline over the real engine, and what a caller does with it.

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/synchronization/notification.h"
#include "engine/base/cancel_token.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/timer_queue.h"
#include "engine/device/device.h"
#include "engine/exec/device_pool.h"
#include "engine/schedule/action.h"
#include "engine/serve/served_pipeline.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temporary_folder.h"

namespace penstock::testing {

inline constexpr int64_t kWidth = 3;
inline PipelineSpec ServedSpec() {
  const LayerSpec linear{"linear", "", {{"in", kWidth}, {"out", kWidth}}};
  PipelineSpec spec;
  spec.model.layers = {linear, {"batch_norm", "", {{"features", kWidth}}}, linear};
  spec.cut.balance = {2, 1};
  spec.schedule = {"1f1b", 2, CheckpointMode::kAlways};
  spec.optimizer.name = "adamw";
  spec.loss.name = "mean_squared_error";
  return spec;
}

// A served pipeline of two stages, which breaks where it is told, with copies to undo a step or without.
class ServedEngine {
 public:
  explicit ServedEngine(const std::string& folder, bool undo = true) : handles_({}, &clock_, &timers_) {
    UseCores(
        {"cpu:0", {0}});  // Alone() computes on the calling thread, and bits depend on how many threads share a product
    Pipeline::Options options;
    options.devices = &pool_;
    if (!undo) options.edits.plan = [](Plan& plan) { plan.undo = false; };
    options.before_action = [this](const Action& action) {
      if (before_action) before_action(action);
    };
    options.fault_point = [this](FaultPoint point, int stage) {
      if (fault == std::pair(point, stage)) throw std::bad_alloc();
    };
    std::unique_ptr<Pipeline> pipeline = Pipeline::Create(ServedSpec(), std::move(options)).value();
    hosted = ServedPipeline::Start(
        std::move(pipeline), CheckpointFolder::Open(RealFileSystem(), &clock_, folder, "gpt").value(),
        {.name = "gpt", .origin = {.spec_digest = "d"}, .handles = &handles_, .timers = &timers_, .clock = &clock_});
  }
  ~ServedEngine() {
    hosted->Stop();
    hosted.reset();
    handles_.Close();
  }

  // The same model without what serves it, on the calling thread.
  std::unique_ptr<Pipeline> Alone() {
    Pipeline::Options options;
    options.devices = &serial_pool_;
    return Pipeline::Create(ServedSpec(), std::move(options)).value();
  }
  ContributionRequest AloneBatch() const {
    ContributionRequest request;
    request.inputs = {{"input", input_}};
    request.target = target_;
    return request;
  }
  at::Tensor AloneInfer(Pipeline& alone) {
    ForwardRequest request;
    request.inputs = {{"input", input_}};
    request.cancel = std::make_shared<CancelToken>();
    absl::StatusOr<ForwardOutcome> outcome;
    absl::Notification done;
    alone.InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> answer) {
      outcome = std::move(answer);
      done.Notify();
    });
    serial_pool_.Wait(done);
    return *outcome.value().outputs[0].value.tensor();
  }

  ContributionCall Batch() const {
    ContributionCall call;
    call.inputs.push_back({"input", input_});
    call.target = {"target", target_};
    return call;
  }
  // How the handle settled: OK, or its error.
  absl::Status Settled(const absl::StatusOr<Accepted>& accepted, std::optional<HandleName> Accepted::*handle) {
    if (!accepted.ok()) return accepted.status();
    absl::Status error;
    absl::Notification done;
    handles_.OnSettled("ann", {*((*accepted).*handle)}, HandleStore::WaitMode::kAll,
                       std::numeric_limits<int64_t>::max(), [&](std::vector<HandleStore::HandleAnswer> answers) {
                         error = answers[0].ok() ? answers[0]->error : answers[0].status();
                         done.Notify();
                       });
    done.WaitForNotification();
    return error;
  }
  absl::StatusOr<Accepted> StartStep(StepRequest request = {}) { return hosted->TrainStep(Ann(), Batch(), request); }
  absl::Status TrainStep(StepRequest request = {}) { return Settled(StartStep(request), &Accepted::outcome); }
  absl::StatusOr<CancelEffect> Cancel(const HandleName& handle) { return handles_.RequestCancel("ann", handle); }
  absl::Status Contribute() { return Settled(hosted->ForwardBackward(Ann(), Batch()), &Accepted::outcome); }
  absl::Status OptimizerStep() { return Settled(hosted->OptimizerStep(Ann(), {}), &Accepted::outcome); }
  absl::StatusOr<Accepted> StartInfer() {
    InferCall call;
    call.inputs.push_back({"input", input_});
    return hosted->Infer(Ann(), std::move(call));
  }
  absl::Status Infer() { return Settled(StartInfer(), &Accepted::outputs); }
  // Of a call that has settled well.
  at::Tensor OutputOf(const Accepted& accepted) {
    return (*handles_.Pin("ann", *accepted.outputs).value().tensors())[0].tensor;
  }
  absl::Status Forward() {
    ForwardCall call;
    call.inputs.push_back({"input", input_});
    return Settled(hosted->Forward(Ann(), std::move(call)), &Accepted::outputs);
  }
  absl::StatusOr<NamedTensors> Read() {
    absl::StatusOr<NamedTensors> tensors;
    absl::Notification done;
    const auto read = [&](absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> snapshot) {
      tensors = snapshot.ok() ? absl::StatusOr<NamedTensors>((*snapshot)->tensors)
                              : absl::StatusOr<NamedTensors>(snapshot.status());
      done.Notify();
    };
    hosted->ReadParameters(Ann(), {.content = ReadContent::kWithOptimizer, .done = read},
                           std::make_shared<CancelToken>());
    done.WaitForNotification();
    return tensors;
  }
  absl::Status Save(const std::string& id) {
    return Wait([&](auto done) { hosted->SaveCheckpoint(Ann(), {.id = id}, done); });
  }
  absl::Status Restore(const std::string& id) {
    return Wait([&](auto done) { hosted->RestoreCheckpoint(Ann(), id, /*force=*/false, done); });
  }
  absl::Status Write(const NamedTensors& tensors, int64_t step) {
    const HandleName put = *handles_.Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
    handles_.Fulfil(put.id, tensors);
    return Wait([&](auto done) { hosted->WriteParameters(Ann(), {.handles = {put}, .step = step}, done); });
  }
  // The same model in stages of its own, on the same devices.
  std::unique_ptr<Pipeline> Another(const std::string& optimizer) {
    Pipeline::Options options;
    options.devices = &pool_;
    PipelineSpec spec = ServedSpec();
    spec.optimizer.name = optimizer;
    return Pipeline::Create(spec, std::move(options)).value();
  }
  // Another engine in the place of the one that stands.
  absl::Status Update(const PipelineSpec& spec, std::function<void()> done = nullptr) {
    Pipeline::Options options;
    options.devices = &pool_;
    const auto next = std::make_shared<MadeEngine>();
    next->pipeline = Pipeline::Create(spec, std::move(options)).value();
    next->batching = spec.batching;
    return Wait([&](auto answered) { hosted->Update(Ann(), {.engine = next, .done = done}, answered); });
  }
  absl::StatusOr<std::optional<CheckpointInfo>> SaveLast() {
    absl::StatusOr<std::optional<CheckpointInfo>> answer;
    absl::Notification done;
    hosted->SaveLast(std::make_shared<CancelToken>(), [&](auto saved) {
      answer = std::move(saved);
      done.Notify();
    });
    done.WaitForNotification();
    return answer;
  }

  // Changed only while nothing runs.
  std::optional<std::pair<FaultPoint, int>> fault;
  std::function<void(const Action&)> before_action;
  std::shared_ptr<ServedPipeline> hosted;

 private:
  static CallContext Ann() { return {.caller = "ann"}; }
  static absl::Status Wait(const std::function<void(StateCallback)>& call) {
    absl::Status status;
    absl::Notification done;
    call([&](const absl::StatusOr<StateAnswer>& answer) {
      status = answer.status();
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  const at::Tensor input_ = at::ones({4, kWidth}).cumsum(0).sin();
  const at::Tensor target_ = at::ones({4, kWidth}).cumsum(1).cos();
  FakeClock clock_;
  TimerQueue timers_{&clock_};
  HandleStore handles_;
  DevicePool pool_{{{"cpu:0", {0}}, {"cpu:1", {0}}}, DevicePool::Mode::kThreads};
  DevicePool serial_pool_{{{"cpu:0", {0}}, {"cpu:1", {0}}}, DevicePool::Mode::kSerial};
};

inline bool Same(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name || !at::equal(a[i].tensor, b[i].tensor)) return false;
  }
  return true;
}

}  // namespace penstock::testing
