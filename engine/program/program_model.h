#pragma once

// An exported program as a list of layers, which balance, planner, schedules and checkpointing treat as any other.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer.h"
#include "engine/model/layer_registry.h"
#include "engine/model/layer_source.h"
#include "engine/model/model_spec.h"
#include "engine/program/exported_program.h"

namespace penstock {

// A program that is cut into layers, none of them built yet.
//
// Model:     a layer is named after its module (layer1_0), its tensors as in state_dict() (layer1.0.conv1.weight). A
//            parameter that several layers use has the name of state_dict() in the first, and is called after it and
//            the layer in the others (embedding.weight-head). A buffer that several layers read belongs to the first,
//            which hands it on.
// Owns:      the file's bytes, so that each layer can be built from them.
// Threads:   immutable; any thread.
class ProgramModel : public LayerSource {
 public:
  // Fails: SPEC_INVALID naming the operators that are not supported, all at once; as ResolveGraph.
  static absl::StatusOr<std::shared_ptr<const ProgramModel>> Create(ExportedProgram program,
                                                                    ProgramCuts cuts = ProgramCuts::kModules);
  ~ProgramModel() override;

  int size() const override;
  const std::string& name(int layer) const override;
  const std::string& module(int layer) const override;  // of a cut between operators: the operator's node
  const std::vector<TieSpec>& ties() const override;
  std::shared_ptr<const std::string> file() const override;
  // Fails: as GraphLayer::Create.
  absl::StatusOr<std::unique_ptr<Layer>> Build(int layer, const SourceOptions& options = {}) const override;

 private:
  struct Parts;
  explicit ProgramModel(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

// All layers of a program.
absl::StatusOr<std::vector<NamedLayer>> BuildProgramLayers(const ProgramModel& model,
                                                           const SourceOptions& options = {});

}  // namespace penstock
