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

Batch Detached(const Batch& values) {
  return values.MapTensors([](const at::Tensor& tensor) { return tensor.detach(); });
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
  Batch inputs = stage_->first() ? run_->inputs.front()[m] : std::exchange(received_[m], {});
  const bool graph = !run_->spec.inference && !run_->Checkpoints(StageIndex(stage_->index()), m);
  Pass& pass = this->pass(m);
  TakeInputs(m);
  stage_->Forward(std::move(inputs), ContextOf(m, graph, false), LossOf(m), pass);
  if (last() && pass.loss.defined()) run_->made_losses[m] = SendToHost(pass.loss.detach(), streams_);
  if (last()) Measure(m, pass);
  if (!last()) outgoing_[m] = Detached(pass.outputs);
  if (last() && run_->spec.keep_outputs) run_->outputs.back()[m] = ToCaller(pass.outputs);
  outgoing_skips_[m].clear();
  for (size_t port = 0; port < pass.skip_outputs.size(); ++port) {
    outgoing_skips_[m].push_back(WithoutStraight(stage_->outgoing()[port], m, pass.skip_outputs[port]));
  }
  if (run_->spec.inference) {
    pass = Pass();
  } else if (!graph) {
    pass.DropGraph();
  }
}

Batch StageRun::ToCaller(const Batch& values) const {
  // They may be views of what a step of the same run changes: it is decided once they are joined, which copies them,
  // or have been sent.
  if (run_->results_stay || !run_->led_here) return Detached(values);
  return values.MapTensors([this](const at::Tensor& tensor) { return SendToHost(tensor.detach(), streams_); });
}

void StageRun::TakeInputs(int m) {
  for (size_t i = 0; i < stage_->incoming().size(); ++i) {
    const std::vector<StraightValue>& inputs = stage_->incoming()[i].inputs;
    if (inputs.empty()) continue;
    const Batch& straight = run_->inputs[stage_->index()][m];
    Portal& portal = pass(m).received[i];
    ValueList values = portal.Look().values();
    for (size_t k = 0; k < inputs.size(); ++k) {
      values[inputs[k].item] =
          straight[k].MapTensors([this](const at::Tensor& tensor) { return SendToDevice(tensor, streams_); });
    }
    portal = Portal(Batch::Tuple(std::move(values)), portal.life());
  }
}

// The last stage's loss may need an output.
bool StageRun::LeavesHere(const StraightValue& output, int m) const {
  return run_->losses.empty() || run_->losses[m].output != output.position;
}

Batch StageRun::WithoutStraight(const SkipPort& port, int m, const Batch& skips) {
  ValueList values = Detached(skips).values();
  for (const StraightValue& input : port.inputs) values[input.item] = Value();
  ValueList leaving;
  for (const StraightValue& output : port.outputs) {
    leaving.push_back(LeavesHere(output, m) ? std::exchange(values[output.item], Value()) : Value());
  }
  if (!leaving.empty() && run_->spec.keep_outputs) {
    run_->outputs[stage_->index()][m] = ToCaller(Batch::Tuple(std::move(leaving)));
  }
  return Batch::Tuple(std::move(values));
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
  TakeOutputGradients(m);
  stage_->BeginContribution(run_->spec.accumulating);
  GiveBack(m, stage_->Backward(pass(m), OutputGradients(m), run_->spec.retain_graph));
}

void StageRun::InputGradient(int m) {
  TakeOutputGradients(m);
  GiveBack(m, stage_->InputGradient(pass(m), OutputGradients(m)));
}

void StageRun::WeightGradient(int m) {
  stage_->BeginContribution(run_->spec.accumulating);
  stage_->WeightGradient(pass(m));
}

Batch StageRun::OutputGradients(int m) {
  if (!last()) return std::exchange(received_[m], {});
  return run_->losses.empty() ? run_->output_gradients[m] : Batch();
}

// Those of outputs that have left here, which the caller of a Backward gives.
void StageRun::TakeOutputGradients(int m) {
  if (run_->output_gradients.empty()) return;
  for (size_t i = 0; i < stage_->outgoing().size(); ++i) {
    const std::vector<StraightValue>& outputs = stage_->outgoing()[i].outputs;
    if (outputs.empty()) continue;
    Portal& portal = pass(m).sent[i];
    ValueList values = portal.TakeGradient().values();
    for (const StraightValue& output : outputs) {
      values[output.item] = run_->output_gradients[m][output.position].MapTensors(
          [this](const at::Tensor& tensor) { return SendToDevice(tensor, streams_); });
    }
    portal.PutGradient(Batch::Tuple(std::move(values)));
  }
}

void StageRun::GiveInputGradients(int m, std::vector<Batch>& skips) {
  const auto to_host = [this](const at::Tensor& tensor) { return SendToHost(tensor, streams_); };
  for (size_t i = 0; i < stage_->incoming().size(); ++i) {
    const std::vector<StraightValue>& inputs = stage_->incoming()[i].inputs;
    if (inputs.empty()) continue;
    ValueList values = skips[i].values();
    ValueList straight;
    for (const StraightValue& input : inputs) straight.push_back(std::exchange(values[input.item], Value()));
    skips[i] = Batch::Tuple(std::move(values));
    if (!run_->spec.input_gradients) continue;
    run_->input_gradient_values[stage_->index()][m] = Batch::Tuple(std::move(straight)).MapTensors(to_host);
  }
}

void StageRun::GiveBack(int m, InputGradients gradients) {
  GiveInputGradients(m, gradients.skips);
  outgoing_skips_[m] = std::move(gradients.skips);
  if (!stage_->first()) {
    outgoing_[m] = std::move(gradients.inputs);
  } else if (run_->spec.input_gradients) {
    const auto to_host = [this](const at::Tensor& tensor) { return SendToHost(tensor, streams_); };
    run_->input_gradient_values.front()[m] =
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
