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
#include "server/rpc/convert/wire_reader.h"

namespace penstock {

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, int64_t max_bytes, google::protobuf::Message* message) {
  const auto size = static_cast<int64_t>(bytes.Length());
  if (size > max_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, "MESSAGE_TOO_LARGE",
                 absl::StrCat("message: must have at most ", max_bytes, " bytes, got ", size))
        .With("field", "message")
        .With("value", absl::StrCat(size));
  }
  if (size == 0) return absl::OkStatus();
  PENSTOCK_RETURN_IF_ERROR(CheckMessageEntries(ReceivedMessage(bytes).pieces(), message->GetDescriptor()));
  grpc::ByteBuffer readable(bytes);
  grpc::ProtoBufferReader reader(&readable);
  if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) {
    return InvalidField("message", "is not what this method takes", absl::StrCat(size, " bytes"));
  }
  return absl::OkStatus();
}

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message) {
  grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

bool UnaryCallBase::Start() {
  self_ = shared_from_this();
  trace_ = TraceOf(*context_);
  absl::StatusOr<Identity> identity = gate_.Enter(*context_);
  if (!identity.ok()) {
    Fail(identity.status());
    return false;
  }
  identity_ = *std::move(identity);
  absl::StatusOr<std::string> session = SessionOf(*context_);
  if (!session.ok()) {
    Fail(session.status());
    return false;
  }
  session_ = *std::move(session);
  if (trace_ != nullptr) trace_->Set("penstock.caller", identity_.name);
  return true;
}

void UnaryCallBase::set_request_id(std::string id) {
  request_id_ = std::move(id);
  if (trace_ != nullptr && !request_id_.empty()) trace_->Set("penstock.request_id", request_id_);
}

std::vector<std::pair<std::string, std::string>> UnaryCallBase::LogFields() const {
  std::vector<std::pair<std::string, std::string>> fields;
  if (trace_ != nullptr) fields = trace_->Ids();
  if (!request_id_.empty()) fields.emplace_back("request_id", request_id_);
  return fields;
}

void UnaryCallBase::Fail(const absl::Status& error) {
  if (claimed_) return;
  // What may fail comes before the claim: whoever holds that finishes the call.
  grpc::Status status(grpc::StatusCode::RESOURCE_EXHAUSTED, "");  // where memory is too short to say more
  absl::Status told = error;
  Guarded("the call", [&] {
    const LogScope scope(LogFields());
    if (!request_id_.empty()) told = WithValue(error, "request_id", request_id_);
    status = ToGrpcStatus(told);
  }).IgnoreError();
  if (!Claim()) return;
  DropKept();
  AddRetryPushback(told, context_);
  Finish(std::move(status));
}

void UnaryCallBase::ReplyBytes(grpc::ByteBuffer bytes) {
  if (!Claim()) return;
  DropKept();
  answer_->Swap(&bytes);
  Finish(grpc::Status::OK);
}

void UnaryCallBase::OnCancelled(std::function<void()> action) {
  {
    absl::MutexLock lock(&mu_);
    if (!cancelled_) {
      if (!claimed_) actions_.push_back(std::move(action));
      return;
    }
  }
  action();
}

absl::Status UnaryCallBase::HoldMessage(MemoryLedger* memory, int64_t bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation held, TakeMemory(memory, {MemoryClass::kMessages, caller()}, 2 * bytes));
  absl::MutexLock lock(&mu_);
  if (!claimed_) message_ = std::move(held);
  return absl::OkStatus();
}

void UnaryCallBase::Keep(std::shared_ptr<void> ticket) {
  absl::MutexLock lock(&mu_);
  if (!claimed_) ticket_.swap(ticket);
}

void UnaryCallBase::DropKept() {
  std::vector<std::function<void()>> actions;  // their captures may hold the last share of something large
  std::shared_ptr<void> ticket;
  MemoryReservation message;
  absl::MutexLock lock(&mu_);
  actions.swap(actions_);
  ticket.swap(ticket_);
  message = std::move(message_);
}

void UnaryCallBase::OnCancel() {
  std::vector<std::function<void()>> actions;
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    actions.swap(actions_);
  }
  for (const auto& action : actions) Guarded("a cancel", action).IgnoreError();
  Fail(Guarded("a cancel", []() -> absl::Status {
    return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the caller has cancelled the call");
  }));
}

void UnaryCallBase::Abandon() {
  {
    absl::MutexLock lock(&mu_);
    if (cancelled_ || claimed_) return;  // a cancel replies by itself
  }
  Fail(Guarded("the call", [this] {
    const LogScope scope(LogFields());
    return Bug("the call", "nobody has answered");
  }));
}

void UnaryCallBase::OnDone() { self_.reset(); }

}  // namespace penstock
