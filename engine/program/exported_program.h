#pragma once

// An exported program: the .pt2 file that plain PyTorch writes with torch.export.save. A list of operators in JSON with
// the weights beside it: data, no code.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock {

// A value of a graph, by its position in ProgramGraph::values.
using ProgramValueIndex = int;
inline constexpr ProgramValueIndex kNoValue = -1;

// A literal, or a value of the graph.
struct ProgramItem {
  ProgramValueIndex value = kNoValue;
  c10::IValue literal = {};  // if there is no value: none, bool, int, float or string

  bool is_value() const { return value != kNoValue; }
};

// One argument of an operator.
struct ProgramArgument {
  enum class Kind {
    kItem,    // items[0]
    kList,    // tensors, None among them, or numbers
    kDevice,  // whatever device the file names, it becomes the stage's
  };

  std::string name = {};  // as the operator's schema calls it
  Kind kind = Kind::kItem;
  std::vector<ProgramItem> items = {};
};

// A module around a node, the outermost first.
struct ProgramModule {
  std::string name;  // layer1.0.conv1; empty: the model itself
  std::string type;  // torch.nn.modules.conv.Conv2d
};

// One operator call.
struct ProgramNode {
  std::string name;
  std::string target;  // torch.ops.aten.linear.default, _operator.mul
  std::vector<ProgramArgument> arguments;
  std::vector<ProgramValueIndex> outputs;  // kNoValue: None, or never used
  bool outputs_are_list = false;           // one list of tensors, not several results
  bool gradients = true;                   // false inside wrap_with_set_grad_enabled(False)
  bool autocast = true;                    // false inside wrap_with_autocast(enabled=False)
  std::vector<ProgramModule> modules;
};

// A tensor that the file holds.
struct ProgramTensor {
  enum class Kind { kParameter, kBuffer, kConstant };

  std::string name;           // of state_dict()
  Kind kind = Kind::kBuffer;  // a frozen parameter is a buffer
  bool persistent = true;     // whether state_dict() has it; false for constants
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
  int64_t offset = 0;           // elements
  std::string_view bytes = {};  // of the whole storage, within ExportedProgram::file
  int same_as = -1;  // another that is this very one, tied weights, under the name that the model meets first

  int64_t element_bytes() const;
};

// One dimension of an input: a number, or a symbol times `factor` plus `addend`.
struct ProgramDimension {
  std::string symbol = {};  // empty: fixed
  int64_t factor = 1;
  int64_t addend = 0;  // the number, if fixed
  int64_t example = 1;
};

// What a call gives.
struct ProgramInput {
  std::string name;
  ProgramValueIndex value = kNoValue;
  at::ScalarType type = at::kFloat;
  std::vector<ProgramDimension> shape = {};
};

struct ProgramOutput {
  std::string name;
  ProgramItem item;
  bool tensor = false;  // what follows is of tensors
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape = {};  // -1 where it may vary
};

// Bounds of a symbol, both included.
struct ProgramRange {
  int64_t least = 0;
  int64_t most = 0;
};

// One graph: what a model does in one mode. Higher-order calls are unfolded.
struct ProgramGraph {
  std::vector<std::string> values;                     // names; the order is that of their making
  std::map<ProgramValueIndex, int> tensors;            // of the program, that a value stands for
  std::map<ProgramValueIndex, c10::IValue> constants;  // inputs with a fixed value
  std::vector<ProgramInput> inputs;
  std::vector<ProgramOutput> outputs;
  std::vector<ProgramNode> nodes;
  std::map<std::string, ProgramRange> symbols;
};

// The content of a file.
//
// Model:     one graph, as the model was when it was exported; a second one for training if the file has the record
//            kTrainingRecord beside it, over the same tensors.
// Owns:      the file's bytes, until LoadTensor was called for what is needed of them.
// Threads:   immutable; any thread.
struct ExportedProgram {
  std::shared_ptr<const std::string> file;
  std::vector<ProgramTensor> tensors;
  ProgramGraph graph;
  std::optional<ProgramGraph> training;
};

// Where penstock.export puts the graph of the other mode: extra_files of torch.export.save.
inline constexpr char kTrainingRecord[] = "extra/penstock_training.json";

struct ProgramLimits {
  int64_t graph_bytes = int64_t{64} << 20;  // of a JSON record
  int64_t graph_values = 4'000'000;         // of a JSON record: each takes about 100 bytes; a node has about 100 values
  int64_t tensor_bytes = int64_t{64} << 30;  // of all tensors
  int64_t nodes = 20'000;
  int64_t tensors = 20'000;
  int64_t items = 10'000;  // of a list: arguments, results, inputs and outputs of the program
  int rank = 8;
  int name_bytes = 256;
  int depth = 48;  // of JSON, and with it of graphs in graphs
};

// Reads a file: archive, graph, signature, and where the tensors lie. No tensor is made, and no pickle is ever opened.
//
// Fails:     INVALID_ARGUMENT / SPEC_INVALID "exported program FIELD: PROBLEM, got VALUE" for anything else than what
//            PyTorch 2.11 writes; RESOURCE_EXHAUSTED / TENSOR_TOO_LARGE beyond a limit of bytes.
absl::StatusOr<ExportedProgram> ReadExportedProgram(std::shared_ptr<const std::string> file,
                                                    const ProgramLimits& limits = {});

// Makes one tensor: a contiguous copy, or with `shapes_only` one without memory.
//
// Fails:     throws (RunTorch) when memory is short.
at::Tensor LoadTensor(const ProgramTensor& tensor, bool shapes_only);

}  // namespace penstock
