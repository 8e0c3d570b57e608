#pragma once

// What `penstock bench` sends: requests that are made up from a pipeline's or a model's signature, or read from a file.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cli/session.h"
#include "inference/grpc_service.pb.h"
#include "penstock/v1/pipeline.pb.h"
#include "penstock/v1/work.pb.h"

namespace penstock {

// What a request is made of.
struct BenchInput {
  std::string file;      // safetensors; empty: made up
  int64_t rows = 1;      // of a made-up input
  int64_t sequence = 0;  // length of its rows, where the signature leaves it open; 0: the model's own
};

// How long a call may take: --timeout.
absl::Duration PatienceOf(const Session& session);

// Made-up numbers are drawn from a fixed seed; whole numbers are 0, which every vocabulary and every set of classes
// has.
//
// Fails: a usage error for a size that neither the signature nor an option gives, and for a file without the target.
absl::StatusOr<v1::InferRequest> MakeInferRequest(const v1::Pipeline& pipeline, const BenchInput& input,
                                                  Session& session);

// The same for a model of the Open Inference Protocol. Fails: a usage error for a type that Penstock has not, too.
absl::StatusOr<inference::ModelInferRequest> MakeModelRequest(const inference::ModelMetadataResponse& model,
                                                              const BenchInput& input, Session& session);

// A step with a learning rate of 0: all the work of a step, and the weights stay. The step number rises, running
// statistics and the optimizer's moments change.
absl::StatusOr<v1::TrainStepRequest> MakeTrainRequest(const v1::Pipeline& pipeline, const BenchInput& input,
                                                      Session& session);

}  // namespace penstock
