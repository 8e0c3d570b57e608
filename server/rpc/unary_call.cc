#include "server/rpc/unary_call.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/message_entries.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {

absl::Status CheckMessage(const Pieces& bytes, int64_t max_bytes, const google::protobuf::Message& message) {
  const auto size = static_cast<int64_t>(PiecesSize(bytes));
  if (size > max_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, "MESSAGE_TOO_LARGE",
                 absl::StrCat("message: must have at most ", max_bytes, " bytes, got ", size))
        .With("field", "message")
        .With("value", absl::StrCat(size));
  }
  return CheckMessageEntries(bytes, message.GetDescriptor());
}

absl::Status NoSuchMessage(int64_t bytes) {
  return InvalidField("message", "is not what this method takes", absl::StrCat(bytes, " bytes"));
}

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, int64_t max_bytes, google::protobuf::Message* message) {
  const ReceivedMessage received(bytes);
  if (received.size() == 0) return absl::OkStatus();
  PENSTOCK_RETURN_IF_ERROR(CheckMessage(received.pieces(), max_bytes, *message));
  grpc::ByteBuffer readable(bytes);
  grpc::ProtoBufferReader reader(&readable);
  if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) {
    return NoSuchMessage(static_cast<int64_t>(received.size()));
  }
  return absl::OkStatus();
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

bool UnaryCallBase::Start() {
  self_ = shared_from_this();
  const std::shared_ptr<RequestTrace> trace = TraceOf(*context_);
  const std::shared_ptr<AuditNote> note = AuditNoteOf(*context_);
  SetCaller({}, {}, trace, note);
  absl::StatusOr<Identity> identity = gate_.Enter(*context_, note.get());
  if (!identity.ok()) {
    Fail(identity.status());
    return false;
  }
  absl::StatusOr<std::string> session = SessionOf(*context_);
  SetCaller(*std::move(identity), session.ok() ? *session : "", trace, note);
  if (!session.ok()) {
    Fail(session.status());
    return false;
  }
  if (trace != nullptr) trace->Set("penstock.caller", caller());
  return true;
}

absl::Status UnaryCallBase::Prepare(MemoryLedger* /*memory*/, grpc::ByteBuffer* /*answer*/) { return absl::OkStatus(); }

void UnaryCallBase::SendAnswer(grpc::ByteBuffer answer) {
  answer_->Swap(&answer);
  Finish(grpc::Status::OK);
}

void UnaryCallBase::SendError(const absl::Status& error, const grpc::Status& shown) {
  AddRetryPushback(error, context_);
  Finish(shown);
}

void UnaryCallBase::OnCancel() { Cancel("the caller has cancelled the call"); }

void UnaryCallBase::Abandon() {
  if (!Forgotten()) return;
  Fail(Guarded("the call", [this] {
    const LogScope scope(LogFields());
    return Bug("the call", "nobody has answered");
  }));
}

void UnaryCallBase::OnDone() { self_.reset(); }

}  // namespace penstock
