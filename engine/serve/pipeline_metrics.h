#pragma once

#include <memory>
#include <string>

#include "engine/observe/metrics_registry.h"
#include "engine/plan/plan.h"

namespace penstock {

// Where a pipeline counts, once its stages are known: a lane per device, with the links that its plan uses. Not
// registered yet.
std::shared_ptr<PipelineMetrics> MakePipelineMetrics(const MetricsRegistry& registry, const std::string& name,
                                                     const Plan& plan);
// The same, registered.
std::shared_ptr<PipelineMetrics> AddPipelineMetrics(MetricsRegistry* registry, const std::string& name,
                                                    const Plan& plan);

}  // namespace penstock
