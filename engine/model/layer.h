#pragma once

// A layer: the unit that is never cut. It holds parameters and turns tensors into tensors.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/autograd/seeds.h"
#include "engine/base/option_map.h"
#include "engine/model/model_spec.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// What one pass over one micro-batch tells a layer.
struct LayerContext {
  bool training = false;
  bool recomputing = false;  // a second forward of the same pass: no side effects
  KeyedRandom* random = nullptr;
};

// One layer of a model.
//
// Model:     parameters are leaves that require grad, in a fixed order, named within the layer (weight, attention.bias).
// Threads:   one at a time: the thread of the stage that holds it.
// Fails:     Forward may throw; it runs under RunTorch.
class Layer {
 public:
  virtual ~Layer() = default;

  // Inputs and outputs: one tensor or several, batch dimension first. Must not change its inputs in place.
  virtual Tensors Forward(const Tensors& inputs, const LayerContext& context) = 0;

  // Views of the layer's own tensors: writing to one changes the layer.
  const NamedTensors& parameters() const { return parameters_; }

  // What the layer takes if it is the first of a model; empty if it takes whatever comes.
  virtual std::vector<TensorSignature> InputSignature() const = 0;
  // What to put for open dimensions other than the batch when the layer is measured: the longest sequence, say.
  virtual int64_t LargestOpenDimension() const { return 1; }
  // What the layer gives if it is the last of a model; empty if it gives what it takes. SignatureOf follows all layers.
  virtual std::vector<TensorSignature> OutputSignature() const = 0;
  // Whether it works on the last dimension only, so that inputs of more dimensions than its signature's pass and keep the
  // leading ones.
  virtual bool KeepsLeadingDimensions() const { return false; }

 protected:
  // Registers a parameter and answers it, requiring grad.
  at::Tensor AddParameter(std::string name, at::Tensor initial);

 private:
  NamedTensors parameters_;
};

// What a factory is given. Errors name `path[option]`.
struct LayerRequest {
  const OptionMap& options;
  std::string path;          // field of the request, for errors: spec.model.layers[3].options
  at::Generator generator;   // for initial values; a factory draws nothing from elsewhere
  bool shapes_only = false;  // parameters get types and shapes, but no memory
};

using LayerFactory = absl::StatusOr<std::unique_ptr<Layer>> (*)(const LayerRequest&);

}  // namespace penstock
