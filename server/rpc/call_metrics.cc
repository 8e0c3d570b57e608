#include "server/rpc/call_metrics.h"

#include "absl/strings/ascii.h"
#include "engine/base/check.h"
#include "google/protobuf/descriptor.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {
namespace {

using grpc::experimental::InterceptionHookPoints;

class CallMetrics final : public grpc::experimental::Interceptor {
 public:
  CallMetrics(MethodMetrics* metrics, ServerMetrics* server, Clock* clock)
      : metrics_(metrics), server_(server), clock_(clock), start_nanos_(clock->NowNanos()) {
    metrics_->started.Add(1);
  }

  ~CallMetrics() override {
    if (!handled_) Handled(static_cast<int>(grpc::StatusCode::CANCELLED));
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) &&
        methods->GetRecvMessage() != nullptr) {
      metrics_->messages_received.Add(1);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      metrics_->messages_sent.Add(1);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS) && !handled_) {
      const grpc::Status status = methods->GetSendStatus();
      Handled(static_cast<int>(status.error_code()));
      if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
          status.error_code() == grpc::StatusCode::PERMISSION_DENIED) {
        CountDenial(ReasonIn(status), server_);
      }
    }
    methods->Proceed();
  }

 private:
  void Handled(int code) {
    handled_ = true;
    metrics_->Handled(code, clock_->NowNanos() - start_nanos_);
  }

  MethodMetrics* const metrics_;
  ServerMetrics* const server_;
  Clock* const clock_;
  const int64_t start_nanos_;
  bool handled_ = false;
};

}  // namespace

grpc::experimental::Interceptor* CallMetricsFactory::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  return new CallMetrics(&metrics_->MethodOf(info->method()), metrics_, clock_);
}

void CountDenial(std::string_view reason, ServerMetrics* metrics) {
  const std::string name = absl::AsciiStrToLower(absl::string_view(reason.data(), reason.size()));
  for (size_t i = 0; i < kDenialNames.size(); ++i) {
    if (kDenialNames[i] == name) metrics->calls_denied[static_cast<Denial>(i)].Add(1);
  }
}

void AddServiceMetrics(const std::string& service, ServerMetrics* metrics) {
  const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
  PENSTOCK_CHECK(descriptor != nullptr);
  for (int i = 0; i < descriptor->method_count(); ++i) {
    const auto* method = descriptor->method(i);
    const char* type = method->client_streaming()   ? method->server_streaming() ? "bidi_stream" : "client_stream"
                       : method->server_streaming() ? "server_stream"
                                                    : "unary";
    metrics->AddMethod(type, service, method->name());
  }
}

}  // namespace penstock
