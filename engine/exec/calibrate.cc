#include "engine/exec/calibrate.h"

#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/device/copy_tensors.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"
#include "engine/plan/planner.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

// Nanoseconds of each repeat.
struct StageTimes {
  std::vector<int64_t> forward;
  std::vector<int64_t> backward;
  std::vector<int64_t> input_gradient;  // of schedules that split
  std::vector<int64_t> weight_gradient;
};

// What reaches a stage in one micro-batch.
struct Arrival {
  Batch inputs;
  std::vector<Batch> skips;  // by incoming port

  Pass NewPass() const {
    Pass pass;
    for (const Batch& values : skips) pass.received.emplace_back(values, Portal::kPlain - 1);
    return pass;
  }
};

Batch OnesLike(const Batch& batch) {
  std::vector<Value> ones;
  for (const Value& value : batch) {
    const bool learns = value.is_tensor() && value.tensor()->requires_grad();
    ones.push_back(learns ? Value(at::ones_like(*value.tensor())) : Value());
  }
  return Batch::Tuple(std::move(ones));
}

double Median(std::vector<int64_t> nanos) {
  if (nanos.empty()) return 0;
  std::sort(nanos.begin(), nanos.end());
  return static_cast<double>(nanos[nanos.size() / 2]) * 1e-9;
}

// One stage on its device's thread, as often as the options say.
class StageMeasurement {
 public:
  StageMeasurement(Stage& stage, const Arrival& arrival, const LossContext& loss, Clock* clock)
      : stage_(stage), arrival_(arrival), loss_(loss), clock_(clock), streams_(StreamsOf(stage.device())) {
    context_.training = context_.graph = true;
  }

  // Works on until nobody measures any more, so that nobody measures beside a device that is done.
  void Accompany(const std::atomic<int>& measuring) {
    while (measuring.load() > 0) Repeat(/*split=*/false);
  }

  StageTimes Run(const ProfileOptions& options, bool split) {
    const int64_t begin = clock_->NowNanos();
    for (int repeat = 0; repeat <= options.repeats; ++repeat) {
      Repeat(split);
      if (repeat == 0) times_ = StageTimes();  // warm-up; also the only one that does not add to gradients
      const bool late = clock_->NowNanos() - begin > options.budget_nanos || options.planning->OutOfTime();
      if (repeat > 0 && late) break;
    }
    return std::move(times_);
  }

 private:
  int64_t Time(const std::function<void()>& work) {
    streams_.Synchronize();
    const int64_t start = clock_->NowNanos();
    streams_.RunOn(StreamKind::kCompute, work);
    streams_.Synchronize();
    return clock_->NowNanos() - start;
  }

  // A pass that has gone forward, and what comes back to it.
  Batch Forward(Pass& pass) {
    pass = arrival_.NewPass();
    times_.forward.push_back(Time([&] { stage_.Forward(arrival_.inputs, context_, loss_, pass); }));
    for (const Batch& skips : pass.skip_outputs) pass.sent.emplace_back().PutGradient(OnesLike(skips));
    return OnesLike(pass.outputs);
  }

  void Repeat(bool split) {
    Pass pass;
    Batch gradients = Forward(pass);
    times_.backward.push_back(Time([&] { stage_.Backward(pass, gradients, /*retain_graph=*/false); }));
    if (!split) return;
    gradients = Forward(pass);
    times_.input_gradient.push_back(Time([&] { stage_.InputGradient(pass, gradients); }));
    times_.weight_gradient.push_back(Time([&] { stage_.WeightGradient(pass); }));
  }

  Stage& stage_;
  const Arrival& arrival_;
  const LossContext loss_;
  Clock* const clock_;
  DeviceStreams& streams_;
  PassContext context_;
  StageTimes times_;
};

}  // namespace

absl::Status CalibrateStages(const std::vector<std::unique_ptr<Stage>>& stages, const std::vector<Device>& devices,
                             const std::vector<TensorSignature>& inputs, const LossContext& loss,
                             const ProfileOptions& options, int64_t open_dimension, Clock* clock, Plan& plan) {
  // Nobody knows what such a model takes: the plan stays as it is.
  if (std::any_of(inputs.begin(), inputs.end(), [](const TensorSignature& input) { return input.any; })) {
    return PredictPlan(plan);
  }
  // What reaches each stage, found by one pass through all of them.
  std::vector<Arrival> reaches(stages.size());
  LossContext last_loss;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    const Tensors examples = ExampleInputs(inputs, options.rows, open_dimension);
    Batch values = examples.size() == 1 ? Batch(examples[0]) : Batch::OfTensors(examples);
    std::map<std::pair<int, int>, Batch> skips;  // by (from, to)
    for (size_t s = 0; s < stages.size(); ++s) {
      const int index = static_cast<int>(s);
      const auto here = [&](const at::Tensor& tensor) { return ToDevice(tensor, devices[s]); };
      reaches[s].inputs = values.MapTensors(here);
      for (const SkipPort& port : stages[s]->incoming()) {
        reaches[s].skips.push_back(skips[{port.peer, index}].MapTensors(here));
      }
      Pass pass = reaches[s].NewPass();
      PassContext context;
      context.training = true;
      StreamsOf(devices[s]).RunOn(StreamKind::kCompute, [&] {
        stages[s]->Forward(reaches[s].inputs, context, {}, pass);
      });
      for (size_t port = 0; port < pass.skip_outputs.size(); ++port) {
        skips[{index, stages[s]->outgoing()[port].peer}] = pass.skip_outputs[port];
      }
      values = std::move(pass.outputs);
    }
    last_loss = loss;
    if (loss.loss == nullptr || !loss.loss->needs_target()) return;
    const at::Tensor& output = values.TensorAt(loss.output);
    const TensorSignature target =
        loss.loss->Target({"", ToDataType(output.scalar_type()).value(), output.sizes().vec()});
    last_loss.target = ExampleInputs({target}, options.rows, 1).at(0);
  }));

  std::map<std::string, std::vector<size_t>> stages_of;
  for (size_t s = 0; s < stages.size(); ++s) stages_of[devices[s].name].push_back(s);
  const bool split = SplitsBackward(plan);
  std::vector<StageTimes> times(stages.size());
  std::vector<absl::Status> failed(stages.size());
  {
    std::atomic<int> measuring = static_cast<int>(stages_of.size());
    std::vector<std::unique_ptr<Thread>> threads;  // last: they read what stands above until they are joined
    for (const auto& [name, own] : stages_of) {
      const Device& device = devices[own.front()];
      threads.push_back(std::make_unique<Thread>(
          absl::StrCat("ps-calib-", name),
          [&, &own = own] {
            UseCores(device);
            const auto on_stage = [&](size_t s, const auto& work) {
              const bool last = s + 1 == stages.size();
              return RunTorch([&] {
                StageMeasurement measurement(*stages[s], reaches[s], last ? last_loss : LossContext(), clock);
                work(measurement);
              });
            };
            for (size_t s : own) {
              failed[s] = options.planning->CheckWanted();
              if (!failed[s].ok()) break;
              failed[s] =
                  on_stage(s, [&](StageMeasurement& measurement) { times[s] = measurement.Run(options, split); });
            }
            --measuring;
            const size_t any = own.back();
            if (failed[any].ok()) {
              failed[any] = on_stage(any, [&](StageMeasurement& measurement) { measurement.Accompany(measuring); });
            }
          },
          device.cores));
    }
  }  // joins
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s]->ClearGradients();
    stages[s]->DiscardStatistics(MicroBatchIndex(0));
    PENSTOCK_RETURN_IF_ERROR(failed[s]);
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    StagePlan& stage = plan.stages[s];
    stage.forward_seconds = stage.recompute_seconds = Median(std::move(times[s].forward));
    stage.backward_seconds = Median(std::move(times[s].backward));
    stage.input_gradient_seconds = Median(std::move(times[s].input_gradient));
    stage.weight_gradient_seconds = Median(std::move(times[s].weight_gradient));
  }
  return PredictPlan(plan);
}

}  // namespace penstock
