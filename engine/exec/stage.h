#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/autograd/portal.h"
#include "engine/autograd/seeds.h"
#include "engine/autograd/split_backward.h"
#include "engine/base/ids.h"
#include "engine/device/device.h"
#include "engine/exec/tied_parameters.h"
#include "engine/model/layer_registry.h"
#include "engine/model/loss.h"
#include "engine/observe/memory_cells.h"
#include "engine/optim/optimizer.h"
#include "engine/plan/skip_layout.h"

namespace penstock {

// What one forward needs beside its inputs.
struct PassContext {
  bool training = false;  // dropout on
  bool graph = false;     // keep what backward needs
  bool recomputing = false;
  bool values_checked = false;   // of the stage's inputs, by its first layer
  bool input_gradients = false;  // the model's inputs get gradients too
  uint64_t seed = 0;
  StepId step;
  MicroBatchIndex micro_batch;  // counted over all contributions of the step
};

// What the last stage does after its layers when the server computes the loss.
struct LossContext {
  const Loss* loss = nullptr;
  at::Tensor target;   // undefined: the loss needs none
  at::Tensor weights;  // of the target's elements; undefined: all weigh 1
  double share = 1;    // of the step's counted elements
  int output = 0;      // that it is of, by position
};

// The skip values that pass between this stage and one other.
struct SkipPort {
  int peer = 0;  // the other stage
  std::vector<SkipName> names;
  std::vector<StraightValue> inputs = {};   // of SkipRoute
  std::vector<StraightValue> outputs = {};  // the same
};

// What a stage keeps of one micro-batch between forward and backward.
//
// Model:     `stash` are the inputs as they came, `received` the skip values from earlier stages; `leaves` and
//            `skip_leaves` are the inputs of the graph, `outputs`, `skip_outputs` and `loss` its ends. A checkpointed
//            micro-batch has only the stash and the portals until it is recomputed.
struct Pass {
  Batch stash;
  std::vector<Portal> received;  // by incoming port
  std::vector<Portal> sent;      // by outgoing port: holds the gradient when it has come
  Batch leaves;
  std::vector<Batch> skip_leaves;  // by incoming port
  Batch outputs;
  std::vector<Batch> skip_outputs;       // by outgoing port
  at::Tensor loss;                       // scaled by the share; last stage with a loss
  bool graph = false;                    // can go backward
  std::unique_ptr<SplitBackward> split;  // after the input half: owes the weight half
  MemoryShare counted;                   // what the metrics say that it holds

  void DropGraph();  // and keep the stash
};

// The gradients that a stage hands back: None where there is none.
struct InputGradients {
  Batch inputs;
  std::vector<Batch> skips;  // by incoming port
};

// What a stage keeps for as long as it lives.
struct StageBytesHeld {
  int64_t weights = 0;
  int64_t buffers = 0;
  int64_t optimizer = 0;
};

// One partition of the model on its device: layers, parameters, optimizer, and what an action does with them.
//
// Model:     layers [first, first + count) of the model. Gradients stand in the parameters; `earlier_` holds those from
//            before the current contribution. With `undo`, a step first copies what it will change into `copies_`.
// Threads:   the device's thread while a run is open; otherwise the pipeline's caller.
// Fails:     Forward, Backward, Recompute and Step may throw: they run under RunTorch.
class Stage {
 public:
  struct Parts {
    int index = 0;
    bool last = true;
    Device device = {};
    LayerIndex first_layer;
    std::vector<NamedLayer> layers;
    std::vector<StageTie> ties = {};
    std::vector<SkipPort> incoming = {};  // ascending by peer
    std::vector<SkipPort> outgoing = {};
    std::string autocast = {};  // of ModelSpec
    bool undo = false;          // steps can be undone
    // Inputs are copied even where they stand on the stage's device: they belong to handles, and a layer that changes
    // them in place is found out when it has.
    bool copies_inputs = false;
  };
  // Fails: as MakeOptimizer.
  static absl::StatusOr<std::unique_ptr<Stage>> Create(Parts parts, const OptimizerSpec& optimizer);

  int index() const { return parts_.index; }
  bool first() const { return parts_.index == 0; }
  const Device& device() const { return parts_.device; }
  const std::vector<SkipPort>& incoming() const { return parts_.incoming; }
  const std::vector<SkipPort>& outgoing() const { return parts_.outgoing; }

  // Runs the layers over inputs, brought to the stage's device first; `pass.received` holds what comes past other
  // stages. With a graph, `pass` can go backward; without one it holds the stash, and the outputs until DropGraph. A
  // layer that changes the stage's inputs in place is refused by name: its recomputation would start from something
  // else, and the inputs may be another's.
  void Forward(Batch inputs, PassContext context, const LossContext& loss, Pass& pass);
  // Builds the graph of a pass from its stash. Afterwards it can go backward. With a graph already: nothing.
  void Recompute(const PassContext& context, const LossContext& loss, Pass& pass);
  // Adds to the parameters' gradients; returns those of the stage's inputs. `gradients` belong to the outputs, those of
  // skip values stand in `pass.sent`; with a loss, `gradients` are not looked at.
  InputGradients Backward(Pass& pass, const Batch& gradients, bool retain_graph);
  // The same in two halves, each once, with the same bits: the first returns the gradients of the inputs, those of skip
  // values among them, and leaves in the pass what the second needs to add to the parameters'. Where no input asks for
  // a gradient (the first stage), the first half does nothing. Other passes may come between the halves.
  InputGradients InputGradient(Pass& pass, const Batch& gradients);
  void WeightGradient(Pass& pass);

  // Contributions: Begin lays the gradients (if `accumulating`) aside before the first backward, and the first backward
  // that reaches a parameter adds them again, so that they are never copied; End(false) brings them back and forgets
  // the statistics of micro-batches from `first` on.
  void BeginContribution(bool accumulating);
  void EndContribution(bool keep, MicroBatchIndex first);
  void ClearGradients();
  void CommitStatistics();
  void DiscardStatistics(MicroBatchIndex first);
  // What contributions and forwards have left so far: gradient/LAYER.PARAMETER, of each use of a tied parameter its own,
  // and note/LAYER/... Views. And back, into a stage that has nothing of it, as copies on its device; MODEL_MISMATCH,
  // nothing changed, if a gradient does not fit. May throw (RunTorch).
  NamedTensors Accumulated() const;
  void SetAccumulated(const NamedTensors& accumulated);

  // The step, in parts that all stages go through together: hand out the gradients of tied parameters; sum them and
  // return the norms; with undo, copy what the step will change; change the weights, then the statistics.
  void ShareTiedGradients(TiedGradients& board) const;
  std::vector<at::Tensor> SumTiedGradients(const TiedGradients& board);
  // What a step would take: of each parameter that learns, once in the whole model, and has a gradient. Views, and the
  // sums of tied ones.
  NamedTensors Gradients(const TiedGradients& board) const;
  void KeepForUndo();
  // Before the first step: takes the memory of what KeepForUndo() will keep, so that this step does not wait for the
  // machine's pages. May throw (RunTorch).
  void TouchMemory();
  void DropCopies() { copies_.clear(); }
  void Step(double learning_rate, double scale);
  // What a failed step leaves: the gradients of tied parameters as they were shared, and, after KeepForUndo,
  // parameters, optimizer state and buffers as they were. Gradients and notes of statistics are there still. Undo may
  // throw (RunTorch).
  void RestoreTiedGradients(const TiedGradients& board);
  void Undo();

  // Other settings of the optimizer, in two parts: the first may fail (as Optimizer's) and changes nothing, the second
  // makes them the stage's, and lets parameters ask for gradients or not. Between runs, without gradients.
  absl::StatusOr<std::unique_ptr<Optimizer>> OptimizerWith(const OptimizerSpec& spec) const {
    return optimizer_->WithSettings(spec);
  }
  void UseOptimizer(std::unique_ptr<Optimizer> optimizer) { optimizer_ = std::move(optimizer); }
  void FreezeGroups(const std::vector<ParameterGroup>& groups);

  // Every parameter of every layer, named layer.parameter; tied ones under each of their names.
  const NamedTensors& parameters() const { return parameters_; }
  // Each parameter that learns, once in the whole model.
  NamedTensors LearnedParameters() const;
  // What is saved, in model order: parameters and buffers, a tied parameter only where it is first used; then the
  // optimizer's slots. Views.
  NamedTensors SavedTensors() const;
  NamedTensors SavedOptimizerState() const;
  // Bytes: of what stays, a shared tensor once; of the gradients that are there now.
  StageBytesHeld BytesHeld() const;
  int64_t GradientBytes() const;
  int64_t UndoBytes() const;
  // Copies of tied parameters that another stage saves: that name, and the view; and the slots of its optimizer.
  NamedTensors Replicas() const;
  NamedTensors OptimizerReplicas() const;

 private:
  Stage(Parts parts, NamedTensors parameters);
  std::vector<bool> IsLearnedHere() const;  // by parameter: not another use of a tied one
  // By parameter: the name under which the model saves it, which for a tied one is that of its first use.
  static std::vector<std::string> SavedNames(const Parts& parts, const NamedTensors& parameters);
  // What a backward starts from.
  struct Roots {
    Tensors tensors;
    Tensors gradients;  // undefined: of the loss
  };
  Roots RootsOf(Pass& pass, const Batch& gradients) const;
  // Lets the first layer look at values of the host before they go to an accelerator.
  void CheckValues(const Batch& inputs) const;
  void RunLayers(Pass& pass, const Batch& inputs, const std::vector<Batch>& skips, const PassContext& context,
                 const LossContext& loss);

  const Parts parts_;
  NamedTensors parameters_;
  std::unique_ptr<Optimizer> optimizer_;

  // Of the parameter's shape and type, undefined if none has one. Throws for one that is not as the parameter: another
  // rank has told it.
  at::Tensor SumOfUses(const StageTie& tie, const TiedGradients& board) const;
  void OwnGradients();
  void AddEarlierGradients();
  void Keep(const at::Tensor& tensor, bool always);

  bool summed_ties_ = false;  // tied gradients are no longer those of their uses
  bool contributing_ = false;
  Tensors earlier_;          // by parameter; undefined: no gradient before
  std::vector<bool> added_;  // by parameter: the gradient holds the earlier one

  // A tensor that steps change, and what it was before the step.
  struct Copy {
    at::Tensor tensor;
    at::Tensor before;
    int64_t version = -1;  // of the tensor when it was copied
    bool kept = false;     // for the step that is open
  };
  std::map<const c10::TensorImpl*, Copy> copies_;
};

// The parameters of layers, named `layer.parameter`.
NamedTensors ParametersOf(const std::vector<NamedLayer>& layers);

}  // namespace penstock
