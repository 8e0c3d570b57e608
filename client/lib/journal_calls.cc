// The calls of PipelineClient about journals.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/lib/client_calls.h"
#include "client/lib/pipeline_client.h"

namespace penstock {
namespace {

// What reads or copies a whole journal takes as long as its disk.
constexpr absl::Duration kWholeJournal = absl::Hours(1);

}  // namespace

absl::StatusOr<std::vector<v1::JournalCall>> PipelineClient::ListJournalCalls(const std::string& pipeline,
                                                                              bool newest_first, int64_t limit) {
  v1::ListJournalCallsRequest request;
  request.set_pipeline(PipelineName(pipeline));
  request.set_newest_first(newest_first);
  std::vector<v1::JournalCall> calls;
  do {
    const int64_t left = limit - static_cast<int64_t>(calls.size());
    request.set_page_size(static_cast<int32_t>(std::min<int64_t>(kItemsPerPage, left)));
    PENSTOCK_ASSIGN_OR_RETURN(v1::ListJournalCallsResponse page,
                              Call(stubs_->journals, &v1::JournalService::Stub::ListJournalCalls, request));
    for (v1::JournalCall& call : *page.mutable_calls()) calls.push_back(std::move(call));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && static_cast<int64_t>(calls.size()) < limit);
  return calls;
}

absl::StatusOr<v1::VerifyJournalResponse> PipelineClient::VerifyJournal(const std::string& pipeline) {
  v1::VerifyJournalRequest request;
  request.set_pipeline(PipelineName(pipeline));
  return Call(stubs_->journals, &v1::JournalService::Stub::VerifyJournal, request, {}, kWholeJournal);
}

absl::StatusOr<v1::CompactJournalResponse> PipelineClient::CompactJournal(const std::string& pipeline) {
  v1::CompactJournalRequest request;
  request.set_pipeline(PipelineName(pipeline));
  return Call(stubs_->journals, &v1::JournalService::Stub::CompactJournal, request, {}, absl::Minutes(10));
}

absl::StatusOr<v1::BackUpJournalResponse> PipelineClient::BackUpJournal(const v1::BackUpJournalRequest& request) {
  return Call(stubs_->journals, &v1::JournalService::Stub::BackUpJournal, request, {}, kWholeJournal);
}

absl::StatusOr<std::vector<v1::HistoryStep>> PipelineClient::GetHistory(const std::string& pipeline) {
  v1::GetHistoryRequest request;
  request.set_pipeline(PipelineName(pipeline));
  return ListAll<v1::HistoryStep>(stubs_->journals, &v1::JournalService::Stub::GetHistory, request,
                                  [](v1::GetHistoryResponse& page) { return page.mutable_steps(); });
}

}  // namespace penstock
