#pragma once

// One backward in two halves: the gradients of a stage's inputs now, those of its parameters later, from the same
// graph.
//
// Source: the split of Qi et al., "Zero bubble pipeline parallelism", 2023, done by cutting edges of the autograd
// graph: the nodes where the way to a parameter leaves the ways to an input keep the gradients that reach them, the
// graph above them is released, and the second half starts there.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace penstock {

// The weight half that is still owed.
//
// Model:     The graph falls in two: the nodes from which an input is reached, and the others. The input half runs the
//            first ones and notes what arrives at those that have an edge to an other one; the weight half starts
//            there. Every node has its gradients summed in the order of a plain backward, so that no bit differs. What
//            is computed on both sides is only what an operator without a mask of its inputs computes (docs of
//            LibTorch: needs_input_grad).
// Owns:      the nodes of the weight half with their saved tensors, and the gradients that arrive there. Whatever was
//            saved for the input half alone is released as soon as that is done, if nobody else holds it.
// Threads:   one at a time; both halves on the thread that may run a backward.
// Fails:     both halves throw what the engine throws; they run under RunTorch. The graph is of no use then.
class SplitBackward {
 public:
  // Runs the input half. Afterwards `inputs` have their gradients in grad(), as after a plain backward; only leaves
  // that require grad and are reached get one. Every other leaf is left to the weight half; that is the whole backward
  // if no input is reached. `roots` (each requires grad) and `root_gradients` are as torch::autograd::backward takes
  // them; an undefined gradient means ones of a scalar. Graphs are not retained: there is one backward, here.
  static std::unique_ptr<SplitBackward> InputHalf(const std::vector<at::Tensor>& roots,
                                                  const std::vector<at::Tensor>& root_gradients,
                                                  const std::vector<at::Tensor>& inputs);
  virtual ~SplitBackward() = default;

  // Runs the weight half, once: adds to the gradients of the parameters what a plain backward adds. Hooks of
  // parameters, and of whatever is on the way to them, are called as in a plain backward.
  virtual void WeightHalf() = 0;
};

}  // namespace penstock
