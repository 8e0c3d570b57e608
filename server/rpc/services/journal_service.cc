#include "server/rpc/services/journal_service.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/cancel_token.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "engine/journal_view/journal_messages.h"
#include "server/rpc/admission.h"
#include "server/rpc/convert/page_token.h"

namespace penstock {
namespace {

constexpr char kPipelinePrefix[] = "pipelines/";
constexpr int64_t kOutcomesAtOnce = 1'000;

absl::StatusOr<v1::ListJournalCallsResponse> ReadPage(PipelineJournal& journal, int64_t after, bool newest_first,
                                                      int size, const PageTokens& tokens, const std::string& scope) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ListedCall> calls, journal.List(after, newest_first, size));
  v1::ListJournalCallsResponse response;
  for (const ListedCall& call : calls) {
    PENSTOCK_ASSIGN_OR_RETURN(*response.add_calls(), MessageOf(call));
  }
  if (calls.empty()) return response;
  const int64_t last = calls.back().sequence;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ListedCall> more, journal.List(last, newest_first, 1));
  if (!more.empty()) response.set_next_page_token(tokens.Make(scope, absl::StrCat(last)));
  return response;
}

absl::StatusOr<v1::GetHistoryResponse> ReadSteps(PipelineJournal& journal, int64_t after, int size,
                                                 const PageTokens& tokens, const std::string& scope) {
  v1::GetHistoryResponse response;
  while (true) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ListedCall> calls, journal.Outcomes(after, kOutcomesAtOnce));
    if (calls.empty()) return response;
    for (const ListedCall& call : calls) {
      PENSTOCK_ASSIGN_OR_RETURN(std::optional<v1::HistoryStep> step, StepOf(call));
      if (step.has_value()) {
        if (response.steps_size() == size) {
          response.set_next_page_token(tokens.Make(scope, absl::StrCat(after)));
          return response;
        }
        *response.add_steps() = *std::move(step);
      }
      after = call.sequence;
    }
  }
}

v1::BackUpJournalResponse ReplyOf(const CopiedState& state, const std::string& folder) {
  v1::BackUpJournalResponse response;
  response.set_folder(folder);
  for (const CopiedState::Copied& copied : state.pipelines) {
    auto* pipeline = response.add_pipelines();
    pipeline->set_name(kPipelinePrefix + copied.pipeline);
    pipeline->set_sequence(copied.sequence);
    pipeline->set_checkpoints(static_cast<int32_t>(copied.checkpoints));
  }
  for (const CopiedState::LeftOut& left_out : state.left_out) {
    auto* pipeline = response.add_left_out();
    pipeline->set_name(kPipelinePrefix + left_out.pipeline);
    pipeline->set_reason(ReasonOf(left_out.error));
  }
  return response;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ServedPipeline>> JournalServiceImpl::Find(const Identity& identity,
                                                                         const std::string& name) const {
  if (parts_.state.journal == nullptr) return JournalOff();
  return FindPipeline(environment_, identity, name, "pipeline");
}

absl::StatusOr<int64_t> JournalServiceImpl::PlaceOf(const std::string& scope, const std::string& token) const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string place, environment_.page_tokens->Read(scope, token));
  int64_t after = 0;
  PENSTOCK_CHECK(place.empty() || absl::SimpleAtoi(place, &after));  // we made it
  return after;
}

grpc::ServerUnaryReactor* JournalServiceImpl::ListJournalCalls(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request,
                                                               grpc::ByteBuffer* response) {
  return ServeUnary<v1::ListJournalCallsRequest, v1::ListJournalCallsResponse>(
      gate_.Of("ListJournalCalls"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = List(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status JournalServiceImpl::List(
    const UnaryCallPtr<v1::ListJournalCallsRequest, v1::ListJournalCallsResponse>& call) {
  const v1::ListJournalCallsRequest& request = call->request();
  PENSTOCK_ASSIGN_OR_RETURN(const int size, CheckedPageSize(request.page_size()));
  PENSTOCK_ASSIGN_OR_RETURN(auto pipeline, Find(call->identity(), request.pipeline()));
  std::string scope = absl::StrCat("ListJournalCalls ", call->caller(), " ", request.pipeline(), " ",
                                   request.newest_first() ? "newest" : "oldest");
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t after, PlaceOf(scope, request.page_token()));
  parts_.reads->Post([this, call, after, size, pipeline = std::move(pipeline), scope = std::move(scope)] {
    call->Answer(ReadPage(pipeline->journal()->journal(), after, call->request().newest_first(), size,
                          *environment_.page_tokens, scope));
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* JournalServiceImpl::VerifyJournal(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<v1::VerifyJournalRequest, v1::VerifyJournalResponse>(
      gate_.Of("VerifyJournal"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Verify(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status JournalServiceImpl::Verify(const UnaryCallPtr<v1::VerifyJournalRequest, v1::VerifyJournalResponse>& call) {
  PENSTOCK_ASSIGN_OR_RETURN(auto pipeline, Find(call->identity(), call->request().pipeline()));
  const auto cancel = std::make_shared<CancelToken>();
  call->OnCancelled([cancel] { cancel->Cancel(); });
  parts_.jobs->Post([call, cancel, pipeline = std::move(pipeline)] {
    call->Reply(MessageOf(pipeline->journal()->journal().Check([&] { return !cancel->cancelled(); })));
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* JournalServiceImpl::CompactJournal(grpc::CallbackServerContext* context,
                                                             const grpc::ByteBuffer* request,
                                                             grpc::ByteBuffer* response) {
  return ServeUnary<v1::CompactJournalRequest, v1::CompactJournalResponse>(
      gate_.Of("CompactJournal"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = Compact(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status JournalServiceImpl::Compact(
    const UnaryCallPtr<v1::CompactJournalRequest, v1::CompactJournalResponse>& call) {
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline, Find(call->identity(), call->request().pipeline()));
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket place, environment_.admission->Admit(call->caller(), pipeline->name()));
  call->Keep(place);
  CallContext context;
  context.caller = call->caller();
  context.session = call->session();
  context.observer = call->trace();
  context.place = std::move(place);
  pipeline->CompactJournal(std::move(context), [call](const absl::StatusOr<StateAnswer>& answer) {
    if (!answer.ok()) return call->Fail(answer.status());
    v1::CompactJournalResponse response;
    response.set_calls(answer->compacted.calls);
    response.set_bytes(answer->compacted.bytes);
    if (!answer->checkpoint.id.empty()) {
      response.set_checkpoint(absl::StrCat(call->request().pipeline(), "/checkpoints/", answer->checkpoint.id));
    }
    call->Reply(response);
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* JournalServiceImpl::BackUpJournal(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return ServeUnary<v1::BackUpJournalRequest, v1::BackUpJournalResponse>(
      gate_.Of("BackUpJournal"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = BackUp(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status JournalServiceImpl::BackUp(const UnaryCallPtr<v1::BackUpJournalRequest, v1::BackUpJournalResponse>& call) {
  if (parts_.state.journal == nullptr) return JournalOff();
  PENSTOCK_RETURN_IF_ERROR(environment_.admission->CheckOpen());
  const auto cancel = std::make_shared<CancelToken>();
  call->OnCancelled([cancel] { cancel->Cancel(); });
  parts_.jobs->Post([this, call, cancel] {
    const v1::BackUpJournalRequest& request = call->request();
    const absl::StatusOr<CopiedState> state =
        StateCopy(parts_.state, request.folder(), request.named_checkpoints(), cancel).Run();
    if (!state.ok()) return call->Fail(state.status());
    call->Reply(ReplyOf(*state, request.folder()));
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* JournalServiceImpl::GetHistory(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::GetHistoryRequest, v1::GetHistoryResponse>(
      gate_.Of("GetHistory"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        if (absl::Status accepted = History(call); !accepted.ok()) call->Fail(accepted);
      });
}

absl::Status JournalServiceImpl::History(const UnaryCallPtr<v1::GetHistoryRequest, v1::GetHistoryResponse>& call) {
  const v1::GetHistoryRequest& request = call->request();
  PENSTOCK_ASSIGN_OR_RETURN(const int size, CheckedPageSize(request.page_size()));
  PENSTOCK_ASSIGN_OR_RETURN(auto pipeline, Find(call->identity(), request.pipeline()));
  std::string scope = absl::StrCat("GetHistory ", call->caller(), " ", request.pipeline());
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t after, PlaceOf(scope, request.page_token()));
  parts_.reads->Post([this, call, after, size, pipeline = std::move(pipeline), scope = std::move(scope)] {
    call->Answer(ReadSteps(pipeline->journal()->journal(), after, size, *environment_.page_tokens, scope));
  });
  return absl::OkStatus();
}

}  // namespace penstock
