#pragma once

// FetchHandle: the bytes of a result, in chunks, from any offset.

#include <memory>
#include <string>

#include "engine/handles/handle_store.h"
#include "penstock/v1/handle.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/chunk_stream.h"

namespace penstock {

// Serves one FetchHandle: the handle, its values that are no tensors, then the tensors' chunks; each is made or sent
// when the last has left.
//
// Owns:      a pin on the handle.
// Fails:     reasons of handles; HANDLE_PENDING when it did not settle in time; OFFSET_OUT_OF_RANGE.
class FetchStream final : public ChunkStream {
 public:
  FetchStream(const MethodGate& gate, const ServiceEnvironment& environment, grpc::CallbackServerContext* context);

  // Reads the request and goes on by itself. After Start().
  void Begin(const grpc::ByteBuffer& request);

 private:
  absl::Status Accept(const grpc::ByteBuffer& request);
  void OnSettled(const HandleStore::HandleAnswer& answer);
  absl::Status StartChunks(const HandleInfo& info);
  void OnEnded() override;

  const MethodGate& gate_;
  const ServiceEnvironment environment_;
  std::string caller_;
  v1::FetchHandleRequest request_;
  int64_t chunk_bytes_ = 0;
  HandlePin pin_;  // as long as this: a wait that ends late still finds it
  HandleStore::WaitId wait_ = 0;
};

// The tensors that a request names.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID for a name that nothing of the handle has, or an offset without one tensor
//            of several; OFFSET_OUT_OF_RANGE.
absl::StatusOr<std::vector<TensorSender::Part>> ChooseParts(const HeldValues& held,
                                                            const v1::FetchHandleRequest& request);

}  // namespace penstock
