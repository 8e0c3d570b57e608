#pragma once

// Counts every call of every method in one interceptor, instead of in each method.

#include <string>
#include <string_view>

#include "engine/observe/metrics.h"
#include "grpcpp/support/server_interceptor.h"

namespace penstock {

// Makes the interceptor that counts one call.
//
// Model:     started, handled by code, denied by reason, time from start to end, messages in and out. A call that ends
//            without a status of ours counts as cancelled.
// Owns:      nothing; ServerMetrics and Clock outlive the server.
class CallMetricsFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallMetricsFactory(ServerMetrics* metrics, Clock* clock) : metrics_(metrics), clock_(clock) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  ServerMetrics* const metrics_;
  Clock* const clock_;
};

// Counts a call that was not let in, by the reason of its error; other reasons count nothing.
void CountDenial(std::string_view reason, ServerMetrics* metrics);

// Registers every method of a service (by its full name) at 0.
void AddServiceMetrics(const std::string& service, ServerMetrics* metrics);

}  // namespace penstock
