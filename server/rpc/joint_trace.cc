#include "server/rpc/joint_trace.h"

#include <utility>

namespace penstock {

bool HasLanesElsewhere(const ServiceEnvironment& environment, const PipelineMetrics& metrics) {
  if (environment.join_traces == nullptr) return false;
  for (int lane = 0; lane < metrics.lane_count(); ++lane) {
    if (metrics.lane(lane).description.rank != Rank(0)) return true;
  }
  return false;
}

void JoinLanes(const ServiceEnvironment& environment, const PipelineMetrics& metrics, TraceCapture own,
               std::function<void(TraceCapture)> done) {
  if (!HasLanesElsewhere(environment, metrics)) return done(std::move(own));
  environment.join_traces(metrics.name(), std::move(own), std::move(done));
}

}  // namespace penstock
