#include "server/rpc/streams/streamed_request.h"

#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {

StreamedRequest::StreamedRequest(std::shared_ptr<RequestStream> stream, uint64_t number, Identity identity,
                                 std::string session, std::shared_ptr<AuditNote> note)
    : stream_(std::move(stream)), number_(number) {
  SetCaller(std::move(identity), std::move(session), nullptr, std::move(note));
}

StreamedRequest::~StreamedRequest() {
  if (Forgotten()) Fail(Guarded("the request", [] { return Bug("the request", "nobody has answered"); }));
}

absl::Status StreamedRequest::Prepare(MemoryLedger* memory, grpc::ByteBuffer* answer) {
  const auto bytes = static_cast<int64_t>(answer->Length());
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation room, TakeMemory(memory, {MemoryClass::kMessages, caller()}, bytes));
  *answer = stream_->AnswerOf(*this, *answer);
  absl::MutexLock lock(&room_mu_);
  room_ = std::move(room);
  return absl::OkStatus();
}

void StreamedRequest::SendAnswer(grpc::ByteBuffer answer) {
  RequestStream::Outgoing message{.bytes = std::move(answer)};
  {
    absl::MutexLock lock(&room_mu_);
    message.held = std::move(room_);
  }
  if (note() != nullptr) Guarded("the request", [this] { note()->Finish(grpc::StatusCode::OK, ""); }).IgnoreError();
  stream_->Answer(number_, std::move(message));
}

void StreamedRequest::SendError(const absl::Status& /*error*/, const grpc::Status& shown) {
  RequestStream::Outgoing message;  // empty where memory is too short to say more
  Guarded("the request", [&] { message.bytes = stream_->ErrorOf(*this, shown); }).IgnoreError();
  Guarded("the request", [&] {
    if (note() != nullptr) note()->Finish(shown.error_code(), ReasonIn(shown));
  }).IgnoreError();
  stream_->Answer(number_, std::move(message));
}

}  // namespace penstock
