#pragma once

// A training loop that shares nothing with the engine but the specification: layers, losses, shares, random draws,
// running statistics, clipping, rates and optimizers are written out as arithmetic on tensors; gradients are LibTorch's
// autograd's. PlainReference uses the engine's own layers and operators, and so is equal bit for bit; this one is equal
// up to rounding, and sees what is wrong in those parts themselves.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/pipeline_spec.h"
#include "engine/tensor/named_tensors.h"
#include "tests/transparency/written_out_pass.h"

namespace penstock::testing {

// The layers of a model, from input to output.
using WrittenOutModel = at::Tensor (*)(WrittenOutPass& pass, const at::Tensor& input);

// Holds the state of a model and trains it.
//
// Threads:   one at a time.
// Lifecycle: any number of Contribute, then Step.
// Fails:     throws what LibTorch throws, and std::exception for a specification that it does not know.
class WrittenOutTraining {
 public:
  // `initial`: parameters and buffers as a new pipeline saves them; a tied parameter stands there once.
  WrittenOutTraining(const PipelineSpec& spec, WrittenOutModel model, const NamedTensors& initial);

  // The mean loss of this mini-batch, in `m` micro-batches. `total`: counted elements of the whole step; unset: of this
  // one.
  double Contribute(const at::Tensor& input, const at::Tensor& target, int m, std::optional<int64_t> total);

  struct StepResult {
    double gradient_norm = 0;
    double learning_rate = 0;
  };
  // What is set stands in for the specification's.
  StepResult Step(std::optional<double> learning_rate, std::optional<double> clip_norm);

  at::Tensor Infer(const at::Tensor& input) const;
  // The mean loss without dropout, with running statistics; and of labels, how many have the highest score, as a share.
  struct Evaluation {
    double loss = 0;
    double accuracy = 0;
  };
  Evaluation Evaluate(const at::Tensor& input, const at::Tensor& target) const;

  // Parameters, buffers and optimizer state, under the names that a pipeline saves them under.
  const TensorMap& state() const { return state_; }

 private:
  at::Tensor Leaf(const std::string& parameter) const { return state_.at(parameter); }
  double Option(const std::string& name, double fallback) const;
  double RateOf(int64_t step) const;
  void Update(const std::string& parameter, const at::Tensor& gradient, double rate);
  void UpdateStatistics();

  const PipelineSpec spec_;
  const WrittenOutModel model_;
  TensorMap state_;
  std::vector<std::string> parameters_;
  std::map<std::string, at::Tensor> gradients_;
  std::map<std::string, std::vector<WrittenOutPass::Seen>> seen_;  // by batch norm, then by micro-batch
  int64_t step_ = 0;
  int64_t micro_batch_ = 0;  // of the next one in this step
};

}  // namespace penstock::testing
