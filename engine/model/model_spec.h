#pragma once

// The validated form of what a client asks to run: layers, skips, ties, loss; and what the model takes and gives.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/option_map.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

// Puts skip names of a layer into a namespace, so that a layer that stands in a model several times does not meet
// itself.
struct SkipIsolation {
  std::string skip_namespace;
  std::vector<std::string> only = {};  // these names; empty: all of the layer. A later isolation wins
};

class LayerSource;  // layer_source.h

// Where an exported program may be cut.
enum class ProgramCuts {
  kModules,  // between modules that follow one another; repeated blocks count one by one
  kNodes,    // between any two operators
};

// One layer: a registered kind with its options.
struct LayerSpec {
  std::string kind;
  std::string name;  // unique in the model
  OptionMap options;
  std::string device = {};  // where it must stand: cpu, cpu:1, cuda:0; empty: with the layer before it
  std::vector<SkipIsolation> isolate = {};
  std::vector<LayerSpec> layers = {};  // of kind `sequential` only: what it runs, in order
  // Of kind `exported_program` only: what its option `layer` counts in.
  std::shared_ptr<const LayerSource> program = {};
};

// Parameters of equal shape that are one parameter of several layers: `embedding.weight`, `head.weight`. The first one
// in model order gives the initial value and the name; gradients of all uses are summed in model order before the step.
struct TieSpec {
  std::vector<std::string> parameters;
};

// A reference model by name, an explicit list of layers, or an exported program; one of them.
struct ModelSpec {
  std::string name;
  OptionMap options;
  std::vector<LayerSpec> layers;
  std::map<std::string, std::string> layer_devices = {};  // by name of a layer, or of a module of the program
  std::vector<TieSpec> ties = {};
  bool deferred_batch_norm = false;    // running statistics follow mini-batches instead of micro-batches
  bool tuple_as_one_argument = false;  // a layer gets several values as one tuple instead of as its arguments
  std::string dtype = {};              // of parameters: fp32 (also if empty), fp64, bf16, fp16
  std::string autocast = {};           // bf16, fp16: operators choose their precision as LibTorch's autocast does
  std::string program = {};            // a file in the server's model root: resnet.pt2
  ProgramCuts program_cuts = ProgramCuts::kModules;
  std::string program_digest = {};  // sha256: and 64 hex digits: that the file must have; once loaded, that it has
  std::shared_ptr<const LayerSource> loaded_program = {};  // its content, from LoadProgram
};

struct LossSpec {
  std::string name;  // as LossNames()
  OptionMap options;
  std::string output = {};                 // of the model, by name or position; empty: the first
  std::vector<double> class_weights = {};  // of cross_entropy, one per class; empty: all weigh 1
};

// A named value that a model takes or gives; the batch dimension is -1, and so are others that may vary.
struct TensorSignature {
  std::string name;
  DataType type = {};
  std::vector<int64_t> shape = {};
  bool any = false;       // any value at all: type and shape say nothing. Without a name: any number of values
  std::string rows = {};  // of an input: those of one word have equally many rows, as those without one
};

struct ModelSignature {
  std::vector<TensorSignature> inputs;
  std::vector<TensorSignature> outputs;  // empty if only a run can tell; they are called output0, output1, ... then
  std::vector<TensorSignature> targets;  // of the default loss; empty without one
};

}  // namespace penstock
