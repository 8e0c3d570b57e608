#pragma once

// A graph cut into parts that run one after the other: what each holds, takes and gives.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/program/resolved_graph.h"

namespace penstock {

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
  // Inputs of the graph that the first part stashes and does nothing else with, outputs that the last part pops and does
  // nothing else with, and outputs that any part stashes for that: names of skips, and positions.
  using Handed = std::vector<std::pair<std::string, int>>;
  Handed handed_inputs = {};
  Handed handed_outputs = {};
  Handed given = {};
};

// The parts between cuts. `owners` names the part that holds a buffer which several use; the others get it as a value.
std::vector<GraphPart> CutGraph(const ResolvedGraph& graph, const std::vector<int>& cuts,
                                const std::map<int, int>& owners);

// The tensors that calls from `first` to before `end` use, ascending; those of batch norms with their counters.
std::vector<int> TensorsUsed(const ResolvedGraph& graph, int first, int end);

}  // namespace penstock
