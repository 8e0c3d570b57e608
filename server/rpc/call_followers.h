#pragma once

// What follows every call of every method from its arrival to its status, in one interceptor: its trace, and its line of
// the audit log.

#include <memory>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"
#include "server/rpc/audit_note.h"
#include "server/tracing/tracer.h"

namespace penstock {

// Makes the interceptor that follows one call.
//
// Model:     Reads traceparent and tracestate; ends the call's span with its status; names trace_id and
//            span_id in the ErrorInfo of an error that does not name those of an earlier call. Probes and reflection
//            (grpc.*) are not traced. The note for the audit log is finished with the same status.
// Owns:      nothing; tracer, audit log (each may be null) and clock outlive the server.
class CallFollowersFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallFollowersFactory(const Tracer* tracer, AuditLog* audit, Clock* clock)
      : tracer_(tracer), audit_(audit), clock_(clock) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  const Tracer* const tracer_;
  AuditLog* const audit_;
  Clock* const clock_;
};

// The trace of a call, or null if it has none. While the call lives.
std::shared_ptr<RequestTrace> TraceOf(grpc::ServerContextBase& context);
// Its note for the audit log, or null if there is no such log. The same.
std::shared_ptr<AuditNote> AuditNoteOf(grpc::ServerContextBase& context);
// Tells it what a message is about. The same.
void NoteTarget(grpc::ServerContextBase& context, const google::protobuf::Message& request);

}  // namespace penstock
