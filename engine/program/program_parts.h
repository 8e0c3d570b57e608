#pragma once

// A graph cut into parts that run one after the other: what each holds, takes and gives.

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/program/exported_program.h"
#include "engine/program/operator_call.h"

namespace penstock {

// A graph whose operators have been found.
//
// Model:     a value that an operator changed in place is still that value: the operator's result has its number. Values that
//            may share elements form a class, with the smallest of their numbers as its name.
struct ResolvedGraph {
  const ExportedProgram* program = nullptr;
  const ProgramGraph* graph = nullptr;
  std::vector<OperatorCall> calls;                        // as the graph's nodes
  std::vector<ProgramValueIndex> numbers;                 // of the graph's values
  std::vector<ProgramValueIndex> classes;                 // of the numbers
  std::map<ProgramValueIndex, std::vector<int>> changes;  // of a class: the calls that change it
  std::set<int> counters;                                 // tensors that count the batches of its batch norms
  bool trains = false;                                    // it was exported in training mode

  // The tensor of the program that a number stands for, or -1.
  int TensorOf(ProgramValueIndex number) const;
  // Whether the call counts the batches of a batch norm, which does so by itself.
  bool CountsBatches(int call) const;
};

// Finds operators and what they change.
//
// Fails:     SPEC_INVALID with the names of all operators that are not supported; as OperatorCall::Resolve; for a graph that
//            changes a parameter in place.
absl::StatusOr<ResolvedGraph> ResolveGraph(const ExportedProgram& program, const ProgramGraph& graph);

// Calls before which the graph must not be cut: a value that is changed later would be in two places.
std::vector<bool> ForbiddenCuts(const ResolvedGraph& graph);

// One part.
struct GraphPart {
  using Named = std::vector<std::pair<std::string, ProgramValueIndex>>;

  int first = 0;                                 // of its calls
  int end = 0;                                   // behind them
  std::vector<ProgramValueIndex> arrivals = {};  // from the part before: the items of its tuple
  std::vector<ProgramValueIndex> leaves = {};    // for the part behind
  Named pops = {};                               // from parts farther away, by the name of the skip
  Named stashes = {};
  std::vector<ProgramValueIndex> copied = {};  // of what arrives: it is changed in place here
  std::vector<int> tensors = {};               // of the program, used here; ascending
};

// The parts between cuts. `owners` names the part that holds a buffer which several use; the others get it as a value.
std::vector<GraphPart> CutGraph(const ResolvedGraph& graph, const std::vector<int>& cuts,
                                const std::map<int, int>& owners);

// The counter beside a batch norm's running mean, or -1.
int CounterBeside(const ExportedProgram& program, int running_mean);

// The tensors that calls from `first` to before `end` use, ascending; those of batch norms with their counters.
std::vector<int> TensorsUsed(const ResolvedGraph& graph, int first, int end);

}  // namespace penstock
