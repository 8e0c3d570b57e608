#pragma once

// `penstock bench` by the Open Inference Protocol, of any server that speaks it.

#include <string>
#include <vector>

#include "client/cli/bench_target.h"
#include "client/lib/pipeline_client.h"
#include "inference/grpc_service.pb.h"

namespace penstock {

// A model of a server.
//
// Figures:   rows in one run of the model, which is more than one where the server batches; mean time of a request in
//            the server, and of this in its queue. Of all callers of the model.
// Threads:   as BenchTarget says.
class ModelTarget final : public BenchTarget {
 public:
  ModelTarget(PipelineClient* client, inference::ModelInferRequest request)
      : client_(client), request_(std::move(request)) {}

  absl::Status Begin() override;
  absl::StatusOr<std::string> Call() override;
  void After(const std::string&) override {}
  void Interrupted() override {}
  absl::StatusOr<std::vector<ServerFigure>> End() override;

 private:
  PipelineClient* const client_;
  const inference::ModelInferRequest request_;
  inference::ModelStatistics before_;
};

}  // namespace penstock
