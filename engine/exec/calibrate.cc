#include "engine/exec/calibrate.h"

#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
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
  ValueList ones;
  for (const Value& value : batch) {
    ones.push_back(value.Map([](const Value& one) {
      const bool learns = one.is_tensor() && one.tensor()->requires_grad();
      return learns ? Value(at::ones_like(*one.tensor())) : Value();
    }));
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

  // Goes on until the last device has measured, so that none measures beside an idle device.
  void Accompany(const std::atomic<int>& measuring, const Planning& planning) {
    while (measuring.load() > 0 && planning.CheckWanted().ok()) Repeat(/*split=*/false);
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

// The stages and where they stand, by index.
struct PlacedStages {
  const std::vector<std::unique_ptr<Stage>>& stages;
  const std::vector<Device>& devices;
};

// Runs example inputs forward through all stages: what reaches each, and the last one's outputs. May throw (RunTorch).
Batch FindArrivals(const PlacedStages& placed, Batch values, std::vector<Arrival>& reaches) {
  std::map<std::pair<int, int>, Batch> skips;  // by (from, to)
  for (size_t s = 0; s < placed.stages.size(); ++s) {
    const int index = static_cast<int>(s);
    Stage& stage = *placed.stages[s];
    const Device& device = placed.devices[s];
    const auto here = [&](const at::Tensor& tensor) { return ToDevice(tensor, device); };
    reaches[s].inputs = values.MapTensors(here);
    for (const SkipPort& port : stage.incoming()) {
      reaches[s].skips.push_back(skips[{port.peer, index}].MapTensors(here));
    }
    Pass pass = reaches[s].NewPass();
    PassContext context;
    context.training = true;
    StreamsOf(device).RunOn(StreamKind::kCompute, [&] { stage.Forward(reaches[s].inputs, context, {}, pass); });
    for (size_t port = 0; port < pass.skip_outputs.size(); ++port) {
      skips[{index, stage.outgoing()[port].peer}] = pass.skip_outputs[port];
    }
    values = std::move(pass.outputs);
  }
  return values;
}

// The loss with a made-up target for these outputs, where it needs one. May throw (RunTorch).
LossContext WithTarget(LossContext loss, const Batch& outputs, const ProfileOptions& options) {
  if (loss.loss == nullptr || !loss.loss->needs_target()) return loss;
  if (options.sample != nullptr && options.sample->target.defined()) {
    loss.target = TakeRows(options.sample->target, options.rows);
    return loss;
  }
  const at::Tensor& output = outputs.TensorAt(loss.output);
  const TensorSignature target =
      loss.loss->Target({"", ToDataType(output.scalar_type()).value(), output.sizes().vec()});
  loss.target = ExampleInputs({target}, options.rows, 1).at(0);
  return loss;
}

// Measures all stages, each device on a thread of its own.
class AllMeasurements {
 public:
  AllMeasurements(const PlacedStages& placed, const std::vector<Arrival>& reaches, LossContext last_loss,
                  const ProfileOptions& options, bool split, Clock* clock)
      : placed_(placed),
        reaches_(reaches),
        last_loss_(std::move(last_loss)),
        options_(options),
        split_(split),
        clock_(clock),
        times_(placed.stages.size()),
        failed_(placed.stages.size()) {}

  void Run() {
    std::map<std::string, std::vector<size_t>> stages_of;
    for (size_t s = 0; s < placed_.stages.size(); ++s) stages_of[placed_.devices[s].name].push_back(s);
    measuring_ = static_cast<int>(stages_of.size());
    std::vector<std::unique_ptr<Thread>> threads;        // they read what stands above until they are joined
    absl::Cleanup give_up = [this] { measuring_ = 0; };  // where one can't start, the others must not wait for it
    for (const auto& [name, own] : stages_of) {
      threads.push_back(std::make_unique<Thread>(
          absl::StrCat("ps-calib-", name), [this, &own = own] { MeasureDevice(own); },
          placed_.devices[own.front()].cores));
    }
    std::move(give_up).Cancel();
  }

  // After Run(), by stage.
  StageTimes& times(size_t stage) { return times_[stage]; }
  const absl::Status& failed(size_t stage) const { return failed_[stage]; }

 private:
  // The stages `own` of one device, one after the other; then keeps it busy until the others are done.
  void MeasureDevice(const std::vector<size_t>& own) {
    UseCores(placed_.devices[own.front()]);
    for (const size_t s : own) {
      failed_[s] = options_.planning->CheckWanted();
      if (!failed_[s].ok()) break;
      failed_[s] = OnStage(s, [&](StageMeasurement& measurement) { times_[s] = measurement.Run(options_, split_); });
    }
    --measuring_;
    const size_t any = own.back();
    if (failed_[any].ok()) {
      failed_[any] =
          OnStage(any, [&](StageMeasurement& measurement) { measurement.Accompany(measuring_, *options_.planning); });
    }
  }

  absl::Status OnStage(size_t s, const std::function<void(StageMeasurement&)>& work) {
    const bool last = s + 1 == placed_.stages.size();
    return RunTorch([&] {
      StageMeasurement measurement(*placed_.stages[s], reaches_[s], last ? last_loss_ : LossContext(), clock_);
      work(measurement);
    });
  }

  const PlacedStages placed_;
  const std::vector<Arrival>& reaches_;
  const LossContext last_loss_;
  const ProfileOptions& options_;
  const bool split_;
  Clock* const clock_;
  std::vector<StageTimes> times_;
  std::vector<absl::Status> failed_;
  std::atomic<int> measuring_ = 0;  // devices
};

}  // namespace

absl::Status CalibrateStages(const std::vector<std::unique_ptr<Stage>>& stages, const std::vector<Device>& devices,
                             const std::vector<TensorSignature>& inputs, const LossContext& loss,
                             const ProfileOptions& options, int64_t open_dimension, Clock* clock, Plan& plan) {
  // The inputs of such a model are not known without a sample: the plan stays as it is.
  if (options.sample == nullptr &&
      std::any_of(inputs.begin(), inputs.end(), [](const TensorSignature& input) { return input.any; })) {
    return PredictPlan(plan);
  }
  const PlacedStages placed{stages, devices};
  std::vector<Arrival> reaches;
  LossContext last_loss;
  PENSTOCK_RETURN_IF_ERROR(WithExampleInteger(options.sample.get(), inputs, [&](int64_t integer) {
    return RunTorch([&] {
      reaches.assign(stages.size(), {});
      const Batch examples =
          BatchOf(MeasuringInputs(options.sample.get(), inputs, options.rows, open_dimension, integer));
      last_loss = WithTarget(loss, FindArrivals(placed, examples, reaches), options);
    });
  }));
  AllMeasurements measured(placed, reaches, std::move(last_loss), options, SplitsBackward(plan), clock);
  measured.Run();
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s]->ClearGradients();
    stages[s]->DiscardStatistics(MicroBatchIndex(0));
    PENSTOCK_RETURN_IF_ERROR(measured.failed(s));
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    StagePlan& stage = plan.stages[s];
    StageTimes& times = measured.times(s);
    stage.forward_seconds = stage.recompute_seconds = Median(std::move(times.forward));
    stage.backward_seconds = Median(std::move(times.backward));
    stage.input_gradient_seconds = Median(std::move(times.input_gradient));
    stage.weight_gradient_seconds = Median(std::move(times.weight_gradient));
  }
  return PredictPlan(plan);
}

}  // namespace penstock
