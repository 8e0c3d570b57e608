#pragma once

// One backward in two halves: the gradients of a stage's inputs now, those of its parameters later, from the same graph.
//
// Source: the split of Qi et al., "Zero bubble pipeline parallelism", 2023, done by cutting edges of the autograd graph: the
// nodes where the way to a parameter leaves the ways to an input keep the gradients that reach them, the graph above them is
// released, and the second half starts there.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace penstock {

// The weight half that is still owed.
class SplitBackward {
 public:
  // Runs the input half. Afterwards `inputs` (leaves that require grad) have their gradients in grad(), as after a plain
  // backward; those of `parameters` are untouched. `roots` and `root_gradients` are as torch::autograd::backward takes
  // them; an undefined gradient means ones of a scalar.
  //
  // Fails:     throws what the engine throws; runs under RunTorch.
  static std::unique_ptr<SplitBackward> InputHalf(const std::vector<at::Tensor>& roots,
                                                  const std::vector<at::Tensor>& root_gradients,
                                                  const std::vector<at::Tensor>& inputs,
                                                  const std::vector<at::Tensor>& parameters);
  virtual ~SplitBackward() = default;

  // Runs the weight half, once: adds to the gradients of the parameters, bit for bit what one plain backward adds.
  virtual void WeightHalf() = 0;
};

}  // namespace penstock
