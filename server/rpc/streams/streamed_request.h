#pragma once

// One request of a stream of requests, from its bytes to its answer.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/ledger/memory_ledger.h"
#include "server/rpc/answered_call.h"
#include "server/rpc/streams/request_stream.h"

namespace penstock {

// A call whose answer goes to its stream.
//
// Owns:      a share of its stream. An answer takes room of its own, which the stream has until gRPC has it.
//            The last of those who could answer answers with BUG if none has.
// Lifecycle: RequestStream::Open() knows it; a stream that breaks cancels it. A stream has one span, not one per
//            request: there is no trace.
class StreamedRequest : public AnsweredCall {
 public:
  // `number`: what the stream knows it by. `note`: of the audit log, or null.
  StreamedRequest(std::shared_ptr<RequestStream> stream, uint64_t number, Identity identity, std::string session,
                  std::shared_ptr<AuditNote> note);
  ~StreamedRequest() override;

  uint64_t number() const { return number_; }
  // Whether more messages of it are to come: where none can, it fails.
  bool incomplete() const { return incomplete_; }
  void set_incomplete(bool incomplete) { incomplete_ = incomplete; }

 private:
  absl::Status Prepare(MemoryLedger* memory, grpc::ByteBuffer* answer) override ABSL_LOCKS_EXCLUDED(room_mu_);
  void SendAnswer(grpc::ByteBuffer answer) override ABSL_LOCKS_EXCLUDED(room_mu_);
  void SendError(const absl::Status& error, const grpc::Status& shown) override;

  const std::shared_ptr<RequestStream> stream_;
  const uint64_t number_;
  std::atomic<bool> incomplete_ = false;

  absl::Mutex room_mu_;
  MemoryReservation room_ ABSL_GUARDED_BY(room_mu_);  // for the answer
};

}  // namespace penstock
