#pragma once

// ExportTrace: a trace of a pipeline as a file, in pieces.

#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/job_thread.h"
#include "engine/base/timer_queue.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_export.h"
#include "penstock/v1/insight.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/stream_slots.h"
#include "server/rpc/streams/write_stream.h"

namespace penstock {

// Serves one ExportTrace: a summary, then the file, each piece made when the last has left. All that takes time is
// done on the job thread.
//
// Model:     With `steps`, it says by an empty message that it records, looks at the rings every few milliseconds until
//            so many steps have ended, and takes what has come each time, so that a recording may be longer than the
//            rings. Else it copies the rings at once. Then the other ranks are asked for theirs.
// Owns:      the capture and a slot. A share of the pipeline's metrics while it records, none of the pipeline.
// Threads:   gRPC's callback threads and the timers' hand everything on to the job thread, which has all members to
//            itself but those under mu_.
// Fails:     FIELD_INVALID; STEP_NOT_RETAINED; PIPELINE_NOT_FOUND, also if the pipeline goes while it records;
//            RESOURCE_EXHAUSTED / STREAM_LIMIT, HOST_MEMORY; DEADLINE_EXCEEDED / WORK_DEADLINE where no step ends for so long.
class TraceStream final : public WriteStream {
 public:
  static constexpr absl::Duration kStepPatience = absl::Minutes(10);

  // The job thread runs what it was given before it goes; it outlives the stream's end.
  TraceStream(const MethodGate& gate, const ServiceEnvironment& environment, JobThread* jobs, StreamSlots* slots,
              grpc::CallbackServerContext* context, std::function<void(const std::shared_ptr<TraceStream>&)> forget);

  // Reads the request and goes on by itself. After Start().
  void Begin(const grpc::ByteBuffer& request);

 private:
  // Runs a part on the job thread, unless the stream has ended by then; what it fails with ends the stream. The slot
  // stays taken while the part waits.
  void Post(absl::Status (TraceStream::*part)());
  absl::Status Accept(const grpc::ByteBuffer& request);
  absl::Status Record() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeKept();
  void AskRanks(TraceCapture own) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeWhole() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status SendNext();
  void StartFile(TraceCapture capture);
  void OnSent() override;
  void OnEnded() override ABSL_LOCKS_EXCLUDED(mu_);

  const MethodGate& gate_;
  const ServiceEnvironment environment_;
  JobThread* const jobs_;
  StreamSlots* const slots_;
  const std::function<void(const std::shared_ptr<TraceStream>&)> forget_;
  Identity identity_;
  v1::ExportTraceRequest request_;
  std::weak_ptr<void> slot_;  // free when the caller hears of the end, unless a part waits
  std::shared_ptr<const PipelineMetrics> metrics_;
  MemoryReservation held_;      // of records that were copied
  int64_t written_before_ = 0;  // records, when a recording began
  std::optional<TraceExport> file_;
  int64_t sending_bytes_ = 0;   // of the piece that is on its way
  int64_t steps_ended_ = 0;     // of a recording
  int64_t step_end_nanos_ = 0;  // when the last one did

  absl::Mutex mu_;
  std::unique_ptr<TraceRecorder> recorder_ ABSL_GUARDED_BY(mu_);  // while it records
  TraceCapture whole_ ABSL_GUARDED_BY(mu_);                       // of all ranks, on its way to the job thread
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
};

// What the first message says of a capture.
v1::TraceSummary DescribeCapture(const TraceCapture& capture);

}  // namespace penstock
