#pragma once

// Nodes of an exported program, from JSON; graphs that are arguments of nodes are unfolded.

#include <string>
#include <vector>

#include "engine/program/program_arguments.h"
#include "engine/program/program_json.h"

namespace penstock {

// Appends nodes and their values to a graph.
//
// Owns:      nothing: the graph, the fields, which take the faults, and the limits must outlive it.
// Threads:   one at a time.
class ProgramNodes {
 public:
  ProgramNodes(ProgramGraph& graph, ProgramFields& fields, const ProgramLimits& limits)
      : graph_(graph), fields_(fields), limits_(limits) {}

  // The fields of a graph. What it says of tensors between operators is not needed: running them tells.
  void CheckGraph(const nlohmann::json& graph);
  // All nodes of a graph; what they give joins the scope.
  void Read(const nlohmann::json& graph, ProgramScope& scope) { ReadNodes(graph, scope, {}); }

  // A new name of a scope, once.
  void Define(ProgramScope& scope, const std::string& name, ProgramItem item);
  // The same for a new value of the graph.
  ProgramValueIndex Make(ProgramScope& scope, const std::string& name);

 private:
  // What holds for the nodes of one graph inside another.
  struct Surroundings {
    bool gradients = true;
    bool autocast = true;
  };

  void ReadNodes(const nlohmann::json& graph, ProgramScope& scope, Surroundings around);
  void ReadNode(const nlohmann::json& node, const std::string& target, const std::string& name, ProgramScope& scope,
                Surroundings around);
  std::vector<ProgramModule> Modules(const nlohmann::json& metadata);
  // Puts the nodes of a graph that is an argument into the place of the call.
  void Unfold(const nlohmann::json& node, const std::string& target, ProgramScope& scope, Surroundings around);
  void BindResults(const nlohmann::json& node, const nlohmann::json& graph, const ProgramScope& inner,
                   ProgramScope& scope);

  ProgramGraph& graph_;
  ProgramFields& fields_;
  const ProgramLimits& limits_;
  ProgramArguments arguments_{fields_, limits_};
};

}  // namespace penstock
