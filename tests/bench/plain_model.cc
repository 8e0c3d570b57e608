#include "tests/bench/plain_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>
#include <cstdlib>

#include "engine/base/clock.h"
#include "engine/device/device.h"
#include "engine/model/run_layer.h"

namespace penstock::bench {
namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "%s\n", std::string(value.status().message()).c_str());
    std::exit(1);
  }
  return *std::move(value);
}

}  // namespace

PlainModel::PlainModel(const Workload& workload)
    : layers_(Must(BuildLayers(Must(ExpandModel(workload.spec.model)), workload.spec.seed))),
      loss_(Must(MakeLoss(workload.spec.loss))) {}

double PlainModel::Step(const Workload& workload, int micro_batches, const std::vector<int>& cores) {
  double seconds = 0;
  Thread thread(
      "plain",
      [&] {
        UseCores({"cpu:0", cores, 0});
        at::AutoGradMode with_graph(true);
        const int64_t begin = RealClock()->NowNanos();
        for (const NamedLayer& layer : layers_) {
          for (const NamedTensor& parameter : layer.layer->parameters())
            at::Tensor(parameter.tensor).mutable_grad().reset();
        }
        const int64_t rows = workload.rows / micro_batches;
        for (int m = 0; m < micro_batches; ++m) {
          Tensors inputs;
          for (const NamedTensor& input : workload.inputs) inputs.push_back(input.tensor.narrow(0, m * rows, rows));
          Batch values = inputs.size() == 1 ? Batch(inputs[0]) : Batch::OfTensors(inputs);
          SkipTracker skips;
          for (size_t i = 0; i < layers_.size(); ++i) {
            KeyedRandom random(0, StepId(0), MicroBatchIndex(m), LayerIndex(static_cast<int>(i)));
            values = RunLayer(layers_[i], values, {.training = true, .recomputing = false, .random = &random}, skips);
          }
          const at::Tensor loss = at::mul(
              loss_->Mean(values.TensorAt(0), workload.target.narrow(0, m * rows, rows), {}), 1.0 / micro_batches);
          torch::autograd::backward({loss}, {});
        }
        seconds = static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9;
      },
      cores);
  thread.Join();
  return seconds;
}

}  // namespace penstock::bench
