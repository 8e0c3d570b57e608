#pragma once

// ExportTrace: a trace of a pipeline as a file, in pieces.

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_export.h"
#include "engine/store/timer_queue.h"
#include "penstock/v1/insight.pb.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/stall_guard.h"
#include "server/rpc/write_stream.h"

namespace penstock {

// Answers one ExportTrace: a summary, then the file, each piece made when the last has left.
//
// Model:     With `steps`, it says by an empty message that it records, looks at the rings every few milliseconds until so many steps have ended, and takes what has
//            come each time, so that a recording may be longer than the rings. Else it copies the rings at once.
// Owns:      the capture. A share of the pipeline's metrics while it records, none of the pipeline.
// Threads:   gRPC's callback threads and the timers'.
// Fails:     FIELD_INVALID; STEP_NOT_RETAINED; PIPELINE_NOT_FOUND, also if the pipeline goes while it records.
class TraceStream final : public WriteStream<grpc::ByteBuffer> {
 public:
  TraceStream(const ServiceEnvironment& environment, grpc::CallbackServerContext* context,
              std::function<void(const std::shared_ptr<TraceStream>&)> forget);

  // Reads the request and goes on by itself. After Start().
  void Begin(const grpc::ByteBuffer& request);

 private:
  absl::Status Accept(const grpc::ByteBuffer& request);
  void Record() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeRecorded() ABSL_LOCKS_EXCLUDED(mu_);
  void StartFile(TraceCapture capture);
  void OnSent() override;
  void OnEnded() override ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceEnvironment environment_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StallGuard> guard_;
  const std::function<void(const std::shared_ptr<TraceStream>&)> forget_;
  v1::ExportTraceRequest request_;
  std::optional<TraceExport> file_;

  absl::Mutex mu_;
  std::unique_ptr<TraceRecorder> recorder_ ABSL_GUARDED_BY(mu_);  // while it records
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
};

// What the first message says of a capture.
v1::TraceSummary DescribeCapture(const TraceCapture& capture);

}  // namespace penstock
