#pragma once

// The validated form of what a client asks to run: layers, loss; and what the model takes and gives.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/option_map.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

// One layer: a registered kind with its options.
struct LayerSpec {
  std::string kind;
  std::string name;  // unique in the model
  OptionMap options;
};

// A reference model by name, or an explicit list of layers; not both.
struct ModelSpec {
  std::string name;
  OptionMap options;
  std::vector<LayerSpec> layers;
};

struct LossSpec {
  std::string name;  // cross_entropy, mean_squared_error
  OptionMap options;
};

// A named tensor that a model takes or gives; the batch dimension is -1, and so are others that may vary.
struct TensorSignature {
  std::string name;
  DataType type;
  std::vector<int64_t> shape;
};

struct ModelSignature {
  std::vector<TensorSignature> inputs;
  std::vector<TensorSignature> outputs;
  std::vector<TensorSignature> targets;  // of the default loss; empty without one
};

}  // namespace penstock
