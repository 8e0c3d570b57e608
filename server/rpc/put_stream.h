#pragma once

// PutTensors: tensors from a client into a handle, within credit, resumable.

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "penstock/v1/handle.pb.h"
#include "server/rpc/put_table.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/stall_guard.h"

namespace penstock {

// Serves one PutTensors stream.
//
// Model:     The first message starts or resumes an upload; the answer is the credit and where to go
//            on. Each chunk uses up credit, which comes back once the bytes have been copied. The last
//            chunk is answered with the handle, and the stream ends.
// Owns:      itself, until gRPC is done with it.
// Threads:   gRPC's; reads come one at a time, writes are queued.
// Fails:     STREAM_PROTOCOL for a message out of place, CREDIT_EXCEEDED, CHUNK_SIZE, CHUNK_CHECKSUM,
//            TENSOR_HEADER, TENSOR_TOO_LARGE, HANDLE_BUDGET.
class PutStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  PutStream(const ServiceEnvironment& environment, std::shared_ptr<PutTable> puts,
            grpc::CallbackServerContext* context);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // Takes the message that was read; answers whether another one is expected.
  absl::StatusOr<bool> Take();
  absl::StatusOr<bool> Begin(const Pieces& start);
  absl::StatusOr<bool> TakeChunk(const Pieces& message);
  absl::StatusOr<bool> Answer(const PutTable::Position& position, bool first);
  void Write(const v1::PutTensorsResponse& response) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream when all that was written has left.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void EndIfWritten() ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceEnvironment environment_;
  const std::shared_ptr<PutTable> puts_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StallGuard> guard_;
  std::string caller_;
  std::shared_ptr<void> ticket_;
  grpc::ByteBuffer read_;
  std::optional<PutTable::Hold> hold_;
  int64_t credit_ = 0;    // bytes that the sender may still send
  int64_t returned_ = 0;  // bytes copied whose credit has not been given back

  absl::Mutex mu_;
  std::deque<grpc::ByteBuffer> writes_ ABSL_GUARDED_BY(mu_);  // the first one is on its way
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
