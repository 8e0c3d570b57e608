#include "engine/exec/stage_run.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "engine/base/check.h"
#include "engine/device/copy_tensors.h"

namespace penstock {
namespace {

size_t PortOf(const std::vector<SkipPort>& ports, int peer) {
  for (size_t port = 0; port < ports.size(); ++port) {
    if (ports[port].peer == peer) return port;
  }
  PENSTOCK_CHECK(false);  // the lists come from the same plan as the ports
}

}  // namespace

StageRun::StageRun(Run* run, Stage* stage, LaneMetrics* metrics)
    : run_(run),
      stage_(stage),
      streams_(StreamsOf(stage->device())),
      metrics_(metrics),
      received_(run->micro_batches()),
      outgoing_(run->micro_batches()),
      outgoing_skips_(run->micro_batches()) {}

void StageRun::Forward(int m) {
  Batch inputs = stage_->first() ? run_->inputs[m] : std::exchange(received_[m], {});
  const bool graph = !run_->spec.inference && !run_->Checkpoints(StageIndex(stage_->index()), m);
  Pass& pass = this->pass(m);
  stage_->Forward(std::move(inputs), ContextOf(m, graph, false), LossOf(m), pass);
  const auto to_host = [this](const at::Tensor& tensor) { return SendToHost(tensor.detach(), streams_); };
  if (last() && pass.loss.defined()) run_->made_losses[m] = to_host(pass.loss);
  if (last()) Measure(m, pass);
  const auto detached = [](const at::Tensor& tensor) { return tensor.detach(); };
  if (!last()) outgoing_[m] = pass.outputs.MapTensors(detached);
  if (last() && run_->spec.keep_outputs) {
    // They may be views of what a step of the same run changes: it is decided once they are joined, which copies them,
    // or have been sent.
    const bool stay = run_->results_stay || !run_->led_here;
    run_->outputs[m] = stay ? pass.outputs.MapTensors(detached) : pass.outputs.MapTensors(to_host);
  }
  outgoing_skips_[m].clear();
  for (const Batch& skips : pass.skip_outputs) outgoing_skips_[m].push_back(skips.MapTensors(detached));
  if (run_->spec.inference) {
    pass = Pass();
  } else if (!graph) {
    pass.DropGraph();
  }
}

void StageRun::Measure(int m, const Pass& pass) {
  if (run_->metrics.empty()) return;
  const at::NoGradGuard no_graph;
  const LossContext loss = LossOf(m);
  const at::Tensor target = SendToDevice(loss.target, streams_);
  for (const EvaluationMetric* metric : run_->metrics) {
    run_->metric_sums[m].push_back(metric->Sum(pass.outputs.TensorAt(loss.output), target));
  }
}

void StageRun::Recompute(int m) {
  stage_->Recompute(ContextOf(m, true, true), LossOf(m), pass(m));
  metrics_->recomputed_bytes.Add(ByteSize(pass(m).outputs));
}

void StageRun::Backward(int m) {
  stage_->BeginContribution(run_->spec.accumulating);
  GiveBack(m, stage_->Backward(pass(m), OutputGradients(m), run_->spec.retain_graph));
}

void StageRun::InputGradient(int m) { GiveBack(m, stage_->InputGradient(pass(m), OutputGradients(m))); }

void StageRun::WeightGradient(int m) {
  stage_->BeginContribution(run_->spec.accumulating);
  stage_->WeightGradient(pass(m));
}

Batch StageRun::OutputGradients(int m) {
  if (!last()) return std::exchange(received_[m], {});
  return run_->losses.empty() ? run_->output_gradients[m] : Batch();
}

void StageRun::GiveBack(int m, InputGradients gradients) {
  outgoing_skips_[m] = std::move(gradients.skips);
  if (!stage_->first()) {
    outgoing_[m] = std::move(gradients.inputs);
  } else if (run_->spec.input_gradients) {
    const auto to_host = [this](const at::Tensor& tensor) { return SendToHost(tensor, streams_); };
    run_->input_gradient_values[m] =
        run_->led_here ? gradients.inputs.MapTensors(to_host) : std::move(gradients.inputs);
  }
}

void StageRun::Keep(bool gradient, int peer, int m, Batch values) {
  if (peer < 0) {
    received_[m] = std::move(values);
    return;
  }
  Pass& pass = this->pass(m);
  if (gradient) {
    pass.sent.resize(stage_->outgoing().size());
    pass.sent[PortOf(stage_->outgoing(), peer)].PutGradient(std::move(values));
    return;
  }
  // The stash itself was the first use.
  const bool again = !run_->spec.inference && run_->Checkpoints(StageIndex(stage_->index()), m);
  const int life = (again ? Portal::kCheckpointed : Portal::kPlain) - 1;
  pass.received.resize(stage_->incoming().size());
  pass.received[PortOf(stage_->incoming(), peer)] = Portal(std::move(values), life);
}

Batch StageRun::Take(bool gradient, int peer, int m) {
  if (peer < 0) return std::exchange(outgoing_[m], {});
  const std::vector<SkipPort>& ports = gradient ? stage_->incoming() : stage_->outgoing();
  return std::exchange(outgoing_skips_[m].at(PortOf(ports, peer)), {});
}

PassContext StageRun::ContextOf(int micro_batch, bool graph, bool recomputing) const {
  return {.training = run_->spec.training,
          .graph = graph,
          .recomputing = recomputing,
          .input_gradients = run_->spec.input_gradients,
          .seed = run_->spec.seed,
          .step = run_->spec.step,
          .micro_batch = MicroBatchIndex(run_->spec.micro_batch_base + micro_batch)};
}

LossContext StageRun::LossOf(int micro_batch) const {
  return !last() || run_->losses.empty() ? LossContext() : run_->losses[micro_batch];
}

}  // namespace penstock
