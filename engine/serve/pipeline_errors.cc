#include "engine/serve/pipeline_errors.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

absl::Status PipelineError(absl::StatusCode code, std::string_view reason, std::string_view message,
                           const std::string& name) {
  return Error(code, reason, message).With("pipeline", Shortened(name)).With("value", Shortened(name));
}

absl::Status TableDraining() {
  return Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is stopping: it makes and deletes no pipelines");
}

absl::Status PipelineReforming(const std::string& name) {
  const std::string message =
      absl::StrCat("pipeline ", name, " has lost a rank, and is made again when the group is complete");
  return WithValue(PipelineError(absl::StatusCode::kUnavailable, "PIPELINE_REFORMING", message, name), "retry_after_ms",
                   "1000");
}

absl::Status PipelineUnloading(const std::string& name) {
  return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                       absl::StrCat("pipeline ", name, " is being unloaded"), name);
}

absl::Status PipelineUnloaded(const std::string& name) {
  return PipelineError(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                       absl::StrCat("pipeline ", name, " is unloaded; LoadPipeline, or penstock pipeline load ", name,
                                    ", makes it ready again"),
                       name);
}

absl::Status GraphOpen() {
  return Error(
      absl::StatusCode::kFailedPrecondition, "GRAPH_OPEN",
      "the graph of a Forward is open, which no checkpoint holds and no update or load brings along: wait for its "
      "Backward, or release it");
}

bool IsRankLost(const absl::Status& status) { return absl::IsUnavailable(status) && ReasonOf(status) == "RANK_LOST"; }

bool AwaitsGroup(const absl::Status& status) {
  return IsRankLost(status) || (absl::IsUnavailable(status) && ReasonOf(status) == "GROUP_INCOMPLETE");
}

absl::Status PipelineNotFound(const std::string& name) {
  return PipelineError(absl::StatusCode::kNotFound, "PIPELINE_NOT_FOUND",
                       absl::StrCat("there is no pipeline ", Shortened(name)), name);
}

}  // namespace penstock
