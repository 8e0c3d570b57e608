#pragma once

// What is known of an exported program without running it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/model/model_spec.h"
#include "engine/program/exported_program.h"

namespace penstock {

struct ModelDescription {
  // Sizes that a dimension may have, both included, and where it stands: images[0].
  struct Dimension {
    std::string name;
    ProgramRange range;
    std::vector<std::string> inputs;
  };
  struct LayerInfo {
    std::string name;
    std::string module;
    int64_t parameters = 0;  // numbers; of those that several layers use, the first has them
  };

  std::string name;
  int64_t bytes = 0;
  std::string digest;  // sha256:
  absl::Time changed;
  absl::Status error;  // not OK: the file can't be used, and what follows means nothing

  ModelSignature signature;  // without targets
  std::vector<Dimension> dimensions;
  int64_t parameters = 0;
  int64_t parameter_bytes = 0;
  int64_t buffer_bytes = 0;
  int nodes = 0;
  std::map<std::string, int> operators;           // aten.linear.default: calls, over all graphs
  std::vector<LayerInfo> layers;                  // cut between modules
  std::map<std::string, std::string> tied_names;  // other names of state_dict() to those of pipelines
  bool evaluation_graph = false;
  bool training_graph = false;
};

// Reads and checks the bytes of a file as a pipeline would; fills in what follows `error`.
//
// Fails:     as ReadExportedProgram, ProgramModel::Create and GraphLayer::Create.
absl::StatusOr<ModelDescription> DescribeProgram(std::string bytes, const ProgramLimits& limits);

}  // namespace penstock
