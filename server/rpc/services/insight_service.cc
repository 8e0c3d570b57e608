#include "server/rpc/services/insight_service.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_store.h"
#include "engine/observe/bubble.h"
#include "engine/observe/metrics_registry.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/services/schedule_reply.h"
#include "server/rpc/streams/trace_stream.h"

namespace penstock {
namespace {

constexpr absl::Duration kMinInterval = absl::Milliseconds(100);
constexpr int64_t kSameInstantNanos = 20'000;

// `now` is one instant for all lanes.
void AddLanes(const PipelineMetrics& metrics, const Plan& plan, int64_t now, v1::PipelineStatistics* statistics) {
  ClassTimes times;
  for (int lane = 0; lane < metrics.lane_count(); ++lane) {
    const StateTimes snapshot = metrics.lane(lane).state.Snapshot(now);
    times += TimesSinceStart(snapshot);
    v1::LaneStatistics* entry = statistics->add_lanes();
    entry->set_lane(lane);
    entry->set_device(metrics.lane(lane).description.device);
    entry->set_state(std::string(NameOf(snapshot.state)));
    for (const StageStateInfo& info : StageStates()) {
      (*entry->mutable_state_seconds())[std::string(info.name)] = static_cast<double>(snapshot[info.state]) * 1e-9;
    }
    int64_t peak = 0;
    for (const StagePlan& chunk : plan.stages) {
      if (chunk.lane != lane) continue;
      for (const std::string& layer : chunk.layers) entry->add_layers(layer);
      peak += chunk.peak_activation_bytes;
    }
    entry->set_peak_activation_bytes(peak);
  }
  statistics->set_measured_bubble(times.MeasuredBubble());
}

}  // namespace

v1::PipelineStatistics DescribeStatistics(const ServedPipeline& pipeline, const ServiceEnvironment& environment) {
  v1::PipelineStatistics statistics;
  // Both clocks at one instant, as far as nobody took the core in between.
  absl::Time time;
  int64_t now;
  int tries = 0;
  do {
    now = environment.clock->NowNanos();
    time = environment.clock->WallNow();
  } while (environment.clock->NowNanos() - now > kSameInstantNanos && ++tries < 10);
  *statistics.mutable_time() = ToTimestamp(time);
  const Plan& plan = pipeline.pipeline().plan();
  if (const auto metrics = pipeline.metrics(); metrics != nullptr && metrics->lane_count() > 0) {
    AddLanes(*metrics, plan, now, &statistics);
  }
  const ServedPipeline::Statistics served = pipeline.statistics();
  statistics.set_step(served.step);
  if (served.last_loss.has_value()) statistics.set_loss(*served.last_loss);
  statistics.set_predicted_bubble(plan.predicted_bubble);
  statistics.set_ideal_bubble(plan.ideal_bubble);
  statistics.set_samples(served.samples_trained);
  statistics.set_train_queue_depth(served.train_queue_calls);
  statistics.set_infer_queue_depth(served.infer_queue_calls);
  const HandleStore::Counts handles = environment.handles->CountsOf(pipeline.name());
  statistics.set_handles(handles.live());
  statistics.set_handle_bytes(handles.bytes);
  statistics.set_handles_created(handles.created);
  return statistics;
}

// One WatchStatistics: an update at once, then one per interval. Those that fall due while one is on
// its way become one.
class StatisticsStream final : public WriteStream {
 public:
  StatisticsStream(InsightServiceImpl* service, grpc::CallbackServerContext* context)
      : WriteStream(context, service->environment_.timers, service->environment_.clock),
        service_(service),
        environment_(service->environment_) {}

  void Begin(const grpc::ByteBuffer& request) {
    Run([&] {
      PENSTOCK_RETURN_IF_ERROR(Accept(request));
      Tick();
      return absl::OkStatus();
    });
  }

 private:
  absl::Status Accept(const grpc::ByteBuffer& bytes) {
    v1::WatchStatisticsRequest request;
    PENSTOCK_ASSIGN_OR_RETURN(identity_, service_->gate_.Of("WatchStatistics").Enter(*context()));
    PENSTOCK_RETURN_IF_ERROR(ParseMessage(bytes, kControlMessageBytes, &request));
    NoteTarget(*context(), request);
    PENSTOCK_ASSIGN_OR_RETURN(interval_, CheckedDuration(request.interval(), absl::Hours(24), "interval"));
    if (interval_ < kMinInterval) {
      return InvalidField("interval", "must be at least 100 ms", absl::FormatDuration(interval_));
    }
    if (request.max_updates() < 0) {
      return InvalidField("max_updates", "must be at least 0", std::to_string(request.max_updates()));
    }
    max_updates_ = request.max_updates();
    name_ = request.pipeline();
    PENSTOCK_RETURN_IF_ERROR(FindPipeline(environment_, identity_, name_, "pipeline").status());
    PENSTOCK_ASSIGN_OR_RETURN(StreamSlots::Slot slot, service_->watch_slots_.Take(identity_.name));
    Keep(std::move(slot));
    guard().SetBusy(true);
    guard().Watch(context());
    return absl::OkStatus();
  }

  // An update is due; comes again after the interval.
  void Tick() {
    {
      absl::MutexLock lock(&mu_);
      if (ended_) return;
      timer_ = environment_.timers->Add(environment_.clock->NowNanos() + absl::ToInt64Nanoseconds(interval_),
                                        [stream = std::static_pointer_cast<StatisticsStream>(shared_from_this())] {
                                          stream->Run([&] {
                                            stream->Tick();
                                            return absl::OkStatus();
                                          });
                                        });
      due_ = true;
    }
    SendIfDue();
  }

  void SendIfDue() {
    {
      absl::MutexLock lock(&mu_);
      if (busy_ || !due_) return;
      busy_ = true;
      due_ = false;
    }
    // Looked up each time: a stream must not keep a deleted pipeline alive.
    const auto pipeline = FindPipeline(environment_, identity_, name_, "pipeline");
    if (!pipeline.ok()) return Close(pipeline.status());
    grpc::ByteBuffer message = SerializeMessage(DescribeStatistics(**pipeline, environment_));
    guard().SetBusy(false);  // the peer must take it
    Send(std::move(message));
  }

  void OnSent() override {
    guard().Progress();
    guard().SetBusy(true);
    bool last;
    {
      absl::MutexLock lock(&mu_);
      busy_ = false;
      last = max_updates_ != 0 && ++updates_ >= max_updates_;
    }
    if (last) return Close(absl::OkStatus());
    SendIfDue();
  }

  void OnEnded() override {
    {
      absl::MutexLock lock(&mu_);
      ended_ = true;
      environment_.timers->Remove(timer_);
    }
    service_->Forget(std::static_pointer_cast<StatisticsStream>(shared_from_this()));
  }

  InsightServiceImpl* const service_;
  const ServiceEnvironment environment_;
  Identity identity_;
  std::string name_;
  absl::Duration interval_;
  int max_updates_ = 0;  // 0: until the caller leaves

  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // an update is on its way
  bool due_ ABSL_GUARDED_BY(mu_) = false;   // another one is wanted
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  int updates_ ABSL_GUARDED_BY(mu_) = 0;
  TimerQueue::TimerId timer_ ABSL_GUARDED_BY(mu_) = TimerQueue::kNoTimer;
};

bool InsightServiceImpl::Remember(const std::shared_ptr<WriteStream>& stream) {
  {
    absl::MutexLock lock(&mu_);
    streams_.insert(stream);
    if (!shut_down_) return true;
  }
  stream->Close(Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing"));
  return false;
}

void InsightServiceImpl::Forget(const std::shared_ptr<WriteStream>& stream) {
  absl::MutexLock lock(&mu_);
  streams_.erase(stream);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InsightServiceImpl::WatchStatistics(grpc::CallbackServerContext* context,
                                                                                const grpc::ByteBuffer* request) {
  auto stream = std::make_shared<StatisticsStream>(this, context);
  stream->Start();
  if (Remember(stream)) stream->Begin(*request);
  return stream.get();
}

grpc::ServerUnaryReactor* InsightServiceImpl::GetSchedule(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return ServeUnary<v1::GetScheduleRequest, v1::GetScheduleResponse>(
      gate_.Of("GetSchedule"), context, request, response, kControlMessageBytes, [this](const auto& call) {
        DescribeSchedule(environment_, trace_jobs_, call->identity(), call->request(),
                         [call](const absl::StatusOr<v1::GetScheduleResponse>& response) { call->Answer(response); });
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InsightServiceImpl::ExportTrace(grpc::CallbackServerContext* context,
                                                                            const grpc::ByteBuffer* request) {
  auto stream =
      std::make_shared<TraceStream>(gate_.Of("ExportTrace"), environment_, trace_jobs_, &trace_slots_, context,
                                    [this](const std::shared_ptr<TraceStream>& ended) { Forget(ended); });
  stream->Start();
  if (Remember(stream)) stream->Begin(*request);
  return stream.get();
}

int InsightServiceImpl::streams() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(streams_.size());
}

void InsightServiceImpl::Shutdown() {
  std::set<std::shared_ptr<WriteStream>> open;
  {
    absl::MutexLock lock(&mu_);
    shut_down_ = true;
    open = streams_;
  }
  for (const auto& stream : open) {
    stream->Close(Error(absl::StatusCode::kUnavailable, "DRAINING", "the server is closing"));
  }
}

}  // namespace penstock
