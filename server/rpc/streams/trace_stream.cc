#include "server/rpc/streams/trace_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/observe/trace_memory.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/joint_trace.h"
#include "server/rpc/unary_call.h"

namespace penstock {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(10);
constexpr int kMaxSteps = 10'000;
constexpr int64_t kMaxRecordsOfAll = 1 << 22;  // 256 MiB; a longer recording keeps its end

absl::Status CheckRequest(const v1::ExportTraceRequest& request) {
  if (!v1::ExportTraceRequest::Format_IsValid(request.format())) {
    return InvalidField("format", "must be FORMAT_CHROME or FORMAT_PERFETTO", absl::StrCat(request.format()));
  }
  if (request.steps() < 0 || request.steps() > kMaxSteps) {
    return InvalidField("steps", absl::StrCat("must lie in [0, ", kMaxSteps, "]"), absl::StrCat(request.steps()));
  }
  if (request.first_step() < 0) {
    return InvalidField("first_step", "must be at least 0", absl::StrCat(request.first_step()));
  }
  if (request.last_step() != 0 && (request.first_step() == 0 || request.last_step() < request.first_step())) {
    return InvalidField("last_step", "must not be below first_step, which is needed with it",
                        absl::StrCat(request.last_step()));
  }
  if (request.steps() > 0 && request.first_step() > 0) {
    return InvalidField("first_step", "can't be given with steps: those are the next ones",
                        absl::StrCat(request.first_step()));
  }
  return absl::OkStatus();
}

// The end of the step number `steps` that began in the capture.
int64_t EndOfSteps(const TraceCapture& capture, int steps) {
  int64_t end = capture.begin_nanos;
  for (const RunSpan& run : RunsOf(capture)) {
    if (!EndsStep(run.purpose) || run.failed || run.lanes < LanesThere(capture)) continue;
    end = run.end_nanos;
    if (--steps == 0) return end;
  }
  return capture.end_nanos;
}

}  // namespace

v1::TraceSummary DescribeCapture(const TraceCapture& capture) {
  v1::TraceSummary summary;
  summary.set_lanes(static_cast<int32_t>(capture.lanes.size()));
  int64_t records = 0;
  for (const LaneCapture& lane : capture.lanes) {
    records += static_cast<int64_t>(lane.actions.size() + lane.states.size());
  }
  summary.set_records(records);
  int steps = 0;
  for (const RunSpan& run : RunsOf(capture)) {
    const bool whole = run.lanes == LanesThere(capture);
    if (EndsStep(run.purpose) && !run.failed && whole) ++steps;
  }
  summary.set_steps(steps);
  summary.set_seconds(static_cast<double>(capture.end_nanos - capture.begin_nanos) * 1e-9);
  summary.set_incomplete(capture.incomplete);
  summary.set_lost_records(static_cast<int64_t>(capture.lost));
  return summary;
}

TraceStream::TraceStream(const MethodGate& gate, const ServiceEnvironment& environment, JobThread* jobs,
                         StreamSlots* slots, grpc::CallbackServerContext* context,
                         std::function<void(const std::shared_ptr<TraceStream>&)> forget)
    : WriteStream(context, environment.timers, environment.clock),
      gate_(gate),
      environment_(environment),
      jobs_(jobs),
      slots_(slots),
      forget_(std::move(forget)) {}

void TraceStream::Post(absl::Status (TraceStream::*part)()) {
  StreamSlots::Slot slot = slot_.lock();
  if (slot == nullptr) return;  // the stream has ended
  jobs_->Post(
      [stream = std::static_pointer_cast<TraceStream>(shared_from_this()), slot = std::move(slot), part]() mutable {
        slot.reset();
        if (!stream->ended()) stream->Run([&] { return (stream.get()->*part)(); });
      });
}

void TraceStream::Begin(const grpc::ByteBuffer& request) {
  Run([&] { return Accept(request); });
}

absl::Status TraceStream::Accept(const grpc::ByteBuffer& bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(identity_, gate_.Enter(*context()));
  PENSTOCK_RETURN_IF_ERROR(ParseMessage(bytes, kControlMessageBytes, &request_));
  NoteTarget(*context(), request_);
  PENSTOCK_RETURN_IF_ERROR(CheckRequest(request_));
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline,
                            FindPipeline(environment_, identity_, request_.pipeline(), "pipeline"));
  metrics_ = pipeline->metrics();
  if (metrics_ == nullptr || !metrics_->KeepsTraces()) {
    return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
                 "this pipeline keeps no traces (--trace-ring-events)");
  }
  PENSTOCK_ASSIGN_OR_RETURN(StreamSlots::Slot slot, slots_->Take(identity_.name));
  PENSTOCK_ASSIGN_OR_RETURN(
      held_, TakeMemory(environment_.memory, {MemoryClass::kTraces, identity_.name, pipeline->name()}, 0));
  slot_ = slot;
  Keep(slot);
  guard().SetBusy(true);
  guard().Watch(context());
  if (request_.steps() == 0) {
    Post(&TraceStream::TakeKept);
    return absl::OkStatus();
  }
  step_end_nanos_ = environment_.clock->NowNanos();
  written_before_ = TraceRecordsWritten(*metrics_);
  {
    absl::MutexLock lock(&mu_);
    recorder_ = std::make_unique<TraceRecorder>(metrics_, TraceRecorder::From::kNow, Rank(0),
                                                kMaxRecordsOfAll / (2 * metrics_->lane_count()));
  }
  guard().SetBusy(false);
  Send(SerializeMessage(v1::ExportTraceResponse()));  // the caller knows that it has begun; then OnSent() goes on
  return absl::OkStatus();
}

// The steps that the rings still have.
absl::Status TraceStream::TakeKept() {
  PENSTOCK_RETURN_IF_ERROR(held_.Resize(kCopiesOfRecords * TraceRingBytes(*metrics_)));
  AskRanks(TraceRecorder(metrics_, TraceRecorder::From::kOldest).Finish());
  return absl::OkStatus();
}

// The capture has only the lanes of this process.
void TraceStream::AskRanks(TraceCapture own) {
  JoinLanes(environment_, *metrics_, std::move(own),
            [stream = std::static_pointer_cast<TraceStream>(shared_from_this())](TraceCapture whole) {
              {
                absl::MutexLock lock(&stream->mu_);
                stream->whole_ = std::move(whole);
              }
              stream->Post(&TraceStream::TakeWhole);
            });
}

absl::Status TraceStream::TakeWhole() {
  TraceCapture capture;
  {
    absl::MutexLock lock(&mu_);
    capture = std::move(whole_);
  }
  if (request_.steps() > 0) {
    capture = CutTrace(capture, capture.begin_nanos, EndOfSteps(capture, request_.steps()));
  } else if (request_.first_step() > 0) {
    const int64_t last = std::max(request_.first_step(), request_.last_step());
    PENSTOCK_ASSIGN_OR_RETURN(capture, CutTraceToSteps(capture, request_.first_step(), last));
  }
  StartFile(std::move(capture));
  return absl::OkStatus();
}

// Takes what has come, and looks again later or ends the recording.
absl::Status TraceStream::Record() {
  // Looked up each time: a stream must not outlive a deleted pipeline, nor wait for lanes that an update has taken away.
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline,
                            FindPipeline(environment_, identity_, request_.pipeline(), "pipeline"));
  if (pipeline->metrics() != metrics_) {
    return Error(absl::StatusCode::kFailedPrecondition, "PIPELINE_NOT_READY",
                 "the pipeline was updated while its steps were recorded: record them again")
        .With("pipeline", pipeline->name());
  }
  TraceCapture capture;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return absl::OkStatus();
    const int64_t records = std::min(TraceRecordsWritten(*metrics_) - written_before_, kMaxRecordsOfAll);
    PENSTOCK_RETURN_IF_ERROR(held_.Resize(kCopiesOfRecords * records * static_cast<int64_t>(sizeof(TraceRecord))));
    recorder_->Collect();
    const int64_t now = environment_.clock->NowNanos();
    if (recorder_->steps_ended() > steps_ended_) step_end_nanos_ = now;
    steps_ended_ = recorder_->steps_ended();
    if (steps_ended_ < request_.steps()) {
      if (now - step_end_nanos_ >= absl::ToInt64Nanoseconds(kStepPatience)) {
        return Error(absl::StatusCode::kDeadlineExceeded, "WORK_DEADLINE",
                     absl::StrCat("no step has ended for ", absl::FormatDuration(kStepPatience)));
      }
      timer_ = environment_.timers->Add(
          now + absl::ToInt64Nanoseconds(kLookInterval),
          [stream = std::static_pointer_cast<TraceStream>(shared_from_this())] { stream->Post(&TraceStream::Record); });
      return absl::OkStatus();
    }
    capture = recorder_->Finish();
    recorder_.reset();
  }
  AskRanks(std::move(capture));
  return absl::OkStatus();
}

void TraceStream::StartFile(TraceCapture capture) {
  if (const auto pipeline = FindPipeline(environment_, identity_, request_.pipeline(), "pipeline"); pipeline.ok()) {
    AddCalls((*pipeline)->EndedCalls(), &capture);
  }
  v1::ExportTraceResponse first;
  *first.mutable_summary() = DescribeCapture(capture);
  const bool perfetto = request_.format() == v1::ExportTraceRequest::FORMAT_PERFETTO;
  file_.emplace(std::make_shared<const TraceCapture>(std::move(capture)),
                perfetto ? TraceFormat::kPerfetto : TraceFormat::kChrome);
  guard().SetBusy(false);
  Send(SerializeMessage(first));
}

absl::Status TraceStream::SendNext() {
  std::optional<std::string> piece = file_->Next();
  guard().SetBusy(false);
  if (!piece.has_value()) {
    Close(absl::OkStatus());
    return absl::OkStatus();
  }
  sending_bytes_ = static_cast<int64_t>(piece->size());
  v1::ExportTraceResponse response;
  response.set_data(*std::move(piece));
  Send(SerializeMessage(response));
  return absl::OkStatus();
}

void TraceStream::OnSent() {
  guard().Moved(sending_bytes_);
  guard().SetBusy(true);
  Post(file_.has_value() ? &TraceStream::SendNext : &TraceStream::Record);
}

void TraceStream::OnEnded() {
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
    recorder_.reset();
    environment_.timers->Remove(timer_);
  }
  forget_(std::static_pointer_cast<TraceStream>(shared_from_this()));
}

}  // namespace penstock
