#include "tests/transparency/written_out_training.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <variant>

namespace penstock::testing {
namespace {

constexpr int64_t kIgnored = -100;

// The losses of all elements, one by one; 0 where an element does not count.
at::Tensor ElementLosses(const std::string& loss, const at::Tensor& output, const at::Tensor& target) {
  if (loss == "cross_entropy") {
    const at::Tensor counts = target != kIgnored;
    const at::Tensor log_probability = at::log_softmax(output, -1);
    const at::Tensor picked = log_probability.gather(-1, (target * counts).unsqueeze(-1)).squeeze(-1);
    return -picked.to(at::promote_types(picked.scalar_type(), at::kFloat)) * counts;
  }
  const at::Tensor wide = output.to(target.dtype());
  if (loss == "mean_squared_error") return (wide - target).square();
  if (loss == "binary_cross_entropy") return wide.clamp_min(0) - wide * target + (-wide.abs()).exp().log1p();
  throw std::invalid_argument("a loss that is not written out: " + loss);
}

int64_t CountedOf(const std::string& loss, const at::Tensor& target) {
  return loss == "cross_entropy" ? (target != kIgnored).sum().item<int64_t>() : target.numel();
}

bool IsBuffer(const std::string& name) {
  return name.find(".running_") != std::string::npos || name.find(".num_batches_tracked") != std::string::npos;
}

}  // namespace

WrittenOutTraining::WrittenOutTraining(const PipelineSpec& spec, WrittenOutModel model, const NamedTensors& initial)
    : spec_(spec), model_(model) {
  for (const NamedTensor& tensor : initial) {
    state_[tensor.name] = tensor.tensor.clone();
    if (IsBuffer(tensor.name)) continue;
    parameters_.push_back(tensor.name);
    Leaf(tensor.name).requires_grad_(true);
    const std::string slot = "optimizer/" + tensor.name;
    if (spec.optimizer.name == "adamw") {
      state_[slot + "/first_moment"] = at::zeros_like(tensor.tensor);
      state_[slot + "/second_moment"] = at::zeros_like(tensor.tensor);
      state_[slot + "/step"] = at::zeros({}, at::kFloat);
    } else if (Option("momentum", 0) != 0) {
      state_[slot + "/momentum"] = at::zeros_like(tensor.tensor);
    }
  }
}

double WrittenOutTraining::Option(const std::string& name, double fallback) const {
  const auto found = spec_.optimizer.options.find(name);
  return found == spec_.optimizer.options.end() ? fallback : std::get<double>(found->second);
}

double WrittenOutTraining::Contribute(const at::Tensor& input, const at::Tensor& target, int m,
                                      std::optional<int64_t> total) {
  const std::string& loss = spec_.loss.name;
  const int64_t counted = CountedOf(loss, target);
  const int64_t rows = input.size(0);
  const int64_t piece = (rows + m - 1) / m;
  std::vector<at::Tensor> leaves;
  for (const std::string& name : parameters_) leaves.push_back(Leaf(name));
  double sum = 0;
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t length = std::min(piece, rows - begin);
    WrittenOutPass pass(state_, !spec_.model.autocast.empty(), /*training=*/true, {spec_.seed, step_, micro_batch_++});
    const at::Tensor output = model_(pass, input.narrow(0, begin, length));
    const at::Tensor losses = ElementLosses(loss, output, target.narrow(0, begin, length)).sum();
    sum += losses.item<double>();
    const auto gradients =
        torch::autograd::grad({losses / total.value_or(counted)}, leaves, /*grad_outputs=*/{},
                              /*retain_graph=*/std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!gradients[i].defined()) continue;
      at::Tensor& all = gradients_[parameters_[i]];
      all = all.defined() ? all + gradients[i] : gradients[i];
    }
    for (const auto& [name, seen] : pass.seen()) seen_[name].push_back(seen);
  }
  return sum / static_cast<double>(counted);
}

double WrittenOutTraining::RateOf(int64_t step) const {
  const LearningRateSpec& schedule = spec_.optimizer.learning_rate_schedule;
  const double peak = Option("learning_rate", NAN);
  if (schedule.name == "constant") return peak;
  const auto warm = static_cast<double>(schedule.warmup_steps);
  const auto now = static_cast<double>(step);
  if (now < warm) return peak * (now + 1) / warm;
  const double done = std::min(1.0, (now - warm) / (static_cast<double>(schedule.total_steps) - warm));
  const double lowest = peak * schedule.final_ratio;
  return lowest + (peak - lowest) * (1 + std::cos(done * std::numbers::pi)) / 2;
}

WrittenOutTraining::StepResult WrittenOutTraining::Step(std::optional<double> learning_rate,
                                                        std::optional<double> clip_norm) {
  double squares = 0;
  for (const auto& [name, gradient] : gradients_) squares += gradient.square().sum(at::kDouble).item<double>();
  StepResult result{.gradient_norm = std::sqrt(squares), .learning_rate = learning_rate.value_or(RateOf(step_))};
  const double clip = clip_norm.value_or(spec_.optimizer.clip_norm);
  const bool clipped = clip > 0 && result.gradient_norm + 1e-6 > clip;
  for (const auto& [name, gradient] : gradients_) {
    Update(name, clipped ? gradient * (clip / (result.gradient_norm + 1e-6)) : gradient, result.learning_rate);
  }
  UpdateStatistics();
  gradients_.clear();
  ++step_;
  micro_batch_ = 0;
  return result;
}

void WrittenOutTraining::Update(const std::string& parameter, const at::Tensor& gradient, double rate) {
  const std::string slot = "optimizer/" + parameter;
  const at::Tensor old = Leaf(parameter).detach();
  at::Tensor updated;
  if (spec_.optimizer.name == "adamw") {
    const double beta1 = Option("beta1", 0.9);
    const double beta2 = Option("beta2", 0.999);
    at::Tensor& first = state_.at(slot + "/first_moment");
    at::Tensor& second = state_.at(slot + "/second_moment");
    at::Tensor& steps = state_.at(slot + "/step");
    steps = steps + 1;
    first = beta1 * first + (1 - beta1) * gradient;
    second = beta2 * second + (1 - beta2) * gradient.square();
    const auto t = steps.item<double>();
    const at::Tensor mean = first / (1 - std::pow(beta1, t));
    const at::Tensor deviation = (second / (1 - std::pow(beta2, t))).sqrt();
    updated = old - rate * Option("weight_decay", 0.01) * old - rate * mean / (deviation + Option("epsilon", 1e-8));
  } else {
    const double momentum = Option("momentum", 0);
    at::Tensor change = gradient + Option("weight_decay", 0) * old;
    if (momentum != 0) {
      at::Tensor& velocity = state_.at(slot + "/momentum");
      velocity = momentum * velocity + change;
      const auto nesterov = spec_.optimizer.options.find("nesterov");
      const bool looks_ahead = nesterov != spec_.optimizer.options.end() && std::get<bool>(nesterov->second);
      change = looks_ahead ? change + momentum * velocity : velocity;
    }
    updated = old - rate * change;
  }
  state_.at(parameter) = updated.requires_grad_(true);
}

// The variance is the one whose expectation is that of the population: divided by one less than the number of values.
void WrittenOutTraining::UpdateStatistics() {
  for (const auto& [name, all] : seen_) {
    std::vector<at::Tensor> inputs;
    for (const WrittenOutPass::Seen& one : all) inputs.push_back(one.input);
    const RunningStatistics& statistics = all.front().statistics;
    if (statistics.deferred) inputs = {at::cat(inputs, 0)};
    for (const at::Tensor& input : inputs) {
      const at::Tensor values = input.transpose(0, 1).flatten(1);  // [channels, values]
      at::Tensor& updates = state_.at(name + ".num_batches_tracked");
      updates = updates + 1;
      const double share = statistics.cumulative ? 1 / updates.to(at::kDouble).item<double>() : statistics.momentum;
      at::Tensor& mean = state_.at(name + ".running_mean");
      at::Tensor& variance = state_.at(name + ".running_var");
      mean = mean + share * (values.mean(1) - mean);
      variance = variance + share * (values.var(1, /*unbiased=*/true) - variance);
    }
  }
  seen_.clear();
}

at::Tensor WrittenOutTraining::Infer(const at::Tensor& input) const {
  const at::NoGradGuard no_graph;
  WrittenOutPass pass(state_, !spec_.model.autocast.empty(), /*training=*/false, {});
  return model_(pass, input);
}

WrittenOutTraining::Evaluation WrittenOutTraining::Evaluate(const at::Tensor& input, const at::Tensor& target) const {
  const at::Tensor output = Infer(input);
  const auto counted = static_cast<double>(CountedOf(spec_.loss.name, target));
  Evaluation found{.loss = ElementLosses(spec_.loss.name, output, target).sum().item<double>() / counted};
  if (spec_.loss.name != "cross_entropy") return found;
  const at::Tensor best = std::get<0>(output.max(-1));
  const at::Tensor own = output.gather(-1, (target * (target != kIgnored)).unsqueeze(-1)).squeeze(-1);
  found.accuracy = ((own == best) * (target != kIgnored)).sum().item<double>() / counted;
  return found;
}

}  // namespace penstock::testing
