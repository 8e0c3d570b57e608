#include "server/rpc/answered_call.h"

#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log_scope.h"
#include "engine/base/status_macros.h"
#include "server/rpc/convert/status_to_grpc.h"

namespace penstock {

void AnsweredCall::SetCaller(Identity identity, std::string session, std::shared_ptr<RequestTrace> trace,
                             std::shared_ptr<AuditNote> note) {
  identity_ = std::move(identity);
  session_ = std::move(session);
  trace_ = std::move(trace);
  note_ = std::move(note);
}

void AnsweredCall::set_request_id(std::string id) {
  if (trace_ != nullptr && !id.empty()) trace_->Set("penstock.request_id", id);
  absl::MutexLock lock(&mu_);
  request_id_ = std::move(id);
}

std::string AnsweredCall::request_id() const {
  absl::MutexLock lock(&mu_);
  return request_id_;
}

void AnsweredCall::set_client_id(std::string id) {
  absl::MutexLock lock(&mu_);
  client_id_ = std::move(id);
}

std::string AnsweredCall::client_id() const {
  absl::MutexLock lock(&mu_);
  return client_id_;
}

std::vector<std::pair<std::string, std::string>> AnsweredCall::LogFields() const {
  std::vector<std::pair<std::string, std::string>> fields;
  if (trace_ != nullptr) fields = trace_->Ids();
  if (std::string id = request_id(); !id.empty()) fields.emplace_back("request_id", std::move(id));
  return fields;
}

void AnsweredCall::Fail(const absl::Status& error) {
  if (claimed_) return;
  // What may fail comes before the claim: whoever holds that ends the call.
  grpc::Status shown(grpc::StatusCode::RESOURCE_EXHAUSTED, "");  // where memory is too short to say more
  absl::Status told = error;
  Guarded("the call", [&] {
    const LogScope scope(LogFields());
    if (const std::string id = request_id(); !id.empty()) told = WithValue(error, "request_id", id);
    shown = ToGrpcStatus(told);
  }).IgnoreError();
  if (!Claim()) return;
  DropKept();
  SendError(told, shown);
}

void AnsweredCall::ReplyBytes(grpc::ByteBuffer bytes) {
  MemoryLedger* memory;
  {
    absl::MutexLock lock(&mu_);
    memory = memory_;
  }
  const absl::Status ready = Guarded("the call", [&] { return Prepare(memory, &bytes); });
  if (!ready.ok()) {
    if (!claimed_) RunActions();
    return Fail(ready);
  }
  if (!Claim()) return;
  DropKept();
  SendAnswer(std::move(bytes));
}

void AnsweredCall::OnCancelled(std::function<void()> action) {
  {
    absl::MutexLock lock(&mu_);
    if (!cancelled_) {
      if (!claimed_) actions_.push_back(std::move(action));
      return;
    }
  }
  action();
}

void AnsweredCall::Keep(std::shared_ptr<void> ticket) {
  absl::MutexLock lock(&mu_);
  if (!claimed_) ticket_.swap(ticket);
}

absl::Status AnsweredCall::HoldMessage(MemoryLedger* memory, int64_t bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation held, TakeMemory(memory, {MemoryClass::kMessages, caller()}, 2 * bytes));
  absl::MutexLock lock(&mu_);
  memory_ = memory;
  if (!claimed_) message_ = std::move(held);
  return absl::OkStatus();
}

void AnsweredCall::DropKept() {
  std::vector<std::function<void()>> actions;  // their captures may hold the last share of something large
  std::shared_ptr<void> ticket;
  MemoryReservation message;
  absl::MutexLock lock(&mu_);
  actions.swap(actions_);
  ticket.swap(ticket_);
  message = std::move(message_);
}

void AnsweredCall::RunActions() {
  std::vector<std::function<void()>> actions;
  {
    absl::MutexLock lock(&mu_);
    actions.swap(actions_);
  }
  for (const auto& action : actions) Guarded("a cancel", action).IgnoreError();
}

void AnsweredCall::Cancel(const char* why) {
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
  }
  RunActions();
  Fail(Guarded("a cancel",
               [&]() -> absl::Status { return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", why); }));
}

bool AnsweredCall::Forgotten() {
  absl::MutexLock lock(&mu_);
  return !cancelled_ && !claimed_;
}

}  // namespace penstock
