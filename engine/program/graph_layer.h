#pragma once

// Runs a part of an exported program as a layer.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/batch_norm.h"
#include "engine/model/layer.h"
#include "engine/program/program_parts.h"

namespace penstock {

// What one layer runs in one mode.
struct GraphLayerMode {
  const ResolvedGraph* graph = nullptr;
  const GraphPart* part = nullptr;
  std::optional<bool> train_literals = {};  // instead of what the file says
};

struct GraphLayerRequest {
  std::shared_ptr<const ExportedProgram> program;
  GraphLayerMode evaluation;
  GraphLayerMode training;
  std::vector<int> parameters = {};  // of the program: in its order; those used elsewhere, too, are copies to be tied
  std::vector<std::string> parameter_names = {};  // of each
  std::vector<int> buffers = {};                  // that this layer saves
  bool first = false;
  bool last = false;
  bool shapes_only = false;
  bool deferred_batch_norm = false;
};

// A range of operators with the tensors that they use.
//
// Model:     values live in numbered places during one pass, each until its last use. What the layer before gave comes
//            as a tuple, what others farther away gave as skips. What the graph changes in place among these is copied
//            first. Buffers that the graph changes (counters, moving means) are copied for a pass; in training, the
//            operators that change them run again on the buffers themselves with the step, in micro-batch order, on
//            what the pass saw.
// Owns:      its parameters and buffers; nothing of the file.
// Threads:   as Layer.
// Fails:     Forward throws (RunTorch) INVALID_ARGUMENT / TENSOR_SIGNATURE, naming the node, where an operator refuses
//            its arguments or an assertion of the graph does not hold, and naming the input whose shape breaks a
//            constraint. SPEC_INVALID for an output that is not what the file says.
class GraphLayer : public Layer {
 public:
  // Fails: SPEC_INVALID for statistics that are no buffers of the file, and a changed buffer that depends on random
  // numbers.
  static absl::StatusOr<std::unique_ptr<GraphLayer>> Create(const GraphLayerRequest& request);

  Batch Forward(const Batch& inputs, const LayerContext& context) override;
  // The graph names element types itself. Throws SPEC_INVALID.
  void Cast(at::ScalarType type) override;
  void CommitStatistics() override;
  void DiscardStatistics(MicroBatchIndex first) override;
  NamedTensors Notes() const override;
  void SetNotes(const NamedTensors& notes) override;
  std::vector<HandedValue> HandedInputs() const override { return handed_inputs_; }
  std::vector<HandedValue> HandedOutputs() const override { return handed_outputs_; }
  std::vector<TensorSignature> InputSignature() const override { return inputs_; }
  std::vector<TensorSignature> OutputSignature() const override { return outputs_; }
  int64_t LargestOpenDimension() const override { return largest_open_dimension_; }

 private:
  using Place = int;  // of a value during a pass
  struct Step {
    OperatorCall call;
    std::string node;  // for errors
    bool gradients = true;
    bool autocast = true;
    BatchNorm* batch_norm = nullptr;
    std::vector<Place> ends = {};  // values that no later step needs
    // Of a step in Mode::state_steps: what it takes of a pass, and whether this step or a later one changes it.
    std::vector<std::pair<Place, bool>> noted = {};
  };
  struct Mode {
    std::vector<Step> steps;
    int places = 0;
    std::vector<Place> arrivals = {};
    std::vector<c10::IValue> fixed_leaves = {};
    std::vector<Place> leaves = {};           // -1: the next of fixed_leaves
    std::vector<ProgramOutput> outputs = {};  // of the whole program, which the last leaves are
    std::set<int> handed_outputs = {};        // positions of those that are only popped: they may have left before
    std::map<std::string, Place> pops = {};
    std::map<std::string, Place> stashes = {};
    std::vector<std::pair<Place, ProgramOutput>> given = {};  // of the stashes: outputs of the whole program
    std::vector<Place> copied = {};
    std::vector<std::pair<Place, int>> tensors = {};  // positions in tensors_
    std::vector<std::pair<Place, c10::IValue>> constants = {};
    std::vector<std::pair<Place, int>> states = {};  // tensors that steps change
    std::vector<int> state_steps = {};               // what changes them
    std::optional<bool> train_literals = {};
  };

  GraphLayer() = default;
  absl::Status Build(const GraphLayerRequest& request);
  void AddTensors(const GraphLayerRequest& request);
  absl::Status BuildMode(const GraphLayerRequest& request, const GraphLayerMode& source, bool training, Mode& mode);
  absl::Status AddSteps(const GraphLayerRequest& request, const GraphLayerMode& source, bool training,
                        const std::vector<ProgramValueIndex>& places, Mode& mode);
  absl::Status FindStateSteps(const GraphLayerMode& source, const std::vector<ProgramValueIndex>& places, Mode& mode);
  static void NoteInputs(const Step& step, const std::vector<c10::IValue>& values, std::vector<c10::IValue>& note);
  static void FindEnds(Mode& mode);
  absl::StatusOr<BatchNorm*> MakeBatchNorm(const GraphLayerRequest& request, const ResolvedGraph& graph,
                                           const OperatorCall& call);
  void Describe(const GraphLayerRequest& request);

  void CheckShapes(const Batch& inputs) const;
  std::vector<c10::IValue> PlaceValues(const Mode& mode, const Batch& inputs, const LayerContext& context);
  void RunStep(const Step& step, std::vector<c10::IValue>& values, const OperatorPass& pass) const;
  static void CheckOutput(const ProgramOutput& output, const Value& value);
  Batch Finish(const Mode& mode, std::vector<c10::IValue>& values, const LayerContext& context) const;
  at::Tensor TensorOn(int tensor, c10::Device device);

  std::map<int, int> positions_;     // of the program's tensors, in tensors_
  std::vector<at::Tensor> tensors_;  // parameters, buffers, constants
  std::vector<bool> moves_;          // whether a tensor is a constant, which the pipeline does not move to a device
  Mode evaluation_;
  Mode training_;
  std::set<std::string> pop_names_;    // of both modes
  std::set<std::string> stash_names_;  // the same
  std::vector<HandedValue> handed_inputs_;
  std::vector<HandedValue> handed_outputs_;
  std::vector<std::unique_ptr<BatchNorm>> batch_norms_;
  std::map<MicroBatchIndex, std::vector<c10::IValue>> notes_;
  bool first_ = false;
  std::vector<ProgramInput> program_inputs_;
  std::map<std::string, ProgramRange> symbols_;
  std::vector<TensorSignature> inputs_;
  std::vector<TensorSignature> outputs_;
  int64_t largest_open_dimension_ = 1;
};

}  // namespace penstock
