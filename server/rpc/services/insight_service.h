#pragma once

// InsightService: live statistics of a pipeline, its schedules, and traces.

#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/job_thread.h"
#include "penstock/v1/insight_service.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/stream_slots.h"
#include "server/rpc/streams/write_stream.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Tells what a pipeline's lanes, queues and handles do, and did.
//
// Threads:   gRPC's callback threads, the timers' and the job thread; no method blocks.
// Fails:     RESOURCE_EXHAUSTED / STREAM_LIMIT for more streams than that; a watcher that takes no message for
//            StallGuard::kPatience is given up.
// Lifecycle: Shutdown() ends every stream, so that the server can close.
class InsightServiceImpl final
    : public v1::InsightService::WithRawCallbackMethod_WatchStatistics<
          v1::InsightService::WithRawCallbackMethod_GetSchedule<
              v1::InsightService::WithRawCallbackMethod_ExportTrace<v1::InsightService::Service>>> {
 public:
  static constexpr int kMaxTraceExports = 2;
  static constexpr int kMaxWatches = 256;

  // Traces are made on the job thread; it is closed after the server and before what the environment names.
  InsightServiceImpl(const ServiceEnvironment& environment, JobThread* trace_jobs)
      : environment_(environment), trace_jobs_(trace_jobs) {}

  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);
  // How many streams are open.
  int streams() const ABSL_LOCKS_EXCLUDED(mu_);

  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchStatistics(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* GetSchedule(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportTrace(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request) override;

 private:
  friend class StatisticsStream;
  // Whether the stream may begin: not once the service is shut down, which ends it.
  bool Remember(const std::shared_ptr<WriteStream>& stream) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const std::shared_ptr<WriteStream>& stream) ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, v1::InsightService::service_full_name()};
  JobThread* const trace_jobs_;
  StreamSlots watch_slots_{"statistics_watches", kMaxWatches};
  StreamSlots trace_slots_{"trace_exports", kMaxTraceExports};

  mutable absl::Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<WriteStream>> streams_ ABSL_GUARDED_BY(mu_);  // until they are done
};

// What a pipeline does, at one instant.
v1::PipelineStatistics DescribeStatistics(const ServedPipeline& pipeline, const ServiceEnvironment& environment);

}  // namespace penstock
