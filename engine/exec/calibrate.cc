#include "engine/exec/calibrate.h"

#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"
#include "engine/plan/planner.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

struct StageCost {
  double forward_seconds = 0;
  double backward_seconds = 0;
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
  std::sort(nanos.begin(), nanos.end());
  return static_cast<double>(nanos[nanos.size() / 2]) * 1e-9;
}

// Forward and backward of one stage, as often as the options say.
StageCost Measure(Stage& stage, const Arrival& arrival, const LossContext& loss, const ProfileOptions& options,
                  Clock* clock) {
  PassContext context;
  context.training = context.graph = true;
  std::vector<int64_t> forward;
  std::vector<int64_t> backward;
  DeviceStreams& streams = StreamsOf(stage.device());
  const int64_t begin = clock->NowNanos();
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    Pass pass = arrival.NewPass();
    streams.Synchronize();
    const int64_t start = clock->NowNanos();
    stage.Forward(arrival.inputs, context, loss, pass);
    streams.Synchronize();
    const int64_t middle = clock->NowNanos();
    const Batch gradients = OnesLike(pass.outputs);
    for (const Batch& skips : pass.skip_outputs) pass.sent.emplace_back().PutGradient(OnesLike(skips));
    const int64_t turn = clock->NowNanos();
    stage.Backward(pass, gradients, /*retain_graph=*/false);
    streams.Synchronize();
    const int64_t end = clock->NowNanos();
    if (repeat == 0) continue;  // warm-up; also the only one that does not add to gradients
    forward.push_back(middle - start);
    backward.push_back(end - turn);
    if (clock->NowNanos() - begin > options.budget_nanos) break;
  }
  return {Median(std::move(forward)), Median(std::move(backward))};
}

}  // namespace

absl::Status CalibrateStages(const std::vector<std::unique_ptr<Stage>>& stages, const std::vector<Device>& devices,
                             const std::vector<TensorSignature>& inputs, const Loss* loss,
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
      reaches[s].inputs = values;
      for (const SkipPort& port : stages[s]->incoming()) reaches[s].skips.push_back(skips[{port.peer, index}]);
      Pass pass = reaches[s].NewPass();
      PassContext context;
      context.training = true;
      stages[s]->Forward(values, context, {}, pass);
      for (size_t port = 0; port < pass.skip_outputs.size(); ++port) {
        skips[{index, stages[s]->outgoing()[port].peer}] = pass.skip_outputs[port];
      }
      values = std::move(pass.outputs);
    }
    if (loss == nullptr) return;
    const at::Tensor& output = values.TensorAt(0);
    const TensorSignature target = loss->Target({"", ToDataType(output.scalar_type()).value(), output.sizes().vec()});
    last_loss = {.loss = loss, .target = ExampleInputs({target}, options.rows, 1).at(0), .share = 1};
  }));

  std::map<std::string, std::vector<size_t>> stages_of;
  for (size_t s = 0; s < stages.size(); ++s) stages_of[devices[s].name].push_back(s);
  std::vector<StageCost> costs(stages.size());
  std::vector<absl::Status> failed(stages.size());
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (const auto& [name, own] : stages_of) {
      const Device& device = devices[own.front()];
      threads.push_back(std::make_unique<Thread>(
          absl::StrCat("ps-calib-", name),
          [&, &own = own] {
            UseCores(device);
            for (size_t s : own) {
              const bool last = s + 1 == stages.size();
              failed[s] = RunTorch([&, s] {
                costs[s] = Measure(*stages[s], reaches[s], last ? last_loss : LossContext(), options, clock);
              });
            }
          },
          device.cores));
    }
  }  // joins
  for (size_t s = 0; s < stages.size(); ++s) {
    stages[s]->ClearGradients();
    stages[s]->EndStatistics(/*commit=*/false);
    PENSTOCK_RETURN_IF_ERROR(failed[s]);
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    plan.stages[s].forward_seconds = plan.stages[s].recompute_seconds = costs[s].forward_seconds;
    plan.stages[s].backward_seconds = costs[s].backward_seconds;
  }
  return PredictPlan(plan);
}

}  // namespace penstock
