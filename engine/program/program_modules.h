#pragma once

// Which modules a graph falls into.

#include <string>
#include <vector>

#include "engine/program/exported_program.h"

namespace penstock {

// A place where a graph may be cut: before a node, known by a name that graphs of the same model share.
struct ModuleBoundary {
  int node = 0;
  std::string key;     // unit and how often it came before
  std::string module;  // name of the module that begins, or of the node
};

// Boundaries between modules, the first node left out. The model itself is always opened, and so is each module that
// holds blocks of one type, or a module that holds such; in these, each nn.Sequential. What lies between modules
// belongs to the one before.
std::vector<ModuleBoundary> ModuleBoundaries(const ProgramGraph& graph);

// A boundary before each node but the first.
std::vector<ModuleBoundary> NodeBoundaries(const ProgramGraph& graph);

// The name of the first module.
std::string FirstModule(const ProgramGraph& graph);

}  // namespace penstock
