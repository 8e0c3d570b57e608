#pragma once

// UploadModel: a file from a client into the model root, within credit, resumable.

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "penstock/v1/model.pb.h"
#include "server/models/model_uploads.h"
#include "server/rpc/models_service.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/stall_guard.h"

namespace penstock {

// Serves one UploadModel stream.
//
// Model:     A message is taken by a job, since it goes to the disk; the next one is read when that is done. The start is
//            answered with credit and where to go on; credit comes back with what was written; the last chunk is answered
//            with the model, and the stream ends.
// Owns:      itself, until gRPC is done with it. A job under way keeps gRPC from being done: only it ends the stream.
// Threads:   gRPC's and the job thread, one after the other.
// Fails:     as ModelUploads; STREAM_PROTOCOL for a message out of place, CREDIT_EXCEEDED, MESSAGE_TOO_LARGE.
class UploadStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  UploadStream(const ServiceEnvironment& environment, const ModelParts& parts, grpc::CallbackServerContext* context);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  void TakeOnJobThread();
  // Takes a message; answers whether another one is expected.
  absl::StatusOr<bool> Take(const v1::UploadModelRequest& message);
  absl::StatusOr<bool> Begin(const v1::UploadModelStart& start);
  absl::StatusOr<bool> TakeChunk(const v1::ModelChunk& chunk);
  bool Answer(const ModelUploads::Position& position, bool first);
  void Write(const v1::UploadModelResponse& response) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream when all that was written has left.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void EndIfWritten() ABSL_LOCKS_EXCLUDED(mu_);

  const ServiceEnvironment environment_;
  const ModelParts parts_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StallGuard> guard_;
  std::string caller_;
  grpc::ByteBuffer read_;
  bool started_ = false;
  ModelUploads::Hold hold_;
  int64_t credit_ = 0;    // bytes that the sender may still send
  int64_t returned_ = 0;  // bytes written whose credit has not been given back

  absl::Mutex mu_;
  std::deque<grpc::ByteBuffer> writes_ ABSL_GUARDED_BY(mu_);  // the first one is on its way
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
