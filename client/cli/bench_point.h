#pragma once

// One load of `penstock bench`: its options, its calls and its result.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/bench_calls.h"
#include "client/cli/bench_load.h"
#include "client/cli/session.h"
#include "client/lib/pipeline_client.h"

namespace penstock {

struct BenchOptions {
  std::string pipeline;
  std::string concurrency = "1";
  std::string rate;  // empty: closed loop
  bool train = false;
  BenchInput input;
  double stability_percentage = 10;
  double threshold_ms = 0;  // 0: none
  bool csv = false;
  LoadOptions load;
};

// One load and its result.
struct BenchPoint {
  double level = 0;
  LoadResult result;
  double busy = 0;          // share of the lanes' time with work, inference included, in the daemon's own counters
  int64_t queue_depth = 0;  // calls of the kind that waited, at the end
  double compute = 0;  // of a step, from its start to its end in the daemon, on average; the rest is queue and network
};

class HandleReleases;

// The calls that are measured: one request, sent again and again.
//
// Threads:   any method from any thread.
class BenchCalls {
 public:
  explicit BenchCalls(v1::InferRequest request) : infer_(std::move(request)) {}
  explicit BenchCalls(v1::TrainStepRequest request) : train_(std::move(request)) {}

  const std::string& pipeline() const { return train_.has_value() ? train_->pipeline() : infer_->pipeline(); }

  // The handle to give back. One that does not come to be ready goes to `releases`.
  absl::StatusOr<std::string> Call(PipelineClient* client, HandleReleases* releases) ABSL_LOCKS_EXCLUDED(mu_);

  // Of the computations since the last time that it was asked: seconds.
  double TakeMeanCompute() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::optional<v1::InferRequest> infer_;
  const std::optional<v1::TrainStepRequest> train_;
  absl::Mutex mu_;
  double compute_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t computed_ ABSL_GUARDED_BY(mu_) = 0;
};

// Runs one load until it is stable.
//
// Fails:     WORK_CANCELLED once the session was interrupted; the first failure where no call succeeded; as Statistics.
absl::StatusOr<BenchPoint> RunBenchPoint(double level, const BenchOptions& options, BenchCalls& calls,
                                         PipelineClient* client, Session& session);

}  // namespace penstock
