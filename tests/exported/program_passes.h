#pragma once

// An exported program and the inputs to run it on, for the programs that Python scripts compare with eager PyTorch.

#include <string>
#include <vector>

#include "engine/model/layer.h"
#include "engine/model/layer_registry.h"

namespace penstock {

// Reads a program and a safetensors file with its inputs, input.0, input.1, ...; ends the process with a message where
// that fails.
//
// Threads:   one at a time.
class ProgramPasses {
 public:
  // `cuts`: modules or nodes.
  ProgramPasses(const std::string& program, const std::string& inputs, const std::string& cuts);

  // All layers, one after the other, as a pipeline of one stage runs them.
  Batch Forward(bool training) const;
  // Clears the gradients, runs forward and backward of the mean square of the first output, moves statistics.
  void Train() const;

  const std::vector<NamedLayer>& layers() const { return layers_; }

 private:
  void ClearGradients() const;

  std::vector<NamedLayer> layers_;
  Batch inputs_;
};

}  // namespace penstock
