#pragma once

// ReadParameters: the weights or gradients of one step, in chunks.

#include <memory>

#include "engine/base/cancel_token.h"
#include "engine/serve/served_pipeline.h"
#include "penstock/v1/state.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/chunk_stream.h"

namespace penstock {

// Serves one ReadParameters: all headers, then all chunks, of a snapshot taken between two steps or of a checkpoint.
//
// Owns:      a share of the snapshot, and of the caller's place in the admission, which the read holds too while it
//            waits; both go with the stream.
// Fails:     as ServedPipeline::ReadParameters() and CheckpointReader; CALLER_QUOTA.
class ParameterStream final : public ChunkStream {
 public:
  ParameterStream(const MethodGate& gate, const ServiceEnvironment& environment, grpc::CallbackServerContext* context);

  // Reads the request and goes on by itself. After Start().
  void Begin(const grpc::ByteBuffer& request);

 private:
  absl::Status Accept(const grpc::ByteBuffer& request);
  absl::Status ReadPipeline(const v1::ReadParametersRequest& request, const Identity& identity, ReadCall read);
  absl::Status ReadCheckpoint(const v1::ReadParametersRequest& request, const Identity& identity, ReadCall read);
  absl::Status StartChunks(std::shared_ptr<const ParameterSnapshot> snapshot);
  void OnAllSent() override { snapshot_.reset(); }
  void OnEnded() override { left_->Cancel(); }

  const MethodGate& gate_;
  const ServiceEnvironment environment_;
  const std::shared_ptr<CancelToken> left_ = std::make_shared<CancelToken>();  // cancelled when the reader has gone
  int64_t chunk_bytes_ = 0;
  std::shared_ptr<const ParameterSnapshot> snapshot_;
};

}  // namespace penstock
