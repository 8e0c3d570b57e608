#pragma once

// InsightService: live statistics of a pipeline.

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "penstock/v1/insight_service.grpc.pb.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/unary_call.h"

namespace penstock {

class StatisticsStream;

// Streams what a pipeline's lanes, queues and handles do.
//
// Threads:   gRPC's callback threads and the timers'; no method blocks.
// Lifecycle: Shutdown() ends every stream, so that the server can close.
class InsightCallService final
    : public v1::InsightService::WithRawCallbackMethod_WatchStatistics<v1::InsightService::Service> {
 public:
  explicit InsightCallService(const ServiceEnvironment& environment) : environment_(environment) {}

  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchStatistics(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request) override;

 private:
  friend class StatisticsStream;
  void Forget(const std::shared_ptr<StatisticsStream>& stream) ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceEnvironment environment_;

  absl::Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<StatisticsStream>> streams_ ABSL_GUARDED_BY(mu_);  // until they are done
};

// What a pipeline does, at one instant.
v1::PipelineStatistics DescribeStatistics(const HostedPipeline& pipeline, const ServiceEnvironment& environment);

}  // namespace penstock
