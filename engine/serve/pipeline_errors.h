#pragma once

// The errors of the table of pipelines. All name the pipeline.

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

absl::Status PipelineError(absl::StatusCode code, std::string_view reason, std::string_view message,
                           const std::string& name);

// NOT_FOUND / PIPELINE_NOT_FOUND, as of a name that no pipeline has: also for one that the caller may not know of.
absl::Status PipelineNotFound(const std::string& name);

// UNAVAILABLE / DRAINING, of the table.
absl::Status TableDraining();

// UNAVAILABLE / PIPELINE_REFORMING, with the time after which to ask again.
absl::Status PipelineReforming(const std::string& name);
// FAILED_PRECONDITION / PIPELINE_NOT_READY, of one that is being unloaded, and of one that is.
absl::Status PipelineUnloading(const std::string& name);
absl::Status PipelineUnloaded(const std::string& name);
// FAILED_PRECONDITION / GRAPH_OPEN.
absl::Status GraphOpen();
// Whether it is UNAVAILABLE / RANK_LOST.
bool IsRankLost(const absl::Status& status);
// Whether it goes away when the group is complete: RANK_LOST or GROUP_INCOMPLETE.
bool AwaitsGroup(const absl::Status& status);

}  // namespace penstock
