#include "engine/exec/rank_host_builder.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/exec/pipeline_draft.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<RankHost>> BuildRankHost(const PipelineSpec& spec, const Pipeline::Options& options,
                                                        const Plan& plan, Rank self,
                                                        RankEngine::MakeTransport transport, RankEvents* leader) {
  PENSTOCK_ASSIGN_OR_RETURN(Draft draft, CheckSpecification(spec, options));
  PENSTOCK_ASSIGN_OR_RETURN(PlacedStages placed, PlaceStages(spec, options, draft, plan, self));
  RankHost::Parts parts;
  parts.self = self;
  parts.plan = plan;
  parts.loss_spec = spec.loss;
  parts.optimizer = spec.optimizer;
  parts.leader = leader;
  for (const size_t uses : placed.tie_uses) parts.ties.emplace_back(uses);
  parts.loss = std::move(draft.loss);
  parts.metrics = options.metrics ? options.metrics(plan) : MetricsOfPlan(plan, ClockOf(options));
  parts.engine = EngineParts(spec, options, std::move(placed));
  parts.engine.metrics = parts.metrics.get();
  parts.engine.transport = std::move(transport);
  return std::make_unique<RankHost>(std::move(parts));
}

}  // namespace penstock
