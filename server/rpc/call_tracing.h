#pragma once

// Traces every call of every method in one interceptor, as part of the caller's trace.

#include <memory>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"
#include "server/tracing/tracer.h"

namespace penstock {

// Makes the interceptor that traces one call.
//
// Model:     reads traceparent and tracestate; ends the call's span with its status; names trace_id and
//            span_id in the ErrorInfo of an error that does not name those of an earlier call. Probes and reflection
//            (grpc.*) are not traced.
// Owns:      nothing; the tracer outlives the server.
class CallTracingFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallTracingFactory(const Tracer* tracer) : tracer_(tracer) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  const Tracer* const tracer_;
};

// The trace of a call, or null if it has none. While the call lives.
std::shared_ptr<RequestTrace> TraceOf(grpc::ServerContextBase& context);

}  // namespace penstock
