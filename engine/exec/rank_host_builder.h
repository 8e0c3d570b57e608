#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/exec/pipeline.h"
#include "engine/exec/rank_host.h"
#include "engine/plan/plan.h"

namespace penstock {

// Builds the stages that a plan gives to a rank which does not lead it, with the weights that one process would give
// them.
//
// Fails:     as Pipeline::Create.
absl::StatusOr<std::unique_ptr<RankHost>> BuildRankHost(const PipelineSpec& spec, const Pipeline::Options& options,
                                                        const Plan& plan, Rank self,
                                                        RankEngine::MakeTransport transport, RankEvents* leader);

}  // namespace penstock
