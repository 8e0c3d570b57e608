#pragma once

// What pipelines are made from, of messages.

#include <string>

#include "absl/status/statusor.h"
#include "engine/serve/pipeline_builder.h"
#include "engine/serve/pipeline_table.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// The recipe of a specification. `described`: what its checkpoints keep of it.
//
// Fails:     as FromProto of a specification.
absl::StatusOr<PipelineRecipe> RecipeOf(const v1::PipelineSpec& spec, const v1::PipelineSpec& described);

// That of an update: what a pipeline has, with what the request gives over it.
//
// Fails:     also INVALID_ARGUMENT / SPEC_INVALID for a field that no update changes, and where nothing is given.
absl::StatusOr<PipelineRecipe> RecipeOver(const PipelineEntry& entry, const v1::UpdatePipelineRequest& request);

// What a pipeline is made from as it is now, with its plan. Fails: as RecipeFrom().
absl::StatusOr<PipelineRecipe> RecipeNow(const PipelineEntry& entry);

// That of a pipeline which is made again: `specification` is what a recipe's `describe` has written.
//
// Fails:     also DATA_LOSS / JOURNAL_CORRUPT for bytes that are no specification.
absl::StatusOr<PipelineRecipe> RecipeFrom(const std::string& specification);

}  // namespace penstock
