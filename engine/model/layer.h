#pragma once

// A layer: the unit that is never cut. It holds parameters and turns values into values.

#include <c10/core/ScalarType.h>

#include <map>
#include <memory>
#include <string>
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
//
// Model:     a value that is stashed goes to the one layer that declared to pop it, on whichever stage that is.
//            Stashing twice: the last value wins.
// Owns:      nothing beyond the forward: a layer must not keep it.
// Threads:   the one that runs the layer.
// Fails:     both throw (RunTorch) FAILED_PRECONDITION / SKIP_INVALID: "'N' has not been declared as stashable", "'N'
//            has not been declared as poppable", "'N' has not been stashed".
class LayerSkips {
 public:
  virtual ~LayerSkips() = default;
  virtual void Stash(const std::string& name, Value value) = 0;
  virtual Value Pop(const std::string& name) = 0;
};

// What a layer gets to know of one pass over one micro-batch.
struct LayerContext {
  bool training = false;
  bool recomputing = false;     // a second forward of the same pass: no side effects
  bool values_checked = false;  // CheckValues() has seen the inputs
  KeyedRandom* random = nullptr;
  MicroBatchIndex micro_batch = {};  // counted over all contributions of the step
  LayerSkips* skips = nullptr;       // set by RunLayer for layers that declare skips
};

class BatchNorm;
struct BatchNormOptions;
struct LayerRequest;

// One layer of a model.
//
// Model:     parameters are leaves that require grad, in a fixed order, named within the layer (weight,
//            attention.bias). Buffers (running statistics) are what else is saved. Training forwards do not change
//            them: they note what they saw, by micro-batch, and CommitStatistics changes the buffers with the step.
// Threads:   one at a time: the thread of the stage that holds it.
// Fails:     Forward may throw; it runs under RunTorch.
class Layer {
 public:
  Layer();
  virtual ~Layer();
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // Inputs and outputs: one value by itself, or a tuple whose items are the arguments; tensors have the batch dimension
  // first. Must not change its inputs in place. Call it through RunLayer (run_layer.h).
  virtual Batch Forward(const Batch& inputs, const LayerContext& context) = 0;

  // Throws for values of inputs on the host that Forward would refuse, for a caller whose layer stands on an accelerator:
  // there Forward would have to wait for them.
  virtual void CheckValues(const Batch& /*inputs*/) const {}

  // Views of the layer's own tensors: writing to one changes the layer.
  const NamedTensors& parameters() const { return parameters_; }
  const NamedTensors& buffers() const { return buffers_; }

  // Turns parameters and floating buffers into elements of this floating type; signatures follow. May throw (RunTorch).
  virtual void Cast(at::ScalarType type);

  // What training forwards have noted becomes part of the buffers, in micro-batch order. The notes stay until they are
  // discarded, so that a step can be undone and taken again. By default both work on the layer's batch norms.
  virtual void CommitStatistics();
  // Forgets what micro-batches from `first` on have noted: their mini-batch failed, or its step is over.
  virtual void DiscardStatistics(MicroBatchIndex first);
  // What training forwards have noted since, for a checkpoint between two contributions of a step; and back into a layer
  // that has noted nothing. Whoever overrides CommitStatistics overrides these too. May throw (RunTorch).
  virtual NamedTensors Notes() const;
  virtual void SetNotes(const NamedTensors& notes);

  // The names that it stashes and pops, in the order of declaration, isolated as the specification says.
  SkipDeclaration skips() const;
  // Of the first layer of a model, and of the last one: what it only hands on. It gets instead what has the shapes of such
  // inputs but no elements, and no such outputs.
  virtual std::vector<HandedValue> HandedInputs() const { return {}; }
  virtual std::vector<HandedValue> HandedOutputs() const { return {}; }
  // Puts the layer's skip names (or only some of them) into a namespace; a later call wins.
  void Isolate(const SkipIsolation& isolation);

  // What the layer takes if it is the first of a model; empty if it takes whatever comes and passes the form on, `any`
  // if it takes whatever comes and does something of its own with it.
  virtual std::vector<TensorSignature> InputSignature() const = 0;
  // What to put for open dimensions other than the batch when the layer is measured: the longest sequence, say.
  virtual int64_t LargestOpenDimension() const { return 1; }
  // What the layer gives if it is the last of a model; empty if it gives what it takes, `any` if only a run can tell.
  // SignatureOf follows all layers.
  virtual std::vector<TensorSignature> OutputSignature() const = 0;
  // Whether it works on the last dimension only, so that inputs of more dimensions than its signature's pass and keep
  // the leading ones.
  virtual bool KeepsLeadingDimensions() const { return false; }

 protected:
  // Registers a parameter and returns it, requiring grad.
  at::Tensor AddParameter(std::string name, at::Tensor initial);
  at::Tensor AddBuffer(std::string name, at::Tensor initial);
  // Registers the tensors of a layer inside this one as NAME.PARAMETER; they stay one and the same.
  void AdoptTensors(const std::string& name, const Layer& inner);
  // A batch norm that this layer owns; its tensors are called NAME.weight and so on, or weight if the name is empty.
  BatchNorm* AddBatchNorm(const std::string& name, const LayerRequest& request, const BatchNormOptions& options);
  BatchNorm* AddBatchNorm(const std::string& name, const LayerRequest& request, int64_t features);

  // Declares a name that Forward stashes or pops.
  void DeclareStash(const std::string& name) { DeclareStash(name, {.skip_namespace = "", .name = name}); }
  void DeclarePop(const std::string& name) { DeclarePop(name, {.skip_namespace = "", .name = name}); }
  // The same if the model knows it under another name: of a layer inside this one, say.
  void DeclareStash(const std::string& name, SkipName outside);
  void DeclarePop(const std::string& name, SkipName outside);

  // The element type of the signatures' floating tensors.
  DataType float_type() const { return float_type_; }

 private:
  friend class RunningLayer;  // of run_layer.cc: maps names to namespaces
  SkipName Isolated(const std::string& name) const { return outside_.at(name); }

  NamedTensors parameters_;
  NamedTensors buffers_;
  std::vector<std::unique_ptr<BatchNorm>> batch_norms_;
  std::vector<std::string> stashes_;
  std::vector<std::string> pops_;
  std::map<std::string, SkipName> outside_;  // of every declared name
  DataType float_type_ = DataType::kFp32;
};

// What a factory is given. Errors name `path[option]`.
struct LayerRequest {
  const OptionMap& options;
  std::string path;                                // field of the request, for errors: spec.model.layers[3].options
  at::Generator generator;                         // for initial values; a factory draws nothing from elsewhere
  bool shapes_only = false;                        // parameters get types and shapes, but no memory
  bool deferred_batch_norm = false;                // running statistics follow mini-batches instead of micro-batches
  const std::vector<LayerSpec>* layers = nullptr;  // of the specification: what `sequential` runs
  bool tuple_as_one_argument = false;              // for the layers of `sequential`
  const LayerSource* program = nullptr;            // of the specification: what `exported_program` is a layer of
};

using LayerFactory = absl::StatusOr<std::unique_ptr<Layer>> (*)(const LayerRequest&);

}  // namespace penstock
