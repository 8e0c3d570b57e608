#pragma once

// ReadParameters: the weights of one step, in chunks.

#include <memory>
#include <optional>

#include "engine/serve/served_pipeline.h"
#include "penstock/v1/state.pb.h"
#include "server/rpc/services/service_environment.h"
#include "server/rpc/streams/tensor_stream.h"
#include "server/rpc/streams/write_stream.h"

namespace penstock {

// Answers one ReadParameters: all headers, then all chunks, of a snapshot taken between two steps.
//
// Owns:      a share of the snapshot, and the caller's place in the admission; both go with the stream.
// Fails:     as ServedPipeline::ReadParameters(); CALLER_QUOTA.
class ParameterStream final : public WriteStream {
 public:
  ParameterStream(const ServiceEnvironment& environment, grpc::CallbackServerContext* context);

  // Reads the request and goes on by itself. After Start().
  void Begin(const grpc::ByteBuffer& request);

 private:
  absl::Status Accept(const grpc::ByteBuffer& request);
  absl::Status StartChunks(std::shared_ptr<const ParameterSnapshot> snapshot);
  void OnSent() override;

  const ServiceEnvironment environment_;
  int64_t chunk_bytes_ = 0;
  std::shared_ptr<const ParameterSnapshot> snapshot_;
  std::optional<TensorSender> sender_;
  int64_t sending_bytes_ = 0;  // of the chunk that is on its way
};

}  // namespace penstock
