#pragma once

// What the stages of a pipeline are, as the leader tells it to the ranks that build them. A reader believes nothing.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/exec/pipeline_spec.h"
#include "engine/plan/plan.h"
#include "engine/tensor/named_tensors.h"
#include "penstock/peer/v1/rank.pb.h"

namespace penstock {

// A specification and a plan as the rank gets them that builds stages of it. Devices are the plan's.
peer::v1::BuildStages ToProto(const std::string& name, uint32_t generation, const PipelineSpec& spec, const Plan& plan);
struct StagesToBuild {
  std::string name;
  PipelineSpec spec;
  Plan plan;
};
// Fails:     as FromProto of a specification; RANK_MESSAGE.
absl::StatusOr<StagesToBuild> FromProto(const peer::v1::BuildStages& message);

// The file of an exported program as the tensors of that message: a view, while the file lives. And back: nothing where
// there is none. Fails: RANK_MESSAGE for what is no file.
NamedTensors ToTensors(const std::string& program_file);
absl::StatusOr<std::optional<std::string>> ProgramFileOf(const NamedTensors& tensors);

}  // namespace penstock
