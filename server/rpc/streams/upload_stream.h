#pragma once

// UploadModel: a file from a client into the model root, within credit, resumable.

#include <string>

#include "engine/ledger/memory_ledger.h"
#include "penstock/v1/model.pb.h"
#include "server/models/model_uploads.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/model_parts.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/receive_stream.h"

namespace penstock {

// Serves one UploadModel stream.
//
// Model:     A message is taken by a job, since it goes to the disk; the next one is read when that is done. The start
//            is answered with credit and where to go on; credit comes back with what was written; the last chunk is
//            answered with the model, and the stream ends.
// Owns:      itself, until gRPC is done with it. gRPC is not done with it while a job runs: only the job ends the
//            stream then.
// Threads:   gRPC's and the job thread, one after the other.
// Fails:     as ModelUploads; STREAM_PROTOCOL for a message out of place, MESSAGE_TOO_LARGE.
class UploadStream final : public ReceiveStream {
 public:
  UploadStream(const MethodGate& gate, const ServiceEnvironment& environment, const ModelParts& parts,
               grpc::CallbackServerContext* context);

 private:
  void OnReadDone(bool ok) override;
  void Release() override;

  void TakeOnJobThread();
  // Takes a message; returns whether another one is expected.
  absl::StatusOr<bool> Take(const v1::UploadModelRequest& message);
  absl::StatusOr<bool> Begin(const v1::UploadModelStart& start);
  absl::StatusOr<bool> TakeChunk(const v1::ModelChunk& chunk);
  bool Answer(const ModelUploads::Position& position, bool first);

  const ModelParts parts_;
  MemoryLedger* const memory_;
  std::string caller_;
  MemoryReservation message_;  // of the one in hand, as it came and as it is parsed
  grpc::ByteBuffer read_;
  bool started_ = false;
  ModelUploads::Hold hold_;
};

}  // namespace penstock
