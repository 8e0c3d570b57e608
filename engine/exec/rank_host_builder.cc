#include "engine/exec/rank_host_builder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/exec/pipeline_draft.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<RankHost>> BuildRankHost(const PipelineSpec& spec, const Pipeline::Options& options,
                                                        const Plan& plan, Rank self,
                                                        RankEngine::MakeTransport transport, RankEvents* leader) {
  PENSTOCK_ASSIGN_OR_RETURN(Draft draft, CheckSpecification(spec, options));
  size_t layers = 0;
  for (const StagePlan& stage : plan.stages) layers += stage.layers.size();
  if (layers != draft.layers.size()) {
    return InvalidField("plan.stages", absl::StrCat("must have the ", draft.layers.size(), " layers of the model"),
                        absl::StrCat(layers));
  }
  PENSTOCK_ASSIGN_OR_RETURN(PlacedStages placed, PlaceStages(spec, options, draft, plan, self));
  RankHost::Parts parts;
  parts.self = self;
  parts.plan = plan;
  parts.loss_spec = spec.loss;
  parts.optimizer = spec.optimizer;
  parts.leader = leader;
  for (const TiedPlace& tied : placed.tied) parts.ties.emplace_back(tied.ranks.size());
  parts.loss = std::move(draft.loss);
  parts.metrics = options.metrics ? options.metrics(plan) : MetricsOfPlan(plan, ClockOf(options));
  parts.engine = EngineParts(spec, options, std::move(placed));
  parts.engine.metrics = parts.metrics.get();
  parts.engine.transport = std::move(transport);
  return std::make_unique<RankHost>(std::move(parts));
}

}  // namespace penstock
