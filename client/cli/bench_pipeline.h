#pragma once

// `penstock bench` by Penstock's own calls: inference or training steps.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/bench_target.h"
#include "client/cli/session.h"
#include "client/lib/pipeline_client.h"
#include "penstock/v1/insight.pb.h"
#include "penstock/v1/work.pb.h"

namespace penstock {

// A pipeline. Each call leaves a handle, which is given back, many at a time.
//
// Figures:   the share of the lanes' time with work, inference included; how many calls of the kind waited at the end;
//            of steps, the mean time from start to end in the daemon: the rest is queue and network.
// Threads:   as BenchTarget says.
class PipelineTarget final : public BenchTarget {
 public:
  PipelineTarget(PipelineClient* client, Session* session, v1::InferRequest request)
      : client_(client), session_(session), infer_(std::move(request)) {}
  PipelineTarget(PipelineClient* client, Session* session, v1::TrainStepRequest request)
      : client_(client), session_(session), train_(std::move(request)) {}

  absl::Status Begin() override;
  absl::StatusOr<std::string> Call() override ABSL_LOCKS_EXCLUDED(mu_);
  void After(const std::string& result) override ABSL_LOCKS_EXCLUDED(mu_);
  void Interrupted() override;
  absl::StatusOr<std::vector<ServerFigure>> End() override;

 private:
  const std::string& pipeline() const { return train_.has_value() ? train_->pipeline() : infer_->pipeline(); }
  void Release(PipelineClient* client) ABSL_LOCKS_EXCLUDED(mu_);
  // Of the computations since the last time that it was asked: seconds.
  double TakeMeanCompute() ABSL_LOCKS_EXCLUDED(mu_);

  PipelineClient* const client_;
  Session* const session_;
  const std::optional<v1::InferRequest> infer_;
  const std::optional<v1::TrainStepRequest> train_;
  v1::PipelineStatistics before_;

  absl::Mutex mu_;
  std::vector<std::string> handles_ ABSL_GUARDED_BY(mu_);  // to be given back
  double compute_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t computed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace penstock
