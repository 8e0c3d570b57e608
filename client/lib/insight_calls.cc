// The calls of PipelineClient about what a pipeline does and did.

#include <utility>

#include "client/lib/client_calls.h"
#include "client/lib/pipeline_client.h"
#include "engine/base/error.h"

namespace penstock {

absl::StatusOr<v1::PipelineStatistics> PipelineClient::Statistics(const std::string& pipeline) {
  v1::WatchStatisticsRequest request;
  request.set_pipeline(PipelineName(pipeline));
  request.mutable_interval()->set_seconds(1);
  request.set_max_updates(1);
  v1::PipelineStatistics statistics;
  bool received = false;
  PENSTOCK_RETURN_IF_ERROR(WatchStatistics(request, [&](const v1::PipelineStatistics& update) {
    statistics = update;
    received = true;
    return true;
  }));
  if (!received) return Error(absl::StatusCode::kInternal, "BUG", "the server sent no statistics");
  return statistics;
}

absl::Status PipelineClient::WatchStatistics(const v1::WatchStatisticsRequest& request,
                                             const std::function<bool(const v1::PipelineStatistics&)>& on_update) {
  return runner_.Run(options_.stream_deadline, "", [&](grpc::ClientContext& context) -> CallError {
    auto stream = stubs_->insight.WatchStatistics(&context, request);
    v1::PipelineStatistics update;
    bool wanted = true;
    while (wanted && stream->Read(&update)) wanted = on_update(update);
    if (!wanted) {
      context.TryCancel();
      while (stream->Read(&update)) {
      }
    }
    const grpc::Status ended = stream->Finish();
    return wanted ? DecodeCallError(ended, context) : CallError();
  });
}

absl::StatusOr<v1::GetScheduleResponse> PipelineClient::GetSchedule(v1::GetScheduleRequest request) {
  constexpr int kActionsPerPage = 1000;
  v1::GetScheduleResponse all;
  request.set_page_size(kActionsPerPage);
  do {
    PENSTOCK_ASSIGN_OR_RETURN(v1::GetScheduleResponse page,
                              Call(stubs_->insight, &v1::InsightService::Stub::GetSchedule, request));
    request.set_page_token(page.next_page_token());
    if (all.actions_size() > 0) {
      all.mutable_actions()->MergeFrom(page.actions());
    } else {
      all = std::move(page);
    }
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

absl::StatusOr<v1::TraceSummary> PipelineClient::ExportTrace(
    const v1::ExportTraceRequest& request, const std::function<absl::Status(std::string_view)>& on_data) {
  v1::TraceSummary summary;
  absl::Status taken;
  bool begun = false;
  const absl::Status status = runner_.Run(options_.stream_deadline, "", [&](grpc::ClientContext& context) -> CallError {
    auto stream = stubs_->insight_data.ExportTrace(&context, request);
    v1::ExportTraceResponse piece;
    while (taken.ok() && stream->Read(&piece)) {
      if (piece.has_summary()) summary = piece.summary();
      begun = begun || !piece.data().empty();
      if (!piece.data().empty()) taken = on_data(piece.data());
    }
    if (!taken.ok()) context.TryCancel();
    while (stream->Read(&piece)) {
    }
    const grpc::Status ended = stream->Finish();
    if (!taken.ok()) return {};
    CallError error = DecodeCallError(ended, context);
    if (begun) error.retry_forbidden = true;  // half of a file can't be taken back
    return error;
  });
  PENSTOCK_RETURN_IF_ERROR(taken);
  PENSTOCK_RETURN_IF_ERROR(status);
  return summary;
}

}  // namespace penstock
