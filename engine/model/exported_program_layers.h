#pragma once

// An exported program as a list of layers, which balance, planner, schedules and checkpointing treat as any other.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/exported_program.h"
#include "engine/model/layer_registry.h"
#include "engine/model/model_spec.h"

namespace penstock {

// Where cuts may fall.
enum class ProgramCuts {
  kModules,  // between modules that follow one another; repeated blocks count one by one
  kNodes,    // between any two operators
};

struct ProgramLayersOptions {
  ProgramCuts cuts = ProgramCuts::kModules;
  bool shapes_only = false;
  bool deferred_batch_norm = false;
};

// Layers, and what ties the copies of a parameter that several of them use.
//
// Model:     a layer is named after its module (layer1_0), its tensors as in state_dict() (layer1.0.conv1.weight). A buffer
//            that several layers read belongs to the first, which hands it on.
struct ProgramLayers {
  std::vector<NamedLayer> layers;
  std::vector<TieSpec> ties;
};

// Fails: SPEC_INVALID naming the operators that are not supported, all at once; as ResolveGraph and GraphLayer::Create.
absl::StatusOr<ProgramLayers> BuildProgramLayers(std::shared_ptr<const ExportedProgram> program,
                                                 const ProgramLayersOptions& options = {});

}  // namespace penstock
