#pragma once

// JournalService: what operators do with the journals of pipelines.

#include <memory>
#include <string>

#include "engine/base/job_thread.h"
#include "engine/serve/state_copy.h"
#include "penstock/v1/journal_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// What calls about journals work on. All of it outlives them.
struct JournalParts {
  StateCopy::Parts state = {};  // without a journal: the daemon keeps none
  JobThread* reads = nullptr;   // pages are read there
  JobThread* jobs = nullptr;    // what reads a whole journal runs there, however long it takes
};

// Reads journals, empties them, and copies them.
//
// Threads:   gRPC's callback threads; no method blocks or touches the disk. Answers come from the job threads, which are
//            closed after the server and before what the environment names, and from pipelines.
// Fails:     FEATURE_DISABLED without a journal.
class JournalServiceImpl final
    : public v1::JournalService::WithRawCallbackMethod_ListJournalCalls<
          v1::JournalService::WithRawCallbackMethod_VerifyJournal<
              v1::JournalService::WithRawCallbackMethod_CompactJournal<
                  v1::JournalService::WithRawCallbackMethod_BackUpJournal<
                      v1::JournalService::WithRawCallbackMethod_GetHistory<v1::JournalService::Service>>>>> {
 public:
  JournalServiceImpl(const ServiceEnvironment& environment, JournalParts parts)
      : environment_(environment), parts_(std::move(parts)) {}

  grpc::ServerUnaryReactor* ListJournalCalls(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* VerifyJournal(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* CompactJournal(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* BackUpJournal(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetHistory(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;

 private:
  absl::Status List(const UnaryCallPtr<v1::ListJournalCallsRequest, v1::ListJournalCallsResponse>& call);
  absl::Status Verify(const UnaryCallPtr<v1::VerifyJournalRequest, v1::VerifyJournalResponse>& call);
  absl::Status Compact(const UnaryCallPtr<v1::CompactJournalRequest, v1::CompactJournalResponse>& call);
  absl::Status BackUp(const UnaryCallPtr<v1::BackUpJournalRequest, v1::BackUpJournalResponse>& call);
  absl::Status History(const UnaryCallPtr<v1::GetHistoryRequest, v1::GetHistoryResponse>& call);
  // The pipeline of a request, which has a journal.
  absl::StatusOr<std::shared_ptr<ServedPipeline>> Find(const Identity& identity, const std::string& name) const;
  // Where a page goes on; 0: at the beginning.
  absl::StatusOr<int64_t> PlaceOf(const std::string& scope, const std::string& token) const;

  const ServiceEnvironment environment_;
  const JournalParts parts_;
  const ServiceGate gate_{environment_.authenticator, v1::JournalService::service_full_name()};
};

}  // namespace penstock
