#include "engine/serve/pipeline_metrics.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner.h"

namespace penstock {

std::shared_ptr<PipelineMetrics> MakePipelineMetrics(const MetricsRegistry& registry, const std::string& name,
                                                     const Plan& plan) {
  std::vector<LaneDescription> lanes(LaneCount(plan));
  for (const StagePlan& stage : plan.stages) {
    LaneDescription& lane = lanes[stage.lane];
    lane.lane = stage.lane;
    lane.device = stage.device;
    lane.rank = stage.rank;
    const int last = stage.first_layer + static_cast<int>(stage.layers.size()) - 1;
    absl::StrAppend(&lane.layers, lane.layers.empty() ? "" : ",", stage.first_layer, "-", last);
    lane.ideal_bubble = plan.ideal_bubble;
    lane.predicted_bubble = plan.predicted_bubble;
  }
  const auto add_link = [&](int from, int to, LinkKind kind) {
    const LinkDescription link{.to = to, .kind = kind};
    std::vector<LinkDescription>& links = lanes[from].links;
    if (from != to && std::find(links.begin(), links.end(), link) == links.end()) links.push_back(link);
  };
  const auto add_way = [&](int from_stage, int to_stage) {
    const int from = plan.stages[from_stage].lane;
    const int to = plan.stages[to_stage].lane;
    add_link(from, to, LinkKind::kActivation);
    add_link(to, from, LinkKind::kGradient);
  };
  for (int stage = 1; stage < static_cast<int>(plan.stages.size()); ++stage) add_way(stage - 1, stage);
  for (const SkipRoute& route : plan.skips) add_way(route.edge.from, route.edge.to);
  const int count = static_cast<int>(lanes.size());
  return registry.MakePipeline(name, lanes,
                               {.kind = plan.schedule.kind,
                                .stages = count,
                                .chunks = plan.schedule.chunks,
                                .micro_batches = plan.schedule.micro_batches,
                                .checkpoint_mode = std::string(CheckpointModeName(plan.schedule.checkpoint))});
}

std::shared_ptr<PipelineMetrics> AddPipelineMetrics(MetricsRegistry* registry, const std::string& name,
                                                    const Plan& plan) {
  std::shared_ptr<PipelineMetrics> metrics = MakePipelineMetrics(*registry, name, plan);
  registry->AddPipeline(metrics);
  return metrics;
}

}  // namespace penstock
