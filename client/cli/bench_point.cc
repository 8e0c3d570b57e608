#include "client/cli/bench_point.h"

#include <utility>
#include <vector>

#include "client/cli/lane_bars.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr size_t kHandlesPerRelease = 32;
constexpr int kOpenLoopCallers = 64;

}  // namespace

// Gives results back, many at a time, from any thread.
class HandleReleases {
 public:
  explicit HandleReleases(PipelineClient* client) : client_(client) {}

  void Add(const std::string& handle) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<std::string> full;
    {
      absl::MutexLock lock(&mu_);
      names_.push_back(handle);
      if (names_.size() >= kHandlesPerRelease) full.swap(names_);
    }
    if (!full.empty()) client_->ReleaseHandles(full).status().IgnoreError();
  }

  // What is left; `client` is one that still works.
  void Flush(PipelineClient* client) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!names_.empty()) client->ReleaseHandles(names_).status().IgnoreError();
    names_.clear();
  }

 private:
  PipelineClient* const client_;
  absl::Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::string> BenchCalls::Call(PipelineClient* client, HandleReleases* releases) {
  v1::Handle handle;
  if (train_.has_value()) {
    PENSTOCK_ASSIGN_OR_RETURN(const v1::TrainStepResponse response, client->TrainStep(*train_));
    handle = response.outcome().handle();
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(const v1::InferResponse response, client->Infer(*infer_));
    handle = response.outputs().handle();
  }
  if (handle.state() != v1::HANDLE_STATE_READY) {
    absl::StatusOr<v1::Handle> ready = client->AwaitHandle(handle.name(), absl::Minutes(10));
    if (!ready.ok()) {
      releases->Add(handle.name());
      return ready.status();
    }
    handle = *std::move(ready);
  }
  absl::MutexLock lock(&mu_);
  compute_seconds_ += handle.outcome().seconds();
  ++computed_;
  return handle.name();
}

double BenchCalls::TakeMeanCompute() {
  absl::MutexLock lock(&mu_);
  const double mean = computed_ > 0 ? compute_seconds_ / static_cast<double>(computed_) : 0;
  compute_seconds_ = 0;
  computed_ = 0;
  return mean;
}

absl::StatusOr<BenchPoint> RunBenchPoint(double level, const BenchOptions& options, BenchCalls& calls,
                                         PipelineClient* client, Session& session) {
  LoadOptions load = options.load;
  load.stability = options.stability_percentage / 100;
  if (options.rate.empty()) {
    load.callers = static_cast<int>(level);
  } else {
    load.callers = kOpenLoopCallers;
    load.rate = level;
  }
  HandleReleases releases(client);
  const LoadWork work = {[&] { return calls.Call(client, &releases); },
                         [&](const std::string& handle) { releases.Add(handle); }};
  PENSTOCK_ASSIGN_OR_RETURN(const v1::PipelineStatistics before, client->Statistics(calls.pipeline()));
  BenchPoint point;
  point.level = level;
  point.result = RunLoad(load, work, session.clock(), [&session] { return session.cancelled(); });
  if (session.cancelled()) {
    if (const auto last = session.LastClient(); last.ok()) releases.Flush(last->get());
    return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "interrupted");
  }
  releases.Flush(client);
  if (point.result.measured.latencies.empty() && !point.result.first_failure.ok()) return point.result.first_failure;
  PENSTOCK_ASSIGN_OR_RETURN(const v1::PipelineStatistics after, client->Statistics(calls.pipeline()));
  const std::vector<LaneShares> lanes = SharesBetween(before, after);
  for (const LaneShares& lane : lanes) point.busy += lane.busy() / static_cast<double>(lanes.size());
  point.queue_depth = options.train ? after.train_queue_depth() : after.infer_queue_depth();
  point.compute = calls.TakeMeanCompute();
  return point;
}

}  // namespace penstock
