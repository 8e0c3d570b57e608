#pragma once

// Pipelines and plans for people.

#include <string>
#include <vector>

#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// The last part of a resource's name: pipelines/gpt -> gpt.
std::string ShortName(const std::string& name);

// "ready" of PIPELINE_STATE_READY.
std::string StateWord(v1::PipelineState state);

// The stages of a plan, with layers, costs and memory, and a line on schedule and bubbles.
std::string PlanText(const v1::Plan& plan, bool wide);

// What a plan would be made of: every layer with its costs and place, the skips that cross stages, and why.
std::string PlanDetailText(const v1::Plan& plan);

// The answer to a dry run: the model, then the plan with its details.
std::string PlannedText(const v1::ModelSpec& model, const v1::Plan& plan, bool wide);

// What a search has found, one line per candidate; wide: all that is known of each, and what was refused.
std::string CandidatesText(const v1::PlanPipelineResponse& search, bool wide);

// A pipeline with its plan, signature and state. Wide: the plan's details too.
std::string PipelineText(const v1::Pipeline& pipeline, bool wide);

// One line per pipeline.
std::string PipelineListText(const std::vector<v1::Pipeline>& pipelines, bool wide);

}  // namespace penstock
