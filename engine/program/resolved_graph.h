#pragma once

// A graph with its operators found, and what they change and share.

#include <map>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/program/exported_program.h"
#include "engine/program/operator_call.h"

namespace penstock {

// A graph whose operators have been found.
//
// Model:     a value that an operator changed in place is still that value: the operator's result has its number.
//            Values that may share elements form a class, with the smallest of their numbers as its name.
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
// Fails:     SPEC_INVALID with the names of all operators that are not supported; as OperatorCall::Resolve; for a graph
//            that changes a parameter in place.
absl::StatusOr<ResolvedGraph> ResolveGraph(const ExportedProgram& program, const ProgramGraph& graph);

// The counter beside a batch norm's running mean, or -1.
int CounterBeside(const ExportedProgram& program, int running_mean);

}  // namespace penstock
