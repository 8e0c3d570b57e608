#pragma once

// A layer: the unit that is never cut. It holds parameters and turns values into values.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/autograd/seeds.h"
#include "engine/base/ids.h"
#include "engine/base/option_map.h"
#include "engine/model/model_spec.h"
#include "engine/model/skip_spec.h"
#include "engine/tensor/batch.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// The skip values of one layer during one forward, under the names that it declared.
class LayerSkips {
 public:
  virtual ~LayerSkips() = default;
  // Both throw (RunTorch) FAILED_PRECONDITION / SKIP_INVALID: "'N' has not been declared as stashable", "'N' has not been
  // declared as poppable", "'N' has not been stashed". Stashing twice: the last value wins.
  virtual void Stash(const std::string& name, Value value) = 0;
  virtual Value Pop(const std::string& name) = 0;
};

// What one pass over one micro-batch tells a layer.
struct LayerContext {
  bool training = false;
  bool recomputing = false;  // a second forward of the same pass: no side effects
  KeyedRandom* random = nullptr;
  MicrobatchIndex microbatch = {};  // counted over all contributions of the step
  LayerSkips* skips = nullptr;      // set by RunLayer for layers that declare skips
};

// One layer of a model.
//
// Model:     parameters are leaves that require grad, in a fixed order, named within the layer (weight, attention.bias).
//            Buffers (running statistics) are what else is saved. Training forwards do not change them: they note what they
//            saw, by micro-batch, and CommitStatistics changes the buffers with the step.
// Threads:   one at a time: the thread of the stage that holds it.
// Fails:     Forward may throw; it runs under RunTorch.
class Layer {
 public:
  virtual ~Layer() = default;

  // Inputs and outputs: one value by itself, or a tuple whose items are the arguments; tensors have the batch dimension
  // first. Must not change its inputs in place. Call it through RunLayer (run_layer.h).
  virtual Batch Forward(const Batch& inputs, const LayerContext& context) = 0;

  // Views of the layer's own tensors: writing to one changes the layer.
  const NamedTensors& parameters() const { return parameters_; }
  const NamedTensors& buffers() const { return buffers_; }

  // What training forwards have noted since the last commit becomes part of the buffers, in micro-batch order.
  virtual void CommitStatistics() {}
  // Forgets what micro-batches from `first` on have noted: their mini-batch failed.
  virtual void DiscardStatistics(MicrobatchIndex /*first*/) {}

  // The names that it stashes and pops, in the order of declaration, isolated as the specification says.
  SkipDeclaration skips() const;
  // Puts the layer's skip names (or only some of them) into a namespace; a later call wins.
  void Isolate(const SkipIsolation& isolation);

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
  at::Tensor AddBuffer(std::string name, at::Tensor initial);
  void DeclareStash(std::string name) { stashes_.push_back(std::move(name)); }
  void DeclarePop(std::string name) { pops_.push_back(std::move(name)); }

 private:
  friend class RunningLayer;  // of run_layer.cc: maps names to namespaces
  SkipName Isolated(const std::string& name) const;

  NamedTensors parameters_;
  NamedTensors buffers_;
  std::vector<std::string> stashes_;
  std::vector<std::string> pops_;
  std::vector<std::pair<std::string, std::string>> namespaces_;  // name to namespace
};

// What a factory is given. Errors name `path[option]`.
struct LayerRequest {
  const OptionMap& options;
  std::string path;                                // field of the request, for errors: spec.model.layers[3].options
  at::Generator generator;                         // for initial values; a factory draws nothing from elsewhere
  bool shapes_only = false;                        // parameters get types and shapes, but no memory
  bool deferred_batch_norm = false;                // running statistics follow mini-batches instead of micro-batches
  const std::vector<LayerSpec>* layers = nullptr;  // of the specification: what `sequential` runs
};

using LayerFactory = absl::StatusOr<std::unique_ptr<Layer>> (*)(const LayerRequest&);

}  // namespace penstock
