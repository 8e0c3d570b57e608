#pragma once

// How the weights of some parameters change: what the rules share, which have one source file each.

#include <map>
#include <string>
#include <vector>

#include "engine/tensor/named_tensors.h"

namespace penstock {

// What a rule is of. `parameters` are leaves, of which it keeps references.
struct RuleTensors {
  NamedTensors parameters;
  std::map<std::string, at::Tensor> state = {};  // what there is already, by the names of State(); the rest is made
};

// A rule with its settings, and its state for some parameters of one stage.
//
// Model:     the state has slots, such as a momentum; each holds one tensor per parameter, made at once.
// Threads:   one at a time: the stage's own.
// Fails:     steps may throw (RunTorch).
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Applies the parameters' gradients times `scale` (1 or the clipping factor). A parameter without gradient stays as
  // it is. The gradients are scaled in place; what else it takes is at most 16 MiB (or the size of one parameter) per
  // tensor of a parameter that the rule computes with.
  void Step(double learning_rate, double scale);
  // The same bits, and the gradients stay as they are: scaled copies of at most 16 MiB (or of one parameter) at a time.
  void StepKeepingGradients(double learning_rate, double scale);
  // What a step would change now: the parameters that have a gradient, and their state. `ever`: those that may have one.
  Tensors Changing(bool ever = false) const;

  // The state, named `parameter/slot`, in parameter order; views: writing to one changes the state.
  NamedTensors State() const;
  NamedTensors StateOf(size_t index) const;

 protected:
  // What a rule keeps of each parameter.
  struct Slot {
    enum class Shape {
      kParameter,
      kScalar,
      kHostScalar
    };  // scalars are float32, of the parameter's device or of the host
    std::string name;
    Shape shape = Shape::kParameter;
    double initial = 0;
  };
  // May throw (RunTorch).
  UpdateRule(std::vector<Slot> slots, RuleTensors tensors);

  // Of the parameters of these indices: themselves, and what the slot at that position holds.
  Tensors Parameters(const std::vector<size_t>& indices) const;
  Tensors SlotTensors(size_t slot, const std::vector<size_t>& indices) const;
  // Counts a step in the slot and returns its tensors.
  Tensors CountStep(size_t slot, const std::vector<size_t>& indices) const;

 private:
  // Applies these gradients, scaled, which it must not change, to the parameters of these indices, under NoGrad.
  virtual void Update(const std::vector<size_t>& indices, const Tensors& gradients, double learning_rate) = 0;
  void UpdateInParts(double learning_rate, double scale, bool keep_gradients);

  const NamedTensors parameters_;
  const std::vector<Slot> slots_;
  std::vector<Tensors> state_;  // by slot, then by parameter
};

}  // namespace penstock
