#pragma once

// PutTensors: tensors from a client into a handle, within credit, resumable.

#include <memory>
#include <optional>
#include <string>

#include "engine/ledger/memory_ledger.h"
#include "penstock/v1/handle.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/streams/receive_stream.h"
#include "server/rpc/streams/tensor_uploads.h"

namespace penstock {

// Serves one PutTensors stream.
//
// Model:     The first message starts or resumes an upload; the answer is the credit and where to go
//            on. Each chunk uses up credit, which comes back once the bytes have been copied. The last
//            chunk is answered with the handle, and the stream ends.
// Owns:      itself, until gRPC is done with it.
// Threads:   gRPC's; reads come one at a time, writes are queued.
// Fails:     STREAM_PROTOCOL for a message out of place, CHUNK_SIZE, CHUNK_CHECKSUM,
//            TENSOR_HEADER, TENSOR_TOO_LARGE, HANDLE_BUDGET.
class PutStream final : public ReceiveStream {
 public:
  PutStream(const MethodGate& gate, const ServiceEnvironment& environment, std::shared_ptr<TensorUploads> puts,
            grpc::CallbackServerContext* context);

 private:
  void OnReadDone(bool ok) override;
  void Release() override;

  // Takes the message that was read; returns whether another one is expected.
  absl::StatusOr<bool> Take();
  absl::StatusOr<bool> Begin(const Pieces& start);
  absl::StatusOr<bool> TakeChunk(const Pieces& message);
  absl::StatusOr<bool> Answer(const TensorUploads::Position& position, bool first);

  const ServiceEnvironment environment_;
  const std::shared_ptr<TensorUploads> puts_;
  Identity identity_;
  grpc::ByteBuffer read_;
  MemoryReservation message_;  // of the one in hand
  std::optional<TensorUploads::Hold> hold_;
};

}  // namespace penstock
