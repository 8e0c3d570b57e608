#include "server/rpc/call_tracing.h"

#include <grpc/census.h>
#include <grpc/grpc.h>

#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/guard.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {
namespace {

using grpc::experimental::InterceptionHookPoints;

std::vector<std::string_view> Values(const grpc::ServerContextBase& context, const char* key) {
  std::vector<std::string_view> values;
  const auto [begin, end] = context.client_metadata().equal_range(key);
  for (auto one = begin; one != end; ++one) values.emplace_back(one->second.data(), one->second.size());
  return values;
}

class CallTracing final : public grpc::experimental::Interceptor {
 public:
  CallTracing(std::shared_ptr<RequestTrace> trace, grpc_call* call) : trace_(std::move(trace)) {
    // The library keeps one pointer per call for tracing, and looks at it in a filter that is not linked.
    grpc_census_call_set_context(call, reinterpret_cast<census_context*>(this));
  }

  // A call that ends without a status of ours was cancelled.
  ~CallTracing() override {
    Guarded("a trace", [this] { trace_->Finish(static_cast<int>(grpc::StatusCode::CANCELLED), ""); }).IgnoreError();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      Guarded("a trace",
              [&] {  // without it the call ends as it does
                const grpc::Status status = methods->GetSendStatus();
                if (!status.ok()) methods->ModifySendStatus(WithErrorValues(status, trace_->Ids()));
                trace_->Finish(static_cast<int>(status.error_code()), status.error_message());
              })
          .IgnoreError();
    }
    methods->Proceed();
  }

  const std::shared_ptr<RequestTrace>& trace() const { return trace_; }

 private:
  const std::shared_ptr<RequestTrace> trace_;
};

}  // namespace

grpc::experimental::Interceptor* CallTracingFactory::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  const std::string_view path = info->method();
  grpc::ServerContextBase* context = info->server_context();
  if (path.substr(0, 6) == "/grpc." || context->c_call() == nullptr) return nullptr;
  const std::optional<TraceContext> caller =
      ReadTraceContext(Values(*context, "traceparent"), Values(*context, "tracestate"));
  std::shared_ptr<RequestTrace> trace = tracer_->Begin(path, caller);
  return trace == nullptr ? nullptr : new CallTracing(std::move(trace), context->c_call());
}

std::shared_ptr<RequestTrace> TraceOf(grpc::ServerContextBase& context) {
  if (context.c_call() == nullptr) return nullptr;
  census_context* kept = grpc_census_call_get_context(context.c_call());
  return kept == nullptr ? nullptr : reinterpret_cast<const CallTracing*>(kept)->trace();
}

}  // namespace penstock
